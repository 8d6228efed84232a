"""Items that a function makes samples of, by their index, as tf.data would in sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from tests.keras.fitting import SAMPLES, assert_fits_as_arrays, points

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
    assert len(samples) == SAMPLES
    for indices in ([49, 0, 20, 21, 3], np.random.default_rng(0).permutation(SAMPLES)):
        x, y = samples.take(np.array(indices))
        np.testing.assert_array_equal(x, X[indices])
        np.testing.assert_array_equal(y, Y[indices])
    slices = tf.data.Dataset.range(items) if isinstance(items, int) else tf.data.Dataset.from_tensor_slices(items)
    assert samples.sample_spec == slices.map(function).element_spec
    for mine, other in zip(samples.dataset(16), slices.map(function).batch(16), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, mine, other)


def test_files_by_their_names_of_which_only_those_that_are_asked_for_are_read(tmp_path: Path):
    names = [tmp_path / f"{number}.txt" for number in range(6)]
    for number, name in enumerate(names[:4]):
        name.write_text(f"{number} {number**2}")

    def read(name: Any) -> Any:
        row = tf.strings.to_number(tf.strings.split(tf.io.read_file(name)))
        return tf.ensure_shape(row, [2])

    samples = kf.data.mapped(np.array(list(map(str, names))), read)
    assert samples.take(np.array([3, 0, 2])).numpy().tolist() == [[3, 9], [0, 0], [2, 4]]
    with pytest.raises(tf.errors.NotFoundError, match=r"4\.txt"):
        samples.take(np.array([1, 4]))


@pytest.mark.slow
def test_fit_trains_on_them_as_on_arrays():
    assert_fits_as_arrays(kf.data.mapped(SAMPLES, of_number))


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
