"""Keras' ``fit`` under kungfu-run, once and several times, against plain Keras on the same batches."""

from __future__ import annotations

import csv
import re
import signal
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import keras
import numpy as np
import pytest

from kungfu.runtime.checkpoints.folder import find
from kungfu.runtime.checkpoints.manifest import read_manifest
from kungfu.runtime.core.sample_slices import shuffled
from tests.jobs.harness import job_results, ran, started
from tests.jobs.programs import keras_fit, keras_phases
from tests.keras.fitting import float64
from tests.soak import SOAK

EPOCHS = 4
RELATIVE = 1e-8
fitted = partial(job_results, "keras_fit.py")


def orders(kind: str, epochs: int) -> list[np.ndarray]:
    """The samples of each epoch, in the order in which a job of this kind of data trains on them."""
    if kind in ("arrays", "losses"):
        samples = keras_fit.SAMPLES if kind == "arrays" else keras_fit.UNEVEN
        return [shuffled(samples, seed=3, epoch=epoch) for epoch in range(epochs)]
    if kind == "dataset":
        read = keras_fit.dataset()
        assert len(list(read)) == 8, "each peer looks it through once before it begins"
        return [_numbers(read) for _ in range(epochs)]
    if kind == "generator":
        read = keras_fit.generator()
        return [_numbers(islice(read, 9)) for _ in range(epochs)]
    read, found = keras_fit.Batches(), []
    for epoch in range(epochs):
        read.on_epoch_end()
        order = [*shuffled(7, seed=3, epoch=epoch), 7]  # of whole batches, and the smaller one last
        found.append(_numbers(read[int(index)] for index in order))
    return found


def _numbers(batches: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(batch[1]["number"]).ravel() for batch in batches]).astype(int)


def fitted_alone(model: Any, data: tuple[Any, ...], orders: Iterable[np.ndarray], *, batch_size: int) -> dict[str, Any]:
    """The history of Keras alone on inputs, targets and maybe weights, by epoch in the job's order."""

    def rows(which: Any) -> Any:
        return keras.tree.map_structure(lambda one: one[which], data)

    history: dict[str, Any] = {}
    for order in orders:
        model.optimizer.learning_rate = float(model.optimizer.learning_rate) * keras_fit.DECAY
        x, y, *weights = rows(order)
        found = model.fit(
            x, y, sample_weight=weights[0] if weights else None, batch_size=batch_size, shuffle=False, verbose=0,
            validation_data=rows(slice(20))[:2],
        )  # fmt: skip
        for name, values in found.history.items():
            history.setdefault(name, []).extend(values)
    return history


def assert_close(found: dict[str, list[float]], history: dict[str, list[float]]) -> None:
    """The history of a job is that of Keras alone."""
    assert found.keys() == {*history, "learning_rate"}
    for name, values in history.items():
        tolerance = 1e-6 if "seen" in name else RELATIVE  # that metric is of float32
        np.testing.assert_allclose(found[name], values, rtol=tolerance, err_msg=name)


def assert_as_plain(found: dict[str, Any], epochs: int = EPOCHS, *, kind: str = "arrays") -> None:
    """History and weights of a peer that stayed to the end are those of plain Keras."""
    with float64():
        data, more, (model, _), _ = keras_fit.parts(kind == "losses")
        batch_size = keras_fit.GIVEN if kind == "generator" else keras_fit.BATCH
        history = fitted_alone(model, (*data, *more.values()), orders(kind, epochs), batch_size=batch_size)
    assert found["epochs"] == list(range(epochs))
    assert_close(found["history"], history)
    compared = model.trainable_variables if kind == "losses" else model.weights
    for one, other in zip(found["weights"], compared, strict=True):
        np.testing.assert_allclose(one, np.asarray(other).ravel(), rtol=RELATIVE)


