"""``fit`` with a generator: every peer reads it, and takes its slice of each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.data.fit_data import fit_data
from kungfu.runtime.api import Position
from kungfu.training.data.sampler import StepSlice
from tests.keras import fitting

X, Y = fitting.points()


def endless(size: int = 10) -> Iterator[Any]:
    """Batches of the points in an order of each pass."""
    draw = np.random.default_rng(3)
    while True:
        order = draw.permutation(fitting.SAMPLES)
        for start in range(0, fitting.SAMPLES, size):
            yield X[order[start : start + size]], Y[order[start : start + size]]


def taken(plan: Any, position: Position, *, size: int = 1, rank: int = 0) -> Any:
    plan.source.reach(position)
    return plan.load(plan.micro_batch(StepSlice(position, 1, size, rank, plan.batch_size)))


@pytest.mark.slow
def test_it_is_trained_on_as_by_keras_over_epochs_that_end_within_a_pass():
    fitting.assert_as_keras(fitting.network, endless, steps_per_epoch=3, epochs=4)


@pytest.mark.slow
def test_one_that_ends_early_ends_training_there_as_by_keras(capsys):
    def ending() -> Iterator[Any]:
        yield from ((X[start : start + 10], Y[start : start + 10]) for start in range(0, 50, 10))

    model, ended = fitting.compiled(fitting.network()), []

    ending_epochs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ended.append(epoch))
    history = fitting.in_job(model, ending(), steps_per_epoch=3, epochs=9, callbacks=[ending_epochs])
    assert int(model.optimizer.iterations) == 5
    assert history.epoch == ended == [0, 1]
    assert "fit() ends before its last epoch: the generator that model.fit() was given ended" in capsys.readouterr().err


def test_peers_share_each_batch_and_a_joiner_reads_to_its_place():
    one, other = (fitting.plan_of(endless(), steps_per_epoch=4, epochs=3) for _ in range(2))
    assert one.described == other.described
    assert (one.samples, one.batch_size) == (40, 10)
    whole = [taken(one, Position(epoch, offset))[1].numpy() for epoch in (0, 1) for offset in range(0, 40, 10)]
    slices = [taken(other, Position(1, 20), size=3, rank=rank)[1].numpy() for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(slices), whole[6])
    assert other.first_batch_of(1) == one.first_batch_of(1) != one.first_batch_of(0)


def first_batch(x: Any, *targets: Any, given: Any = None) -> int:
    """That which is compared, of a generator or a Dataset."""
    if given == "Dataset":
        read = tf.data.Dataset.from_tensors((x, *targets))
        return fitting.plan_of(read).described["first_batch"]
    read = (one for one in [(x, *targets)])
    return fitting.plan_of(read, steps_per_epoch=1).described["first_batch"]


@pytest.mark.parametrize("given", ["generator", "Dataset"])
def test_inputs_may_be_changed_at_random_where_targets_tell_which_samples_these_are(given):
    noisy, order = X + 1.0, np.random.default_rng(1).permutation(len(X))
    kinds, weights = np.arange(len(X)) % 3, np.arange(len(X)) / 10
    for targets in [(Y,), (kinds,), ({"value": Y, "kind": kinds},), (Y, weights)]:
        told = first_batch(X, *targets, given=given)
        assert first_batch(noisy, *targets, given=given) == told
        assert first_batch(X[order], *tf.nest.map_structure(lambda one: one[order], targets), given=given) != told
    # Rare ones, and few samples, could be the same in another order.
    rare = np.eye(len(X), dtype=int)[7]
    for x, targets in [(X, (rare,)), (X[:4], (Y[:4],)), (X, ())]:
        assert first_batch(x + 1.0, *targets, given=given) != first_batch(x, *targets, given=given)


def test_texts_dictionaries_and_several_inputs_are_batches():
    def texts() -> Iterator[Any]:
        for word in ("a", "bc"):
            yield (
                {"text": np.array([word, f"{word}!"]), "size": np.array([[1], [2]])},
                [np.zeros((2, 1)), np.ones((2, 1))],
            )

    plan, symbolic, _ = fit_data(fitting.arguments(x=texts(), steps_per_epoch=1, epochs=2), seed=0)
    assert symbolic[0]["text"].dtype == "string"
    x, y = taken(plan, Position(1, 0))
    assert x["text"].numpy().tolist() == [b"bc", b"bc!"]
    assert x["size"].numpy().tolist() == [[1], [2]]
    assert [one.shape for one in y] == [(2, 1), (2, 1)]
