"""Samples in TFRecord files, read by their index.

A TFRecord file is a sequence of records: eight bytes of length, four of checksum, the content, four of checksum. So the
offset of a record follows from the lengths of all records before it, and computing an index of the offsets takes one
pass over the lengths; `file_index` stores the index in a file.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.data.file_index import Files, kept_arrays, paths_of
from kungfu.data.indexed_samples import IndexedSamples, places_of, spec_of
from kungfu.errors import UsageError
from kungfu.training.data.sample_source import refuse_readers

_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x78\x01": "zlib", b"\x78\x9c": "zlib", b"\x78\xda": "zlib"}
_MOST_OPEN = 64  # open files
_WORTH_A_THREAD = 8  # records; fewer are read faster than a thread starts


def tfrecords(
    files: Files,
    parse: Callable[[Any], Any],
    *,
    index: str | os.PathLike[str] | None = None,
    readers: int = 4,
) -> TFRecords:
    """The records of TFRecord files as samples, for ``training.batches`` and for Keras' ``fit``.

    Samples are accessed by index in the job's shuffled order, so a peer reads only the samples that it trains on, and
    no shuffle buffer is needed. For this, the library stores an index of each file, 16 bytes per record, in a hidden
    file next to the file.

    Args:
        files: A file, a pattern (``"train-*.tfrecord"``), or a list of these. The samples are numbered in the order of
            the list; the files of a pattern are ordered by name.
        parse: Turns one serialized record, a scalar string tensor, into a nest of tensors of fixed shapes, as in
            ``dataset.map(parse)``; it is traced once. For ``fit`` it returns ``x``, ``(x, y)`` or
            ``(x, y, sample_weight)``.
        index: The folder of the indices, if they cannot be stored next to the files.
        readers: The number of threads that read records of a batch in parallel.

    Returns:
        The samples. ``dataset(batch_size)`` returns them as a ``tf.data.Dataset``, for ``evaluate``.

    Raises:
        UsageError: A file is missing, compressed, truncated or not a TFRecord file, or an index cannot be written.

    Cost:
        The first process that needs the index reads the lengths of all records, about a second for a million, while
        other processes wait. After that, each record costs one read and one run of ``parse``.

    >>> import kungfu as kf, tensorflow as tf
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> path = folder.name + "/squares.tfrecord"
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     for number in range(5):
    ...         writer.write(tf.io.serialize_tensor(tf.constant(float(number))).numpy())
    >>> def parse(record):
    ...     number = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [])
    ...     return number, number**2
    >>> squares = kf.data.tfrecords(path, parse)
    >>> len(squares)
    5
    >>> squares.take(np.array([3, 1]))[1].numpy().tolist()
    [9.0, 1.0]
    >>> folder.cleanup()
    """
    refuse_readers(readers, of="kf.data.tfrecords")
    paths = paths_of(files, "tfrecords")
    folder = None if index is None else Path(index)
    return TFRecords(paths, [record_index(path, folder) for path in paths], parse, readers=readers)


class TFRecords(IndexedSamples):
    """The records of TFRecord files, each parsed into a sample; see `tfrecords`."""

    def __init__(
        self, paths: Sequence[Path], indices: Sequence[RecordIndex], parse: Callable[[Any], Any], *, readers: int
    ) -> None:
        self._paths, self._indices, self._readers = list(paths), list(indices), readers
        self._ends = np.cumsum([len(one) for one in indices])
        if not self.samples:
            raise UsageError(f"kf.data.tfrecords(): the {len(self._paths)} files hold no record")
        parsed = tf.data.Dataset.from_tensors(tf.constant(b"")).map(parse)
        self.sample_spec = spec = spec_of(parsed, of="kf.data.tfrecords(parse=...)")
        self._parse = tf.function(
            lambda records: tf.map_fn(parse, records, fn_output_signature=spec),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        self._open: dict[int, int] = {}  # descriptors by file number
        self._lock = Lock()  # held while the loader or an evaluation reads a batch

    def __del__(self) -> None:
        for descriptor in getattr(self, "_open", {}).values():
            os.close(descriptor)

    @property
    def samples(self) -> int:
        """The number of records."""
        return int(self._ends[-1])

    def take(self, indices: NDArray[np.int64]) -> Any:
        """The samples with these indices, stacked."""
        with self._lock:
            records = self._read(np.asarray(indices, np.int64))
        return self._parse(tf.constant(records, tf.string))

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _read(self, indices: NDArray[np.int64]) -> list[bytes]:
        """The contents of the records with these indices; each thread reads a contiguous part in the files' order."""
        files, records = places_of(indices, self._ends)
        self._open_only(set(files.tolist()))
        order = np.lexsort((records, files))
        parts = np.array_split(order, min(self._readers, max(1, len(order) // _WORTH_A_THREAD)))
        contents: list[bytes] = [b""] * len(indices)

        def read(part: NDArray[np.int64]) -> None:
            for place in part.tolist():
                contents[place] = self._content(int(files[place]), int(records[place]))

        if len(parts) == 1:
            read(parts[0])
        else:
            with ThreadPoolExecutor(len(parts), "kungfu-records") as pool:
                list(pool.map(read, parts))
        return contents

    def _open_only(self, files: set[int]) -> None:
        """Opens the files of a batch; if too many files are open, first closes all files of other batches."""
        if len(self._open) > _MOST_OPEN:
            for file in self._open.keys() - files:
                os.close(self._open.pop(file))
        for file in files - self._open.keys():
            self._open[file] = os.open(self._paths[file], os.O_RDONLY)

    def _content(self, file: int, record: int) -> bytes:
        at, length = int(self._indices[file].offsets[record]), int(self._indices[file].lengths[record])
        found = os.pread(self._open[file], _HEADER_BYTES + length + _FOOTER_BYTES, at)
        whole = len(found) == _HEADER_BYTES + length + _FOOTER_BYTES
        if not whole or int.from_bytes(found[:8], "little") != length:
            raise UsageError(
                f"kf.data.tfrecords(): {self._paths[file]} has changed since its index was read: record {record} is "
                f"not at byte {at} any more; leave the files as they are while a job trains on them"
            )
        return found[_HEADER_BYTES : _HEADER_BYTES + length]


# ---- the index of a file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordIndex:
    """The index of the records of one file.

    Args:
        offsets: The offset of each record; a record begins with its length.
        lengths: The number of content bytes of each record.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)


def record_index(path: Path, folder: Path | None = None) -> RecordIndex:
    """The index of a file; computed if no valid index is stored.

    Args:
        folder: The folder of the index; ``None`` for the folder of the file.

    Raises:
        UsageError: The file is missing, truncated, damaged, compressed or not a TFRecord file, or the index cannot be
            written.

    Cost:
        Computing the index takes one pass over the lengths, about a second for a million records. The index takes 16
        bytes per record on disk.
    """
    found = kept_arrays(path, folder, "index", lambda: _scanned(path))
    return RecordIndex(found["offsets"], found["lengths"])


def _scanned(path: Path) -> dict[str, NDArray[np.int64]]:
    size = path.stat().st_size
    if not size:
        return {"offsets": np.zeros(0, np.int64), "lengths": np.zeros(0, np.int64)}
    offsets: list[int] = []
    lengths: list[int] = []
    at = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        _refuse_others(content[:_HEADER_BYTES], path)
        while at < size:
            header = content[at : at + _HEADER_BYTES]
            length = struct.unpack_from("<Q", header)[0] if len(header) == _HEADER_BYTES else 0
            end = at + _HEADER_BYTES + length + _FOOTER_BYTES
            if end > size:
                raise _torn(path, number=len(offsets), at=at, header=header, size=size)
            offsets.append(at)
            lengths.append(length)
            at = end
    return {"offsets": np.array(offsets, np.int64), "lengths": np.array(lengths, np.int64)}


def _refuse_others(header: bytes, path: Path) -> None:
    """Raises ``UsageError`` unless the checksum of the first record's length shows that this is a TFRecord file."""
    if len(header) == _HEADER_BYTES and _is_header(header):
        return
    if kind := _COMPRESSED.get(header[:2]):
        raise UsageError(
            f"kf.data.tfrecords(): {path} is compressed ({kind}): no place in it can be read but from its start; write "
            "it without compression, or compress the contents of its records"
        )
    raise UsageError(f"kf.data.tfrecords(): {path} is no TFRecord file: it begins with {header!r}")


def _torn(path: Path, *, number: int, at: int, header: bytes, size: int) -> UsageError:
    if len(header) < _HEADER_BYTES or _is_header(header):
        return UsageError(
            f"kf.data.tfrecords(): {path} is truncated: record {number} begins at byte {at} and does not end within "
            f"its {size} bytes; copy the file anew, or write it to its end"
        )
    return UsageError(
        f"kf.data.tfrecords(): {path} is damaged: at byte {at}, where record {number} should begin, its length does "
        "not match its checksum; copy the file anew"
    )


def _is_header(header: bytes) -> bool:
    """True if a header's checksum fits its length: CRC-32C, with TensorFlow's rotation and offset."""
    crc = 0xFFFFFFFF
    for byte in header[:8]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return bool(masked == struct.unpack_from("<I", header, 8)[0])