def assert_told_once(found: dict[str, Any], epochs: int = EPOCHS, *, steps: int = 8) -> None:
    """Each sample once an epoch, each batch and each epoch told once; one trace."""
    assert found["seen"] == [[1.0] * keras_fit.SAMPLES] * epochs
    assert found["batches"] == [list(range(steps))] * epochs
    assert found["ended"] == list(range(epochs))
    assert found["traces"] == 1


@pytest.mark.parametrize(
    ("kind", "devices"), [("arrays", 1), pytest.param("arrays", 2, marks=SOAK), pytest.param("dataset", 1, marks=SOAK)]
)
def test_two_peers_grow_to_three_and_shrink_to_one_in_the_middle_of_an_epoch(tmp_path, kind, devices):
    ended, found = fitted(
        tmp_path, "-np", 2, "--max", 3, schedule={"0": 2, "10": 3, "19": 1}, wait={"11": "offered"}, epochs=EPOCHS,
        data=kind, devices=devices, wishes=1,
    )  # fmt: skip
    assert ended.sizes == [2, 3, 1]
    assert [event["step"] for event in ended.all_of("rescale")] == [12, 20], "in the middle of an epoch of 8 steps"
    (stayed,) = [one for one in found.values() if not one["left"]]
    assert sorted(one["left"] for one in found.values()) == [False, True, True]
    assert_told_once(stayed)
    assert_as_plain(stayed, kind=kind)
    # The joiner was given what the callbacks had found before it came, and went on with it.
    joined = found[2]
    assert joined["seen"] == stayed["seen"][: len(joined["seen"])]
    assert len(joined["seen"]) == 2
    assert joined["batches"][0] == list(range(8))
    assert "this peer was let go, and its program ends inside of model.fit()" in ended.output
    wished = "a callback has set model.stop_training on this peer, and not on rank 0"
    assert ended.output.count(wished) == 1, "by peer 1 alone, after each batch and epoch"


def test_the_leader_is_killed_in_the_middle_of_an_epoch_and_the_next_one_writes_on(tmp_path):
    ended, found = fitted(tmp_path, "-np", 2, "--min", 1, "--max", 2, epochs=EPOCHS, die=0, shuffled=1)
    assert ended.sizes[:2] == [2, 1]
    stayed = found[1]
    assert_told_once(stayed)
    assert_as_plain(stayed)
    with (tmp_path / "results" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(EPOCHS)), "one header, each epoch once"
    # The best of the leader before was in epoch 0, and the next one has not written over it.
    assert stayed["history"]["loss"][0] == max(stayed["history"]["loss"])
    with float64():
        model, _ = keras_fit.build()
    model.optimizer.build(model.trainable_variables)
    model.load_weights(tmp_path / "results" / "largest.weights.h5")
    assert int(model.optimizer.iterations) == 8
    assert ended.output.count("the validation of model.fit() is not shared among the peers") == 1


@SOAK
def test_rank_0_is_killed_in_its_callbacks_and_those_of_the_next_one_count(tmp_path):
    """Rank 0 is killed in its callbacks, and the results of those of the next one count."""
    ended, found = fitted(tmp_path, "-np", 3, "--min", 1, "--max", 3, epochs=EPOCHS, die_in_callback=0)
    assert ended.sizes[:2] == [3, 2]
    for peer in (1, 2):
        assert_told_once(found[peer])
        assert_as_plain(found[peer])


@SOAK
@pytest.mark.parametrize("seed", range(6))
def test_a_fit_whose_peers_are_killed_at_any_moment_ends_like_plain_keras(tmp_path, seed):
    """Peers are killed at any moment until one is left, which comes to the same as plain Keras."""
    epochs = 6
    ended, found = fitted(tmp_path, "-np", 4, "--min", 1, "--max", 4, "--failures", 0, epochs=epochs, doom=seed)
    assert ended.sizes[0] == 4
    for one in found.values():
        assert_told_once(one, epochs)
        assert_as_plain(one, epochs)
    with (tmp_path / "results" / "log.csv").open() as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == list(range(epochs)), "each epoch once"


