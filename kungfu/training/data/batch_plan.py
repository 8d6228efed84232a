"""The data of a run and their order: source, sampler, batch size, epochs, and the split into micro-batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.runtime.api import Stamp
from kungfu.training.data.partition_sampler import SequentialSource
from kungfu.training.data.sample_source import Arrays, SampleSource, as_source
from kungfu.training.data.sampler import Remainder, Sampler, SerialSampler, StepSlice
from kungfu.training.data.stream import Stream, StreamSampler

# The batches of the previous step (repeated after a loss of peers) and of the current step, and two loaded ahead.
_BATCHES = 4


class KeptRows:
    """The most recently loaded batches, by the indices of their samples; not thread-safe.

    After a rescale the next steps are sliced again. A new slice overlaps with rows that are already loaded, so only
    its missing rows are loaded.

    Cost:
        The memory of four batches (loading ahead keeps two of them anyway), and some microseconds to compare indices.
    """

    def __init__(self) -> None:
        self._loaded: deque[tuple[int, NDArray[np.int64], Any]] = deque(maxlen=_BATCHES)  # epoch, indices, batch

    def take(self, epoch: int, indices: NDArray[np.int64], load: Callable[[NDArray[np.int64]], Any]) -> Any:
        """Returns the batch of these samples, and loads only rows that are not kept here.

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
        # A slice may be small after a rescale: a batch made of kept rows alone must not displace rows of later slices.
        if is_new:
            self._loaded.append((epoch, indices, batch))
        return batch


@dataclass(frozen=True)
class MicroBatch:
    """The batch of one call of the step: number ``micro`` of ``micros`` micro-batches of a step's slice."""

    step_slice: StepSlice
    micro: int = 0
    micros: int = 1


