"""Data that yield whole batches in sequence, such as a ``tf.data.Dataset`` or a generator.

Every peer reads all batches, and uses its slice. The samples are numbered in their order: sample ``offset`` of epoch
``epoch`` has the number ``epoch * samples + offset``. Samples already read are kept as long as a step may still be
re-sliced, so a rescale reads nothing twice. A joiner reads up to the position of the other peers, or starts there if
the data can be read from any position.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.sampler import StepSlice, sample_numbers

# If a joiner reads fewer batches than this without use, it prints no remark.
_WORTH_A_REMARK = 2


class DataEndedError(UsageError):
    """The data ended before the announced number of samples; raised on every peer at the same step."""


@dataclass(frozen=True)
class StreamSampler:
    """Selects the samples of a stream in the order of their numbers."""

    samples: int

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The numbers of this peer's samples in the step."""
        return sample_numbers(step_slice, self.samples)

    def end_of_step(self, step_slice: StepSlice) -> int:
        """The number of the first sample that follows the samples of all peers in the step."""
        position = step_slice.position
        return position.epoch * self.samples + position.offset + step_slice.step_samples(self.samples)


class Stream:
    """A source of batches in sequence.

    Args:
        read: Begins a reading. Receives the index of the reading, from 0, and the number of the first needed sample,
            counted from the start of the reading. Returns the number of the first sample that will be read (at most the
            first needed one), and the batches: nests of arrays with one entry per sample, the same on all peers.
        is_endless: True if one reading continues over the epochs; otherwise each epoch is a separate reading.
        what: The description of the data for errors and remarks.
        can_seek: True if a reading can begin near a given sample. Otherwise it begins at the start, and all earlier
            readings are begun too, since the order of a reading may depend on the number of readings before.
        checksum: Computes the checksum of a batch, which the peers compare.

    Cost:
        Every peer reads all samples of the job. Unless the data can be read from any position, a joiner reads the
        samples that the others have read in the current epoch, and the beginning of each earlier epoch; if one reading
        continues over the epochs, the joiner reads all samples so far. The joiner reports the time spent.
    """

    def __init__(
        self,
        read: Callable[[int, int], tuple[int, Iterator[Any]]],
        *,
        samples: int,
        is_endless: bool,
        what: str,
        can_seek: bool = False,
        checksum: Callable[[Any], int] | None = None,
    ) -> None:
        self.samples, self.can_seek, self.what = samples, can_seek, what
        self._read, self._is_endless, self._checksum = read, is_endless, checksum
        self._readings = 0  # the readings begun so far
        self._batches: Iterator[Any] = iter(())
        self._chunks: deque[tuple[int, Any]] = deque()  # the kept batches, each with the number of its first sample
        self._next = 0  # the number of the next sample to read
        self._failed: Exception | None = None
        self._left_out = 0  # batches that were read without use, and not counted yet
        self._reached = 0  # the number of the first sample that may still be requested
        self._checksums: dict[int, int] = {}  # of the first batch of each epoch
        self._lock = Lock()  # samples are taken in the loading thread, checksums in the program's thread

    def reach(self, position: Position) -> None:
        """Records, in the program's thread, that all peers are at this position and need no earlier samples."""
        self._reached = self._number(position)

    def lacks(self, position: Position) -> bool:
        """True if a peer that joins at this position must first read the samples that the others have trained on."""
        return not self.can_seek and self._next <= self._number(position)

    def read_ahead(self, position: Position, *, meanwhile: Callable[[], None]) -> int:
        """Reads up to the other peers' position, before this peer joins; returns the number of batches not used."""
        with self._lock:
            self._reached = self._number(position)
            # If the other peers are at the end of the data, they have trained on all of it.
            with suppress(DataEndedError):
                self._read_until(self._reached + 1, meanwhile=meanwhile)
            return self._drain_left_out()

    def _number(self, position: Position) -> int:
        return position.epoch * self.samples + position.offset

    def read_until(self, end: int) -> None:
        """Reads up to and including sample ``end - 1``; raises ``DataEndedError`` if there are no more samples."""
        started = time.monotonic()
        with self._lock:
            self._read_until(end)
            left_out = self._drain_left_out()
        if left_out >= _WORTH_A_REMARK:
            print(
                f"kungfu: this peer read {left_out} batches of {self.what} in {time.monotonic() - started:.1f} s to "
                "come to where training is, as every peer that joins has to",
                file=sys.stderr,
            )

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The samples with these consecutive numbers; raises ``DataEndedError`` if there are no more samples."""
        first, end = int(indices[0]), int(indices[-1]) + 1
        self.read_until(end)
        with self._lock:
            if not self._chunks or first < self._chunks[0][0]:
                raise UsageError(f"{self.what}: sample {first} was asked for again after it had been forgotten")
            pieces = [
                tf.nest.map_structure(lambda array, a=first - at, b=end - at: array[max(0, a) : b], chunk)
                for at, chunk in self._chunks
                if at < end and at + _length(chunk) > first
            ]
        return tf.nest.map_structure(
            lambda *one: tf.convert_to_tensor(np.concatenate(one) if len(one) > 1 else one[0]), *pieces
        )

    def first_batch_of(self, epoch: int) -> int | None:
        """The checksum of an epoch's first batch; ``None`` if the checksum is unknown on this peer.

        Cost: none on a peer that has read that batch; else the batch is read, if reading can begin at any position."""
        with self._lock:
            if self._checksum is None:
                return None
            # This peer joined within the epoch; after the end of the epoch the data may be shuffled again.
            if epoch not in self._checksums and self.can_seek and self._next < (epoch + 1) * self.samples:
                at = epoch * self.samples
                _, batches = self._read(*((0, at) if self._is_endless else (epoch, 0)))
                self._checksums[epoch] = self._checksum(next(batches))
            return self._checksums.get(epoch)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _read_until(self, end: int, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._forget()
        while self._next < end:
            self._read_on(end)
            self._left_out += self._next <= self._reached  # this peer joins: the others have trained on that batch
            self._forget()
            meanwhile()

    def _drain_left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out

    def _forget(self) -> None:
        while self._chunks and self._chunks[0][0] + _length(self._chunks[0][1]) <= self._reached:
            self._chunks.popleft()

    def _read_on(self, end: int) -> None:
        """Reads one more batch; first begins the reading of the epoch that has sample ``end - 1``, if necessary."""
        reading = 0 if self._is_endless else (end - 1) // self.samples
        # For a joiner or a resumed run, the samples in between are not needed.
        if self.can_seek and (self._readings <= reading or self._next < self._reached):
            self._begin(reading)
        while self._readings <= reading:
            self._begin(self._readings)
            if self._readings <= reading:
                next(self._batches, None)
        self._keep(self._next_batch(reading), reading)

    def _begin(self, reading: int) -> None:
        at, start = max(0, self._reached - reading * self.samples), reading * self.samples
        first, self._batches = self._read(reading, at)
        self._readings, self._next = reading + 1, start + first

    def _next_batch(self, reading: int) -> Any:
        if self._failed is not None:  # for a batch that was read ahead, and is now requested again
            raise self._failed
        try:
            batch = next(self._batches, None)
        except Exception as error:
            self._failed = error  # a generator that has raised is exhausted, and would not raise this error again
            raise
        if batch is None:
            raise DataEndedError(
                f"{self.what} ended after {self._next - reading * self.samples} samples of {self.samples}: give one "
                "that has as many in each reading, or .repeat() it and say steps_per_epoch"
            )
        return batch

    def _keep(self, batch: Any, reading: int) -> None:
        epoch = -(-self._next // self.samples)  # the epoch that begins in this batch, if any
        if self._checksum is not None and epoch * self.samples < self._next + _length(batch):
            self._checksums[epoch] = self._checksum(batch)
        if not self._is_endless and (left := (reading + 1) * self.samples - self._next) < _length(batch):
            batch = tf.nest.map_structure(lambda array: array[:left], batch)  # the epoch ends here on all peers
        self._chunks.append((self._next, batch))
        self._next += _length(batch)


def _length(chunk: Any) -> int:
    return len(tf.nest.flatten(chunk)[0])
