"""Batches by their numbers: those that Keras makes of the data, whichever of them a peer takes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kungfu.keras.evaluation.numbered_batches import numbered_batches
from tests.keras.fitting import Batches, compiled, network, points

SIZE = 8
X, Y = (one[:30] for one in points())
COUNT = 4


KINDS = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": SIZE},
    "tensors": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "batch_size": SIZE},
    "dataset": lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE)},
    "py dataset": lambda: {"x": Batches(X, Y, SIZE)},
}


class Rows(keras.callbacks.Callback):
    """How many samples each batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[np.ndarray] = []

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.found.append(np.asarray(logs["outputs"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [[0, 1], [3], [0, 3], [1, 2, 3]])
def test_a_part_is_those_batches_of_the_whole(kind, numbers):
    model = compiled(network())
    whole, part = Rows(), Rows()
    model.predict(X, batch_size=SIZE, verbose=0, callbacks=[whole])
    batches = numbered_batches(KINDS[kind]())
    assert batches.count == COUNT
    given = batches.part(numbers)
    given.pop("y", None)
    model.predict(**given, verbose=0, callbacks=[part])
    assert len(part.found) == len(numbers)
    for number, found in zip(numbers, part.found, strict=True):
        np.testing.assert_allclose(found, whole.found[number], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_other_data_have_another_checksum_and_steps_limit_the_batches(kind):
    one, again = numbered_batches(KINDS[kind]()), numbered_batches({**KINDS[kind](), "steps": 2})
    assert (again.count, again.checksum) == (2, one.checksum)
    for given in ({"x": X + 1, "batch_size": SIZE}, {"x": X, "batch_size": SIZE + 1}):
        other = numbered_batches({"y": Y, **given})
        assert other.count == COUNT, "of another size there are as many"
        assert other.checksum != one.checksum


@pytest.mark.parametrize(
    "x",
    [
        None,
        tf.data.Dataset.from_tensor_slices(X).batch(SIZE).repeat(),
        tf.data.Dataset.from_tensor_slices(X).batch(SIZE).map(lambda x: x, 2, deterministic=False),
        tf.data.Dataset.from_tensor_slices(X).filter(lambda _: True).batch(SIZE),
        (X[:8] for _ in range(2)),
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        np.zeros((0, 3)),
        {"a": X, "b": X[:4]},
    ],
    ids=["nothing", "without an end", "by chance", "of unknown length", "generator", "ragged", "empty", "uneven"],
)
def test_data_without_numbers_are_left_to_keras(x):
    assert not numbered_batches({"x": x}).count


def test_texts_and_missing_parts_are_data_too():
    batches = numbered_batches({"x": np.array(["a", "bç", "d"], object), "y": None, "batch_size": 2})
    assert batches.part([1])["x"].tolist() == ["d"]
    assert "y" not in batches.part([1])