def test_another_list_of_callbacks_on_one_peer_ends_the_job_with_both_lists(tmp_path):
    words = ["--results", tmp_path / "results", "--odd", 1]
    ended = ran(tmp_path, "-np", 2, program="keras_fit.py", arguments=words, deadline_s=280.0, code=2)
    assert "'TerminateOnNaN', 'History'] on this peer, and ['LearningRateScheduler', 'Told', " in ended.output
    assert not ended.metrics


@pytest.mark.parametrize(
    ("kind", "steps"), [
        ("batches", 8), ("generator", 9), ("partitions", 8)
    ],
)  # fmt: skip
@SOAK
def test_data_that_peers_read_in_batches_over_a_joiner_a_kill_and_a_leaver(tmp_path, kind, steps):
    ended, found = fitted(
        tmp_path, "-np", 2, "--min", 1, "--max", 3, schedule={"0": 2, "10": 3, "21": 1},
        wait={"11": "offered", "17": "offered"}, epochs=EPOCHS, data=kind, die=1, die_at=7,
    )  # fmt: skip
    assert ended.sizes == [2, 3, 2, 3, 1], "one joins, one of them is killed, another one comes for it, and two leave"
    (stayed,) = [one for one in found.values() if not one["left"]]
    assert_told_once(stayed, steps=steps)
    if kind != "partitions":  # their order follows from who was there
        assert_as_plain(stayed, kind=kind)
    if kind == "generator":
        said = r"this peer read (\d+) batches of the generator that model\.fit\(\) was given in \d+\.\d s"
        assert re.search(said, ended.output), "the price of joining"
        # Those who wait for the second one stand at steps 11 and 17: it is where they are before it is offered.
        caught_up = ended.all_of("caught up")
        assert [event["peer"] for event in caught_up] == [2, 3]
        assert caught_up[0]["batches"] >= 10
        assert ended.events.index(caught_up[0]) < ended.events.index(ended.all_of("rescale")[0])


@SOAK
def test_a_joiner_that_reads_for_longer_than_a_step_may_take_keeps_nobody_waiting(tmp_path):
    ended, found = fitted(
        tmp_path, "-np", 2, "--max", 3, "--deadline", 15, schedule={"0": 2, "10": 3}, wait={"11": "offered"},
        epochs=EPOCHS, data="generator", slow=2,
    )  # fmt: skip
    assert ended.sizes == [2, 3]
    (caught_up,) = ended.all_of("caught up")
    assert (caught_up["peer"], caught_up["batches"] >= 10) == (2, True)
    assert caught_up["seconds"] > 15
    assert not ended.all_of("late")
    for peer in found:
        assert_as_plain(found[peer], kind="generator")


@pytest.mark.parametrize("devices", [1, 2])
@SOAK
def test_losses_and_metrics_are_those_of_the_whole_batch(tmp_path, devices):
    """Losses of every denominator and metrics that do not add up are those of the whole batch.

    Over a rescale, a kill, a step that is done again, and steps with a slice that is empty.
    """
    epochs = 3
    ended, found = fitted(
        tmp_path, "-np", 2, "--min", 1, "--max", 3, schedule={"0": 2, "5": 3}, wait={"6": "offered"}, epochs=epochs,
        losses=1, die=1, die_at=3, devices=devices,
    )  # fmt: skip
    assert ended.sizes[:3] == [2, 3, 2]
    assert ended.all_of("rescale")[0]["step"] == 7, "in the middle of an execution"
    stayed = found[0]
    assert stayed["seen"] == [[1.0] * keras_fit.UNEVEN] * epochs
    assert stayed["batches"] == [[2, 5, 7]] * epochs, "callbacks are called per execution"
    assert stayed["traces"] == 1
    assert stayed["finite"]
    assert_as_plain(stayed, epochs, kind="losses")
    assert found[2]["history"] == stayed["history"]
    assert found[2]["batches"] == stayed["batches"]


