"""Files that can only be read from their start, such as text: each peer reads one file (a partition) after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kungfu.data.file_index import Files, kept_arrays, paths_of
from kungfu.data.indexed_samples import IndexedSamples, places_of
from kungfu.errors import UsageError
from kungfu.training.data.partition_sampler import PartitionSampler, SequentialSource
from kungfu.training.data.sample_source import stacked
from kungfu.training.data.sampler import Remainder

# The maximum number of open files: the present file, and files that this peer may return to after a rescale.
_MOST_READING = 4


def partitions(
    files: Files,
    read: Callable[[str], Iterable[Any]],
    *,
    index: str | os.PathLike[str] | None = None,
    counts: Sequence[int] | None = None,
) -> PartitionedFiles:
    """The samples of files that are read in sequence, for ``training.batches`` and for Keras' ``fit``.

    Files whose samples cannot be accessed by index (lines, CSV, compressed TFRecords) are partitions, assigned on
    demand: each peer reads a partition from its start to its end, and then gets the next one. The order of the files
    follows from the ``seed`` of the loop. If a peer leaves or is killed, the rest of its partition is assigned
    to another peer. In an epoch each sample is seen once, even if peers join, leave or fail. Within a file the samples
    keep their order, so use many more files than peers, and shuffle the samples of each file beforehand.

    Args:
        files: A file, a pattern, or a list of these; there should be several times as many files as peers.
        read: Receives the name of a file, and returns its samples from the start, each a nest of arrays, as a generator
            or a ``tf.data.Dataset``; must return the same samples each time.
        index: The folder in which the numbers of samples are stored, if they cannot be stored next to the files.
        counts: The number of samples of each file, if known; then no file is read to count its samples.

    Returns:
        The samples. ``dataset(batch_size)`` returns them as a ``tf.data.Dataset``, for ``evaluate``.

    Raises:
        UsageError: A file is missing, or the numbers of samples cannot be stored. Also raised later, if a file yields
            more or fewer samples than counted.

    Cost:
        The first process that needs the numbers reads each file once, to count its samples, while other processes wait.
        A peer that takes over a partition in the middle first reads it up to that position, and the others wait,
        however long that takes.

    On rescale:
        A peer continues with its file; a joiner gets the next file.

    Reference:
        Wu et al., *Elastic deep learning in multi-tenant GPU cluster*, section 5.3.

    >>> import kungfu as kf
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name, numbers in {"a.txt": "1 2 3", "b.txt": "4 5"}.items():
    ...         _ = Path(folder, name).write_text(numbers)
    ...     len(kf.data.partitions(f"{folder}/*.txt", lambda name: map(float, Path(name).read_text().split())))
    5
    """
    paths = paths_of(files, "partitions")
    if counts is None:
        folder = None if index is None else Path(index)
        counts = [_count_of(path, folder, read) for path in paths]
    if len(counts) != len(paths) or not all(isinstance(one, int | np.integer) and one >= 0 for one in counts):
        raise UsageError(f"kf.data.partitions(counts=...): {len(paths)} files, so as many numbers, none below 0")
    if not sum(counts):
        raise UsageError(f"kf.data.partitions(): the {len(paths)} files hold no sample")
    return PartitionedFiles(paths, [int(one) for one in counts], read)


def _count_of(path: Path, folder: Path | None, read: Callable[[str], Iterable[Any]]) -> int:
    found = kept_arrays(path, folder, "count", lambda: {"count": np.array([sum(1 for _ in read(str(path)))])})
    return int(found["count"][0])


class PartitionedFiles(IndexedSamples, SequentialSource):
    """The samples of files that are read in sequence; see `partitions`."""

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], read: Callable[[str], Iterable[Any]]) -> None:
        self._paths, self._counts, self._read = list(paths), list(counts), read
        self._ends = np.cumsum(self._counts)
        self._reading: dict[int, _Reading] = {}  # by file number, the most recently used last
        self.passed = 0

    @property
    def samples(self) -> int:
        """The number of samples of all files."""
        return int(self._ends[-1])

    def apart(self) -> PartitionedFiles:
        """The same samples with separate readers, for a validation that runs in another thread than the training."""
        return PartitionedFiles(self._paths, self._counts, self._read)

    def make_sampler(self, seed: int | None, remainder: Remainder) -> PartitionSampler:
        """The sampler for these samples, which assigns consecutive rows of a few files to each peer."""
        return PartitionSampler(self._counts, seed, remainder)

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The samples with these indices, stacked in this order; each file is read in the order of its rows."""
        places = self._places(indices)
        # Read in the order of the file: if peers share a file, a step's first sample may be in a later row.
        found = {place: self._row(*place) for place in sorted(set(places))}
        return stacked([found[place] for place in places])

    def read_to(self, indices: NDArray[np.int64]) -> None:
        """Reads each file up to its first sample in `indices`, so that a later `take` of them is not delayed."""
        for file, row in dict(sorted(self._places(indices), reverse=True)).items():
            if row:
                self._pass(file, row)

    def _places(self, indices: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The file number of each sample, and its row in the file."""
        files, rows = places_of(indices, self._ends)
        return list(zip(files.tolist(), rows.tolist(), strict=True))

    def _row(self, file: int, row: int) -> Any:
        self._pass(file, row)
        sample = self._next(file)
        if sample is None or (row + 1 == self._counts[file] and self._next(file) is not None):
            raise UsageError(
                f"kf.data.partitions(): {self._paths[file]} gave {'fewer' if sample is None else 'more'} samples than "
                f"the {self._counts[file]} that were counted: read= has to give the same ones each time; if it is "
                "another function now, remove the hidden file in which their number is kept"
            )
        return sample[0]

    def _pass(self, file: int, row: int) -> None:
        """Reads a file up to a row, or to its end if that is earlier."""
        reading = self._reading.pop(file, None)
        # The file is not open, or is read beyond this row.
        if reading is None or reading.at > row:
            reading = _Reading(iter(self._read(str(self._paths[file]))))
        self._reading[file] = reading
        if len(self._reading) > _MOST_READING:
            self._reading.pop(next(iter(self._reading)))
        while reading.at < row and self._next(file) is not None:
            self.passed += 1

    def _next(self, file: int) -> tuple[Any] | None:
        """The next sample of a file that is being read; ``None`` after its end."""
        reading = self._reading[file]
        try:
            found = next(reading.rows, reading)
        except BaseException:
            del self._reading[file]  # a generator that raised has ended, and would only raise StopIteration
            raise
        if found is reading:
            return None
        reading.at += 1
        return (found,)


@dataclass
class _Reading:
    """A file that is being read: the iterator over its rows, and the number of the next row."""

    rows: Iterator[Any]
    at: int = 0
