"""Rows of an array as a tensor, copied once: from the array into the memory that the tensor goes on to use."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

__all__ = ["rows"]

# TensorFlow's vector code expects its memory at such addresses, and gives all of its own there.
_ALIGNED_TO_BYTES = 64
_WORTH_IT_BYTES = 1 << 16


def rows(array: NDArray[Any], indices: NDArray[np.int64]) -> Any:
    """``array[indices]`` as a tensor of its own; ``indices`` are within the array, and not negative.

    Where TensorFlow can use NumPy's memory the rows are gathered into such memory: that halves the bytes that are
    copied, and the other half would be copied under Python's lock. Else the rows are gathered, and then copied.
    """
    shape = (len(indices), *array.shape[1:])
    if not _shareable(array) or int(np.prod(shape)) * array.itemsize < _WORTH_IT_BYTES:
        return tf.convert_to_tensor(array[indices])
    gathered = _aligned(shape, array.dtype)
    np.take(array, indices, axis=0, out=gathered, mode="clip")  # to raise, it would gather beside and copy again
    return tf.experimental.dlpack.from_dlpack(gathered.__dlpack__())


def _shareable(array: NDArray[Any]) -> bool:
    """Plain numbers in the machine's own order; an array with gaps NumPy would first copy as a whole."""
    plain = array.dtype.kind in "biuf" and array.dtype.isnative and array.itemsize <= 8
    return plain and array.flags.c_contiguous and array.flags.aligned and not _has_accelerator()


@cache
def _has_accelerator() -> bool:
    """There the batch goes to the device's memory as soon as it is a tensor, in the loading thread."""
    return bool(tf.config.list_logical_devices("GPU"))


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    count = int(np.prod(shape)) * dtype.itemsize
    room = np.empty(count + _ALIGNED_TO_BYTES, np.uint8)
    start = -room.ctypes.data % _ALIGNED_TO_BYTES
    return room[start : start + count].view(dtype).reshape(shape)
