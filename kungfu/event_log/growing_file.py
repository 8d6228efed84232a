"""Reads a file of lines while another process writes to it; each complete line is read once."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# The maximum number of bytes per read: the record of a week is read in many small parts.
_CHUNK_BYTES = 1 << 20


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading; in another user's record, a pipe or a device would block the reader.

    Raises ``OSError`` for any other file."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return file


class GrowingFile:
    """A reader of the new complete lines of a file; an incomplete line is left for the next read.

    The first read covers only the complete lines in the last ``at_first_bytes`` of the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "events.jsonl")
    ...     _ = path.write_bytes(b"one" + bytes([10]) + b"tw")
    ...     GrowingFile(path).read()
    ([b'one'], False)
    """

    def __init__(self, path: Path, *, at_first_bytes: int | None = None) -> None:
        self._path, self._offset, self._rest = path, 0, b""
        self._at_first_bytes, self._is_cut = at_first_bytes, False
        self._identity: tuple[int, int] | None = None

    def read(self) -> tuple[list[bytes], bool]:
        """The next non-empty lines, and True if there may be more.

        Raises:
            OSError: The file cannot be read; with ``ESTALE``, another file has taken its place, or lines were cut off.
        """
        try:
            with open_regular(self._path) as file:
                self._check_same(os.fstat(file.fileno()))
                if self._at_first_bytes is not None:
                    self._offset = max(0, file.seek(0, 2) - self._at_first_bytes - 1)  # with the byte before
                    self._at_first_bytes, self._is_cut = None, self._offset > 0
                file.seek(self._offset)
                chunk = file.read(_CHUNK_BYTES)
        # The file does not exist yet.
        except FileNotFoundError:
            return [], False
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._is_cut and lines:
            lines, self._is_cut = lines[1:], False
        return [line for line in lines if line.strip()], len(chunk) == _CHUNK_BYTES

    def _check_same(self, found: os.stat_result) -> None:
        """Raises ``OSError`` if the file is not the one that was read so far, or lacks lines that were read."""
        identity, cut = (found.st_dev, found.st_ino), max(0, self._offset - found.st_size)
        if self._identity not in (None, identity) or cut > len(self._rest):
            raise OSError(errno.ESTALE, f"{self._path.name} was replaced while it was read", str(self._path))
        # The writer cuts off a line that it could write only in part, for example on a full disk.
        self._rest, self._offset = self._rest[: len(self._rest) - cut], self._offset - cut
        self._identity = identity

    def read_all(self) -> Iterator[bytes]:
        """All lines that are complete by now, read in parts."""
        has_more = True
        while has_more:
            lines, has_more = self.read()
            yield from lines
