"""Rows that were loaded and may be requested again: those of the last batches, and of those loaded ahead.

A rescale cuts the next steps again, and a peer's new slice overlaps with what it has loaded for the old one. So only
the rows that are missing are loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# The batch of the step before, which is done again where peers were lost in it, that of the step, and the two ahead.
_BATCHES = 4


@dataclass(frozen=True)
class _Loaded:
    epoch: int
    indices: NDArray[np.int64]
    batch: Any


class KeptRows:
    """The batches that were loaded last, by the indices of their samples; for one thread.

    Cost:
        The memory of four batches, of which two are there anyway; comparing indices takes some microseconds.
    """

    def __init__(self) -> None:
        self._loaded: deque[_Loaded] = deque(maxlen=_BATCHES)

    def take(self, epoch: int, indices: NDArray[np.int64], load: Callable[[NDArray[np.int64]], Any]) -> Any:
        """The batch of these samples.

        Args:
            epoch: Rows of another epoch are not given: they may have been changed at random for that one.
            indices: The indices of the samples.
            load: Makes a nest of tensors of some of them.
        """
        parts, places, missing = [], [], np.ones(len(indices), bool)
        for one in self._loaded:
            if one.epoch == epoch:
                _, here, there = np.intersect1d(indices, one.indices, return_indices=True)
                new = missing[here]
                if new.any():
                    parts.append(tf.nest.map_structure(partial(tf.gather, indices=there[new]), one.batch))
                    places.append(here[new])
                    missing[here] = False
        is_new = bool(missing.any())
        if missing.all():  # as ever, but after a rescale
            batch = load(indices)
        else:
            if is_new:
                parts.append(load(indices[missing]))
                places.append(np.flatnonzero(missing))
            order = np.argsort(np.concatenate(places))
            batch = tf.nest.map_structure(lambda *leaves: tf.gather(tf.concat(leaves, 0), order), *parts)
        # After a rescale slices may be small: those cut out of what is kept must not displace rows of the next ones.
        if is_new:
            self._loaded.append(_Loaded(epoch, indices, batch))
        return batch
