"""Items that a function makes samples of, by their index, as tf.data would in sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from tests.keras.fitting import SAMPLES, assert_takes_points, points

X, Y = points()
NUMBERS = np.arange(SAMPLES)


def of_number(number: Any) -> Any:
    return tf.gather(X, number), tf.gather(Y, number)


ITEMS: dict[str, tuple[Any, Any]] = {
    "a number": (SAMPLES, of_number),
    "an array": (NUMBERS, of_number),
    "a tuple": ((X, NUMBERS), lambda x, number: (x, tf.gather(Y, number))),
    "a dictionary": ({"x": X, "y": tf.constant(Y)}, lambda row: (row["x"], row["y"])),
    "a nest": ((X, {"y": Y}), lambda x, row: (x, row["y"])),
}


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize("readers", [1, 8])
def test_samples_are_those_of_tf_data_by_index_whatever_the_number_of_readers(kind, readers):
    items, function = ITEMS[kind]
    samples = kf.data.mapped(items, function, readers=readers)
    assert_takes_points(samples)
    slices = tf.data.Dataset.range(items) if isinstance(items, int) else tf.data.Dataset.from_tensor_slices(items)
    assert samples.sample_spec == slices.map(function).element_spec


@pytest.mark.parametrize(
    ("items", "function", "told"),
    [
        (tf.data.Dataset.range(3), abs, r"what Dataset\.from_tensor_slices\(\) and \.map\(\) would be given"),
        (3, None, "was given int and NoneType"),
        (0, tf.identity, r"arrays of \[0\] entries"),
        ((X, Y[:3]), lambda x, y: (x, y), r"arrays of \[3, 50\] entries"),
        (NUMBERS, tf.ragged.range, r"kf\.data\.mapped\(function\) gives a RaggedTensorSpec"),
        (np.array(["a"]), lambda name: tf.io.decode_image(tf.io.read_file(name)), "of unknown shape"),
    ],
)
def test_what_cannot_be_is_refused(items, function, told):
    with pytest.raises(UsageError, match=told):
        kf.data.mapped(items, function)
    with pytest.raises(UsageError, match=r"kf\.data\.mapped\(readers=0\): must be an integer of at least 1"):
        kf.data.mapped(3, tf.identity, readers=0)
