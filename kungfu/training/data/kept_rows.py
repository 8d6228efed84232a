"""Keeps the loaded rows that may be requested again, from the last batches and from batches loaded ahead.

A rescale cuts the next steps again, and a peer's new slice overlaps with the rows loaded for the old one. So only the
missing rows are loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# The previous step's batch, which is repeated after a loss of peers, the current step's batch, and two loaded ahead.
_BATCHES = 4


class KeptRows:
    """The most recently loaded batches, by the indices of their samples; not thread-safe.

    Cost:
        The memory of four batches, two of which exist anyway; comparing indices takes some microseconds.
    """

    def __init__(self) -> None:
        self._loaded: deque[tuple[int, NDArray[np.int64], Any]] = deque(maxlen=_BATCHES)  # epoch, indices, batch

    def take(self, epoch: int, indices: NDArray[np.int64], load: Callable[[NDArray[np.int64]], Any]) -> Any:
        """Returns the batch of these samples, and loads only rows that are not kept.

        Rows of other epochs are not reused, since each epoch may change the samples at random.
        """
        parts, places, missing = [], [], np.ones(len(indices), bool)
        for its_epoch, its_indices, its_batch in self._loaded:
            if its_epoch == epoch:
                _, here, there = np.intersect1d(indices, its_indices, return_indices=True)
                new = missing[here]
                if new.any():
                    parts.append(tf.nest.map_structure(partial(tf.gather, indices=there[new]), its_batch))
                    places.append(here[new])
                    missing[here] = False
        is_new = bool(missing.any())
        if missing.all():  # the usual case, except after a rescale
            batch = load(indices)
        else:
            if is_new:
                parts.append(load(indices[missing]))
                places.append(np.flatnonzero(missing))
            order = np.argsort(np.concatenate(places))
            batch = tf.nest.map_structure(lambda *leaves: tf.gather(tf.concat(leaves, 0), order), *parts)
        # Slices may be small after a rescale: those taken from kept rows must not displace rows of later slices.
        if is_new:
            self._loaded.append((epoch, indices, batch))
        return batch
