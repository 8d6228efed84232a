"""Data that can only be read from its start, such as a ``tf.data.Dataset``: every peer reads all, and takes its slice.

The samples are numbered as they come: sample ``offset`` of epoch ``epoch`` is number ``epoch * samples + offset``. What
was read is kept as long as a step may still be cut anew; a peer that joins reads on to where the others are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.errors import UsageError
from kungfu.runtime.api import Position
from kungfu.training.data.sampler import SerialSampler, StepSlice

__all__ = ["Stream", "StreamSampler"]


@dataclass(frozen=True)
class StreamSampler:
    """The samples of a stream in the order in which they come, by their numbers."""

    samples: int

    def indices(self, step_slice: StepSlice) -> NDArray[np.int64]:
        """The slice of this peer's rank."""
        return self._serial().indices(step_slice) + step_slice.position.epoch * self.samples

    def largest_share(self, step_slice: StepSlice) -> int:
        """That of rank 0."""
        return self._serial().largest_share(step_slice)

    def after(self, step_slice: StepSlice) -> StepSlice:
        """The samples of all peers further on, or at the start of the next epoch."""
        return self._serial().after(step_slice)

    def _serial(self) -> SerialSampler:
        return SerialSampler(self.samples, None)


class Stream:
    """A source that is read forward only.

    Args:
        read: Begins to read, and gives batches: nests of arrays with one entry a sample. It gives the same ones on all
            peers that call it for the same time.
        samples: Those of an epoch.
        is_endless: Whether one reading goes on over the epochs; else each epoch is a reading of its own.
        what: The data in words, for errors.

    Cost:
        Every peer reads all samples. One that joins reads what the others have read in that epoch, and the beginning of
        each epoch before it; where one reading goes on over the epochs, all that they have read.
    """

    def __init__(self, read: Callable[[], Iterator[Any]], *, samples: int, is_endless: bool, what: str) -> None:
        self.samples = samples
        self._read, self._is_endless, self._what = read, is_endless, what
        self._readings = 0  # begun so far
        self._batches: Iterator[Any] = iter(())
        self._chunks: deque[tuple[int, Any]] = deque()  # what is kept, by the number of its first sample
        self._next = 0  # the number of the sample that comes next
        self._reached = 0  # the number of the first sample that may be asked for again

    def reach(self, position: Position) -> None:
        """All peers are at this position, from the program's thread: samples before it are not asked for again."""
        self._reached = position.epoch * self.samples + position.offset

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The samples with these numbers, which follow one another."""
        first, end = int(indices[0]), int(indices[-1]) + 1
        self._forget()
        while self._next < end:
            self._read_on(end)
            self._forget()
        if not self._chunks or first < self._chunks[0][0]:
            raise UsageError(f"{self._what}: sample {first} was asked for again after it had been forgotten")
        pieces = [
            tf.nest.map_structure(lambda array, a=first - at, b=end - at: array[max(0, a) : b], chunk)
            for at, chunk in self._chunks
            if at < end and at + _length(chunk) > first
        ]
        return tf.nest.map_structure(lambda *arrays: tf.convert_to_tensor(np.concatenate(arrays)), *pieces)

    def _forget(self) -> None:
        while self._chunks and self._chunks[0][0] + _length(self._chunks[0][1]) <= self._reached:
            self._chunks.popleft()

    def _read_on(self, end: int) -> None:
        """Reads a batch more, or begins the reading of the epoch that sample ``end - 1`` is in."""
        reading = 0 if self._is_endless else (end - 1) // self.samples
        while self._readings <= reading:
            # Each reading is begun on every peer, as the order of a later one may follow from how many there were.
            self._batches = self._read()
            self._readings += 1
            self._next = (self._readings - 1) * self.samples
            if self._readings <= reading:
                next(self._batches, None)
        chunk = next(self._batches, None)
        if chunk is None:
            raise UsageError(
                f"{self._what} ended after {self._next - reading * self.samples} samples of {self.samples}: give one "
                "that has as many in each reading, or .repeat() it and say steps_per_epoch"
            )
        if not self._is_endless and (left := (reading + 1) * self.samples - self._next) < _length(chunk):
            chunk = tf.nest.map_structure(lambda array: array[:left], chunk)  # the epoch ends here on all peers
        self._chunks.append((self._next, chunk))
        self._next += _length(chunk)


def _length(chunk: Any) -> int:
    return len(tf.nest.flatten(chunk)[0])