@dataclass(frozen=True)
class BatchPlan:
    """The data of a run and their order.

    Args:
        source: Returns samples by their index.
        batch_size: The initial number of samples per step of the whole job.
        max_local_batch_size: The maximum number of samples in one call of the step; a larger share is split.
        described: The values that must be equal on all peers and in a resumed run. ``seed``: the seed of the order, -1
            for the data's order. ``first_batch``: a checksum, if each peer reads all of the data. ``targets`` and
            ``weights``: checksums of their order, if peers share samples of arrays by index. ``validation``: in
            ``fit``, a checksum of the validation data, -1 if their order changes with each reading.
        kept_rows: The most recently loaded rows, for steps that are sliced again; used in the loading thread only.

    On rescale:
        A micro-batch records the view for which it was made; if the view changes, the step is sliced again.
    """

    source: SampleSource
    sampler: Sampler
    batch_size: int
    epochs: int
    remainder: Remainder = "keep"
    max_local_batch_size: int | None = None
    described: Mapping[str, int] = field(default_factory=dict)
    kept_rows: KeptRows = field(default_factory=KeptRows, compare=False)

    @property
    def samples(self) -> int:
        """The number of samples in an epoch; the source may contain fewer or more."""
        return self.sampler.samples

    def first_batch_of(self, epoch: int) -> int:
        """The checksum of the first batch of an epoch, counted from 0; -1 if unknown, or if batches differ by peer."""
        if epoch >= self.epochs or not isinstance(self.source, Stream):
            return -1
        known = self.source.first_batch_of(epoch)
        return -1 if known is None else known

    def micro_batch(self, step_slice: StepSlice, *, micro: int = 0) -> MicroBatch:
        """A micro-batch of a step's slice. The largest share determines the number of micro-batches on all peers."""
        most = self.max_local_batch_size
        # Rounded up, and at least one: every peer calls its step.
        micros = 1 if most is None else max(1, -(-step_slice.largest_share(self.samples) // most))
        return MicroBatch(step_slice, micro, micros)

    def following(self, micro_batch: MicroBatch) -> MicroBatch | None:
        """Predicts the next micro-batch, assuming an unchanged view and batch size; ``None`` after the last epoch."""
        if micro_batch.micro + 1 < micro_batch.micros:  # samples of the share are left
            return replace(micro_batch, micro=micro_batch.micro + 1)
        # The next step, possibly in the next epoch; none after the last epoch.
        after = micro_batch.step_slice.after(self.samples, remainder=self.remainder)
        return None if after.position.epoch >= self.epochs else self.micro_batch(after)

    def indices(self, micro_batch: MicroBatch) -> NDArray[np.int64]:
        """The indices of a micro-batch's samples. The first micro-batches are full, so the last ones may be empty."""
        share, most = self.sampler.indices(micro_batch.step_slice), self.max_local_batch_size
        return share if most is None else share[micro_batch.micro * most : (micro_batch.micro + 1) * most]

    def stamp(self, micro_batch: MicroBatch) -> Stamp:
        """The position, view and micro-batch of a batch, which the step compares with the run's position."""
        position, empty = micro_batch.step_slice.position, not len(self.indices(micro_batch))
        version = micro_batch.step_slice.version
        return Stamp(position.epoch, position.offset, version, micro_batch.micro, micro_batch.micros, empty)

    def load(self, micro_batch: MicroBatch) -> Any:
        """Loads the tensors of a micro-batch from the source.

        Raises:
            Exception: The error of the user's loading code, with a note that identifies the samples.

        Undefined:
            An empty micro-batch receives one sample of rank 0: layers need at least one sample to run.
        """
        indices = self.indices(micro_batch)
        # Rank 0 has the largest share of the step, so it has a sample.
        if not len(indices):
            indices = self.sampler.indices(replace(micro_batch.step_slice, rank=0))[:1]
        try:
            # Every peer reads to the end of the step, so all peers find the end of the data at the same step.
            if isinstance(self.source, Stream) and isinstance(self.sampler, StreamSampler):
                self.source.read_until(self.sampler.end_of_step(micro_batch.step_slice))
            # Other peers wait only for this peer's first micro-batch, so every part of the share is reached now.
            if isinstance(self.source, SequentialSource) and micro_batch.micro == 0 and micro_batch.micros > 1:
                self.source.read_to(self.sampler.indices(micro_batch.step_slice))
            # A stream keeps its samples, and arrays are in memory, so these rows need no further copy.
            if isinstance(self.source, Stream | Arrays):
                return self.source.take(indices)
            return self.kept_rows.take(micro_batch.step_slice.position.epoch, indices, self.source.take)
        except Exception as error:
            # The user's code failed: keeps its error, and adds a note on the samples.
            position = micro_batch.step_slice.position
            error.add_note(
                f"training.batches(): while loading {len(indices)} samples with indices between {indices.min()} and "
                f"{indices.max()} (the first is {indices[0]}), for the step at sample {position.offset} of epoch "
                f"{position.epoch}"
            )
            raise


def make_batch_plan(
    data: Any,
    *,
    batch_size: int,
    epochs: int,
    seed: int,
    samples: int | None = None,
    load: Callable[[Any], Any] | None = None,
    readers: int = 1,
    remainder: Remainder = "keep",
    max_local_batch_size: int | None = None,
) -> BatchPlan:
    """Makes the plan for the arguments of ``training.batches``; raises ``UsageError`` for invalid arguments."""
    source = as_source(data, load=load, samples=samples, readers=readers)
    numbers = [("batch_size", batch_size, 1), ("epochs", epochs, 0), ("seed", seed, 0)]
    if max_local_batch_size is not None:
        numbers.append(("max_local_batch_size", max_local_batch_size, 1))
    for name, value, least in numbers:
        # NumPy integers are accepted like Python's.
        if not isinstance(value, int | np.integer) or value < least:
            raise UsageError(f"training.batches({name}={value!r}): must be an integer of at least {least}")
    # A step ends with its epoch, so it cannot have more samples than the epoch.
    if batch_size > source.samples:
        raise UsageError(f"training.batches(batch_size={batch_size}): the data has only {source.samples} samples")
    if remainder not in get_args(Remainder):
        raise UsageError(f"training.batches(remainder={remainder!r}): must be one of {', '.join(get_args(Remainder))}")
    make_sampler = getattr(source, "make_sampler", None)  # of a source that requires a certain order
    sampler = SerialSampler(source.samples, int(seed)) if make_sampler is None else make_sampler(seed, remainder)
    # Peers share samples of arrays by index.
    order = {"targets": source.order_checksum()} if isinstance(source, Arrays) else {}
    described = {"seed": int(seed), **order}
    return BatchPlan(source, sampler, int(batch_size), int(epochs), remainder, max_local_batch_size, described)
