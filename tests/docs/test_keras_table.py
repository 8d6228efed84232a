"""The table of what a program may have under `fit`: each of its rows is shown by tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import kungfu

ROOT = Path(kungfu.__file__).parent.parent
FIT, DATA = "tests/keras/test_loop.py", "tests/keras/data"
REFUSED, JOBS = "tests/keras/test_refusals.py", "tests/jobs"

# By the first words of a row the file, and the words in the name of the test.
SHOWN_BY = {
    "sequential, functional": (FIT, "models_of_every_kind"),
    "several inputs and outputs": (FIT, "several_inputs_and_outputs"),
    "`sample_weight`": (FIT, "weights_of_samples_and_metrics"),
    "masked outputs": ("tests/keras/test_losses.py", "the_mean_of_the_slices"),
    '`reduction="none"`': (REFUSED, "a_model_is_refused"),
    "losses by `add_loss`": ("tests/keras/test_custom_step.py", "losses_of_layers"),
    "Keras' metrics": (REFUSED, "every_metric_of_keras"),
    "a metric of your own": (f"{JOBS}/test_keras.py", "losses_and_metrics_are_those"),
    "Dense, convolutions": (FIT, "models_of_every_kind"),
    "Dropout": (FIT, "layers_with_statistics_and_random_numbers"),
    "BatchNormalization": (FIT, "layers_with_statistics_and_random_numbers"),
    "`BatchNormalization(": ("tests/training/loop/test_attach.py", "statistics_over_the_peers_are_refused"),
    "a layer with a memory": ("tests/keras/test_layer_memory.py", "a_sum_trains"),
    "recurrent layers": (REFUSED, "a_model_is_refused"),
    "an input with a fixed": (REFUSED, "a_model_is_refused"),
    "arrays": (f"{DATA}/test_fit_data.py", "samples_in_another_order"),
    "`shuffle=True`": (FIT, "shuffling_is_in_an_order"),
    "`tf.data.Dataset`": (f"{DATA}/test_py_dataset.py", "it_is_trained_on_as_by_keras"),
    "a generator": (f"{DATA}/test_whole_batches.py", "it_is_trained_on_as_by_keras"),
    "ragged or sparse": (REFUSED, "arguments_of_fit_are_refused"),
    "`validation_data`": (FIT, "a_part_is_held_out"),
    "`evaluate`": (f"{JOBS}/test_keras_evaluate.py", "peers_share_evaluation"),
    "callbacks of Keras": ("tests/keras/test_callbacks.py", "writers_run_on_the_coordinator"),
    "callbacks of your own": (FIT, "logs_are_computed_when_a_callback_looks"),
    "`EarlyStopping`": (FIT, "callbacks_of_keras_do_what"),
    "`BackupAndRestore`": (FIT, "an_interrupted_fit_continues_from_its_backup"),
    "mixed precision": (FIT, "in_half_precision"),
    "a custom `train_step`": ("tests/keras/test_custom_step.py", "two_optimizers_in_one_step"),
    "averages of models": ("tests/keras/test_average_models.py", "losses_and_metrics_of_an_epoch"),
    "`run_eagerly=True`": (REFUSED, "a_model_is_refused"),
    "`jit_compile=True`": (FIT, "forward_and_backward_pass_are_compiled"),
    "several calls of `fit`": ("tests/keras/test_fits.py", "fits_of_a_model_that_is_compiled_anew"),
    "`train_on_batch`": (REFUSED, "a_job_has_no_step_beside_its_fits"),
    "a `fit` of your own": (REFUSED, "a_model_is_refused"),
    "a search over": ("tests/runtime/core/test_program_identity.py", "differ"),
    "a notebook": ("tests/keras/test_attach_model.py", "alone_without_policies_fit_is_that_of_keras"),
}


def test_each_row_of_the_table_is_shown_by_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "keras.md").read_text()
    section = page.partition("## What your program has\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)[2:]
    found = [[key for key in SHOWN_BY if row.startswith(key)][:1] for row in rows]
    assert [row for row, keys in zip(rows, found, strict=True) if not keys] == []
    assert len(rows) == len(SHOWN_BY)
    for path, words in SHOWN_BY.values():
        tree = ast.parse((ROOT / path).read_text())
        names = [one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name.startswith("test")]
        assert any(words in name for name in names), f"{path} has no test of {words!r}"