def test_datasets_that_give_other_samples_on_each_peer_are_refused(tmp_path):
    words = ["--results", tmp_path / "results", "--data", "dataset", "--unlike", 1]
    ended = ran(tmp_path, "-np", 2, program="keras_fit.py", arguments=words, deadline_s=280.0, code=2)
    assert "data that every peer reads, and has to read alike" in ended.output
    assert "validation data of model.fit(), by a checksum" in ended.output
    assert not ended.metrics


# ---- several fits ----------------------------------------------------------------------------------------------------

STEPS = 20  # of both
fitted_twice = partial(job_results, "keras_phases.py")


def assert_fits_as_plain(found: dict[str, Any]) -> None:
    """What a peer has that was there at the end, whenever it came, is what plain Keras has."""
    histories, scores = [], []
    with float64():
        data, model = keras_phases.data(), keras_phases.build()
        for phase in range(2):
            keras_phases.compiled(model, phase)
            orders = [shuffled(keras_phases.SAMPLES, seed=3, epoch=epoch) for epoch in range(keras_phases.EPOCHS)]
            histories.append(fitted_alone(model, data, orders, batch_size=keras_phases.BATCH))
            scores.append(model.evaluate(*data, verbose=0))
    assert found["steps"] == STEPS
    for mine, other in zip(found["histories"], histories, strict=True):
        assert_close(mine, other)
    np.testing.assert_allclose(found["scores"], scores, rtol=RELATIVE)
    for one, value in zip(found["weights"], model.weights, strict=True):
        np.testing.assert_allclose(one, np.asarray(value).ravel(), rtol=RELATIVE)


@SOAK
def test_the_job_grows_in_the_first_fit_and_in_the_second_and_shrinks(tmp_path):
    ended, found = fitted_twice(
        tmp_path, "-np", 1, "--max", 3, schedule={"0": 1, "3": 2, "12": 3, "17": 2}, wait={"5": 1, "13": 2},
    )  # fmt: skip
    assert ended.sizes == [1, 2, 2, 3, 2]
    assert [event["step"] for event in ended.all_of("rescale")] == [6, 14, 18]
    (phase,) = ended.all_of("phase")
    assert (phase["phase"], phase["peers"]) == (2, [0, 1])
    assert [event["phase"] for event in ended.all_of("finished") if not event["leaving"]] == [1, 1, 2, 2]
    for peer in (0, 1):  # of which the second came in the middle of the first fit
        assert_fits_as_plain(found[peer])
    # The third one came in the second fit, and passed through the first: it knows what that came to.
    joined = found[2]
    assert joined["left"], "the newest one was let go"
    assert joined["histories"] == found[0]["histories"][:1]
    np.testing.assert_allclose(joined["scores"], found[0]["scores"][:1], rtol=RELATIVE)
    assert joined["ranks"] == [None], "between fits that are over it is in no view"


