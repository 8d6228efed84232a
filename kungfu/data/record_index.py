"""An index of the offsets of the records in a TFRecord file, computed once and kept in a file.

A TFRecord file is a sequence of records: eight bytes of length, four of checksum, the content, four of checksum. So the
offset of a record follows from all records before it. The index needs one pass over these lengths; `file_index` keeps
it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kungfu.data.file_index import kept_arrays
from kungfu.errors import UsageError

HEADER_BYTES, FOOTER_BYTES = 12, 4
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x78\x01": "zlib", b"\x78\x9c": "zlib", b"\x78\xda": "zlib"}


@dataclass(frozen=True)
class RecordIndex:
    """The index of the records of one file.

    Args:
        offsets: The offset of each record, whose first bytes are its length.
        lengths: The number of content bytes of each record.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets)


def record_index(path: Path, folder: Path | None = None) -> RecordIndex:
    """The index of a file, computed if there is no valid one.

    Args:
        path: The TFRecord file.
        folder: The folder of the index; ``None`` for the folder of the file.

    Raises:
        UsageError: The file is missing, truncated, damaged, compressed or not a TFRecord file, or the index cannot be
            written there.

    Cost:
        To compute it, one pass over the lengths, about a second for a million records; 16 bytes per record on disk.
    """
    found = kept_arrays(path, folder, "index", lambda: _scanned(path))
    return RecordIndex(found["offsets"], found["lengths"])


# ---- the TFRecord file -----------------------------------------------------------------------------------------------


def _scanned(path: Path) -> dict[str, NDArray[np.int64]]:
    size = path.stat().st_size
    if not size:
        return {"offsets": np.zeros(0, np.int64), "lengths": np.zeros(0, np.int64)}
    offsets: list[int] = []
    lengths: list[int] = []
    at = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        _refuse_others(content[:HEADER_BYTES], path)
        while at < size:
            header = content[at : at + HEADER_BYTES]
            length = struct.unpack_from("<Q", header)[0] if len(header) == HEADER_BYTES else 0
            end = at + HEADER_BYTES + length + FOOTER_BYTES
            if end > size:
                raise _torn(path, number=len(offsets), at=at, header=header, size=size)
            offsets.append(at)
            lengths.append(length)
            at = end
    return {"offsets": np.array(offsets, np.int64), "lengths": np.array(lengths, np.int64)}


def _refuse_others(header: bytes, path: Path) -> None:
    """Raises ``UsageError`` for files of another kind, by the checksum of the first record's length."""
    if len(header) == HEADER_BYTES and _is_header(header):
        return
    if kind := _COMPRESSED.get(header[:2]):
        raise UsageError(
            f"kf.data.tfrecords(): {path} is compressed ({kind}): no place in it can be read but from its start; write "
            "it without compression, or compress the contents of its records"
        )
    raise UsageError(f"kf.data.tfrecords(): {path} is no TFRecord file: it begins with {header!r}")


def _torn(path: Path, *, number: int, at: int, header: bytes, size: int) -> UsageError:
    if len(header) < HEADER_BYTES or _is_header(header):
        return UsageError(
            f"kf.data.tfrecords(): {path} is truncated: record {number} begins at byte {at} and does not end within "
            f"its {size} bytes; copy the file anew, or write it to its end"
        )
    return UsageError(
        f"kf.data.tfrecords(): {path} is damaged: at byte {at}, where record {number} should begin, its length does "
        "not match its checksum; copy the file anew"
    )


def _is_header(header: bytes) -> bool:
    """True if the length's checksum is correct: CRC-32C, rotated and offset as in TensorFlow."""
    crc = 0xFFFFFFFF
    for byte in header[:8]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return bool(masked == struct.unpack_from("<I", header, 8)[0])
