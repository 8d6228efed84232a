"""A Python generator under ``fit``: every peer reads it, and takes its slice of each batch.

One reading goes on over the epochs, as a generator can be read once. What peers know of it beforehand is its first
batch: ``steps_per_epoch`` times the samples of that one make an epoch, whatever the later batches hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.data.fit_data import BatchFormat, FitData, count_of, symbolic
from kungfu.training.data import BatchPlan
from kungfu.training.data.checksums import samples_checksum
from kungfu.training.data.stream import Stream, StreamSampler

__all__ = ["of_generator"]


def of_generator(given: Mapping[str, Any]) -> FitData:
    """Its batches are those of the job at its start.

    Args:
        given: The arguments of ``fit``.

    Cost:
        A peer that joins reads all that the others have read so far.

    Raises:
        UsageError: Nobody says how many steps an epoch has, or it gives nothing that is a batch.
    """
    generator, steps = given["x"], given["steps_per_epoch"]
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(
            f"model.fit(steps_per_epoch={steps!r}) with a generator under kungfu-run: it does not tell how many "
            "batches an epoch has, and can be read once only; say steps_per_epoch, an integer of at least 1"
        )
    batch_format = BatchFormat("a generator")
    batches = map(batch_format.standard, generator)
    first = next(batches, None)
    if first is None:
        raise UsageError("model.fit() was given a generator that gives no batch")

    def read(reading: int, at: int) -> tuple[int, Iterator[Any]]:
        return 0, chain([first], batches)

    samples = steps * count_of(first)
    what = "the generator that model.fit() was given"
    source = Stream(read, samples=samples, is_endless=True, what=what, checksum=samples_checksum)
    epochs = max(0, given["epochs"] - given["initial_epoch"])
    plan = BatchPlan(source, StreamSampler(samples), count_of(first), epochs)
    return FitData(plan, {"seed": -1, "first_batch": samples_checksum(first)}, tf.nest.map_structure(symbolic, first))