def test_rank_0_is_killed_in_the_second_fit_and_replaced_by_a_spare(tmp_path):
    """The spare is ready in the first fit and, anew, in the second, and passes through the first."""
    given = {"die": 0, "ready": {"5": 1, "12": 2}, "wait": {"17": 1}}
    ended, found = fitted_twice(tmp_path, "-np", 2, "--max", 2, "--spares", 1, **given)
    assert ended.sizes == [2, 2, 1, 2]
    assert [one["state"] for one in ended.all_of("spare") if one["peer"] == 2] == ["ready", "ready", "wanted"]
    for peer in (1, 2):
        assert_fits_as_plain(found[peer])
    assert found[2]["ranks"] == [None, 1]
    assert found[1]["ranks"] == [1, 0]
    # The record tells how far each fit was, whoever led.
    by_step = {row["step"]: row["progress"] for row in ended.metrics}
    assert {step: one["fit"] for step, one in by_step.items()} == {step: 1 + (step > STEPS // 2) for step in by_step}
    assert {one["epochs"] for one in by_step.values()} == {keras_phases.EPOCHS}
    assert {step: one["steps_left"] for step, one in by_step.items()} == {at: -at % (STEPS // 2) for at in by_step}
    done = 2 * keras_phases.EPOCHS * keras_phases.SAMPLES
    assert (by_step[STEPS]["samples_left"], by_step[STEPS]["samples"]) == (0, done)


@SOAK
def test_a_spare_gets_ready_in_each_fit_and_joins_the_second(tmp_path):
    """A spare is ready in the first fit and, anew, in the second, which it joins; the next one ends with the job."""
    ended, found = fitted_twice(
        tmp_path, "-np", 1, "--max", 2, "--spares", 1, schedule={"0": 1, "15": 2}, ready={"5": 1, "13": 2},
        wait={"16": 1},
    )  # fmt: skip
    assert ended.sizes == [1, 1, 2]
    assert [one["state"] for one in ended.all_of("spare") if one["peer"] == 1] == ["ready", "ready", "wanted"]
    for peer in (0, 1):
        assert_fits_as_plain(found[peer])
    assert (found[0]["ranks"], found[1]["ranks"], found.keys()) == ([0, 0], [None, 1], {0, 1})
    (rescale,) = ended.all_of("rescale")
    assert (rescale["parts"]["spawn_s"], rescale["parts"]["ready_s"]) == (0, 0), "the decision waited for no start"


@SOAK
def test_a_joiner_of_the_second_fit_has_the_rate_that_a_rule_has_set_in_the_first(tmp_path):
    """One optimizer with a schedule: what a rule made of it goes on, on a peer too that was not there."""
    ended, found = fitted_twice(tmp_path, "-np", 2, "--max", 2, die=0, wait={"17": 1}, scheduled=1)
    assert ended.sizes == [2, 2, 1, 2]
    assert [event["step"] for event in ended.all_of("set")] == [4]
    expected = 0.1 * 0.5 ** ((STEPS - 5) / 20)
    assert [found[peer]["rate"] for peer in (1, 2)] == [pytest.approx(expected)] * 2
    assert found[2]["weights"] == found[1]["weights"]
    assert [row["learning_rate"] for row in ended.metrics][-1] == pytest.approx(0.1 * 0.5 ** ((STEPS - 6) / 20))


@SOAK
def test_a_job_that_ctrl_c_ends_in_its_second_fit_continues_there(tmp_path):
    """A job that Ctrl-C ends in its second fit continues there, and a joiner passes through the first."""
    first, second, kept = (tmp_path / name for name in ("first", "second", "kept"))
    first.mkdir()
    second.mkdir()
    # The checkpoint is of step 14, in the middle of the first epoch of the second fit.
    words = ["--results", first / "results", "--keep", "[13, 16]", "--schedule", '{"0": 2}']
    with started(first, "-np", 2, "--checkpoints", kept, program="keras_phases.py", arguments=words) as job:
        job.event("checkpoint")
        job.steps(16)
        job.signal(signal.SIGINT)
        ended = job.end(code=130, deadline_s=10)
    assert "ended by Ctrl-C" in ended.output
    manifest = read_manifest(find(kept))
    assert (manifest.phase, manifest.step) == (2, 14)
    assert [event["phase"] for event in ended.all_of("phase")] == [2]

    ended, found = fitted_twice(
        second, "-np", 1, "--max", 2, "--resume", kept, schedule={"0": 1, "16": 2}, wait={"17": 1},
    )  # fmt: skip
    assert ended.sizes == [1, 2]
    assert ended.metrics[0]["step"] == 15, "nothing is done again"
    (phase,) = ended.all_of("phase")
    assert (phase["phase"], phase["peers"]) == (2, [0]), "with which the job begins"
    for peer in (0, 1):
        assert_fits_as_plain(found[peer])
    assert found[0]["ranks"] == [None, 0], "it passed through the first fit too"
    assert found[1]["ranks"] == [None, 1]
