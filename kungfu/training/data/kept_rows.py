"""Rows that were loaded and may be asked for again: the batch in use, and those that were loaded ahead of it.

A rescale cuts the next steps anew, and a peer's new slice overlaps with what it has loaded for the old one. So only the
rows that are missing are loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

__all__ = ["KeptRows"]

# The batch of the step, and the two that the loader is ahead of it.
_BATCHES = 3


@dataclass(frozen=True)
class _Loaded:
    epoch: int
    indices: NDArray[np.int64]
    batch: Any


class KeptRows:
    """The batches that were loaded last, by the indices of their samples; for one thread.

    Cost:
        The memory of three batches, of which two are there anyway; comparing indices takes some microseconds.
    """

    def __init__(self) -> None:
        self._loaded: deque[_Loaded] = deque(maxlen=_BATCHES)

    def take(self, epoch: int, indices: NDArray[np.int64], load: Callable[[NDArray[np.int64]], Any]) -> Any:
        """The batch of these samples.

        Args:
            epoch: Rows of another epoch are not given: they may have been changed at random for that one.
                indices: Of the samples.
            load: Makes a nest of tensors of some of them.
        """
        parts, places, missing = [], [], np.ones(len(indices), bool)
        for one in self._loaded:
            if one.epoch == epoch:
                _, here, there = np.intersect1d(indices, one.indices, return_indices=True)
                new = missing[here]
                if new.any():
                    parts.append(_rows(one.batch, there[new]))
                    places.append(here[new])
                    missing[here] = False
        if missing.all():  # as ever, but after a rescale
            batch = load(indices)
        else:
            if missing.any():
                parts.append(load(indices[missing]))
                places.append(np.flatnonzero(missing))
            order = np.argsort(np.concatenate(places))
            batch = tf.nest.map_structure(lambda *leaves: tf.gather(tf.concat(leaves, 0), order), *parts)
        self._loaded.append(_Loaded(epoch, indices, batch))
        return batch


def _rows(batch: Any, places: NDArray[np.int64]) -> Any:
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, places), batch)
