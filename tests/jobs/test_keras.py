"""Keras' ``fit`` under kungfu-run, against plain Keras on the same batches."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest

from kungfu.runtime.core.sample_slices import shuffled
from tests.jobs.harness import fit_job, ran
from tests.jobs.programs import keras_fit, keras_losses
from tests.keras.fitting import float64
from tests.soak import SOAK

EPOCHS = 4
RELATIVE = 1e-8
fitted = partial(fit_job, "keras_fit.py")


def orders(kind: str, epochs: int) -> list[np.ndarray]:
    """The samples of each epoch, in the order in which a job of this kind of data trains on them."""
    if kind in ("arrays", "losses"):
        samples = keras_fit.SAMPLES if kind == "arrays" else keras_losses.UNEVEN
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


def plain(epochs: int, *, kind: str = "arrays") -> tuple[dict[str, list[float]], list[np.ndarray]]:
    """History and weights of Keras alone, a batch of the job after the other, in the job's order."""
    with float64():
        (x, y), more, (model, _), _ = keras_fit.parts(kind == "losses")
        weights = more.get("sample_weight")
        history: dict[str, list[float]] = {}
        batch_size = keras_fit.GIVEN if kind == "generator" else keras_fit.BATCH
        for order in orders(kind, epochs):
            model.optimizer.learning_rate = float(model.optimizer.learning_rate) * keras_fit.DECAY
            found = model.fit(
                x[order], {name: one[order] for name, one in y.items()}, batch_size=batch_size, shuffle=False,
                sample_weight=weights and {name: one[order] for name, one in weights.items()},
                verbose=0, validation_data=(x[:20], {name: one[:20] for name, one in y.items()}),
            )  # fmt: skip
            for name, values in found.history.items():
                history.setdefault(name, []).extend(values)
        compared = model.trainable_variables if kind == "losses" else model.weights
        return history, [np.asarray(one).ravel() for one in compared]


def assert_as_plain(found: dict[str, Any], epochs: int = EPOCHS, *, kind: str = "arrays") -> None:
    """History and weights of a peer that stayed to the end are those of plain Keras."""
    history, weights = plain(epochs, kind=kind)
    assert found["epochs"] == list(range(epochs))
    assert found["history"].keys() == {*history, "learning_rate"}
    for name, values in history.items():
        tolerance = 1e-6 if "seen" in name else RELATIVE  # that metric is of float32
        np.testing.assert_allclose(found["history"][name], values, rtol=tolerance, err_msg=name)
    for one, other in zip(found["weights"], weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=RELATIVE)


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
    assert stayed["seen"] == [[1.0] * keras_losses.UNEVEN] * epochs
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
