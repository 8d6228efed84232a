"""A file of the record. Failing writes raise no error: lost lines are counted until the file can be written again.

A full disk is the usual reason (``ENOSPC``). A quota, a disk that fails, a file system that has become read-only and a
folder that was replaced by a file have the same effect.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

# A failing disk may take long to answer.
_RETRY_EVERY_S = 1.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class LogGap:
    """Consecutive lines that are missing in a file.

    Args:
        since: The time at which the first line was lost, in seconds since 1970.
        until: The time at which the last line was lost.
        lines: The number of lines.
        error: The first error.
    """

    since: float
    until: float
    lines: int
    error: str


def merged(first: LogGap | None, second: LogGap) -> LogGap:
    """Merges two gaps (missing lines) of a file: a new gap, and an earlier gap that is not recorded yet, if any."""
    return second if first is None else replace(first, until=second.until, lines=first.lines + second.lines)


class LogFile:
    """Appends whole lines to a file; only one thread at a time may use it.

    Args:
        path: The path of the file.
        clock: Returns the seconds since 1970.
        mark: Makes the line that is written in place of a gap; ``None`` for no line.
        head: The first line of the file, written together with the second.
        continues: True to keep the whole lines of an existing file; else the file is emptied.

    Attributes:
        gap: The lines missing at the end of the file, ``None`` if there are none. While there is a gap, writing to
            the file is retried at most once a second.
        is_open: True if the file was not closed.
        found_bytes: The bytes of the whole lines that the file had when it was opened.
        is_cut: True if a partly written line was cut off then.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        mark: Callable[[LogGap], bytes] | None = None,
        head: bytes = b"",
        continues: bool = False,
    ) -> None:
        self.path, self._clock, self._mark, self._head = path, clock, mark, head
        self._continues, self.found_bytes, self.is_cut = continues, 0, False
        self.gap: LogGap | None = None
        self._descriptor: int | None = None
        self._tried = 0.0
        self._torn, self.is_open = False, True

    def open(self) -> None:
        """Creates the file, or opens it again. Raises ``OSError`` if this fails."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags | (0 if self._continues else os.O_TRUNC), 0o666)
        size = os.fstat(self._descriptor).st_size
        self.found_bytes = _end_of_lines(self._descriptor, size)
        if self.found_bytes < size:  # the writer was killed within a line
            os.ftruncate(self._descriptor, self.found_bytes)
            self.is_cut = True
        self._head = b"" if self.found_bytes else self._head
        self._continues = True

    def write(self, data: bytes, *, at_once: bool = False) -> LogGap | None:
        """Appends whole lines; with ``at_once`` even to a file that failed less than a second ago. Returns the gap that
        ends with these lines, ``None`` if there is none."""
        if not self.is_open:
            return None
        # The file failed a moment ago: do not retry yet.
        if self.gap is not None and not at_once and not self._is_due():
            self._add_to_gap(data, self.gap.error)
            return None
        self._tried = self._clock()
        try:
            mark = self._mark(self.gap) if self._mark and self.gap else b""
            self._write((self._head if data else b"") + mark + data)
        # A gap begins, or continues.
        except OSError as error:
            self._add_to_gap(data, error.strerror or str(error))
            return None
        ended, self.gap = self.gap, None
        self._head = b"" if data else self._head
        return ended

    def end_gap(self, line: Callable[[LogGap], bytes]) -> LogGap | None:
        """Ends a gap (missing lines) by writing a line about it; returns the gap, ``None`` if the write fails."""
        gap = self.gap
        if gap is None or not self.is_open or not self._is_due():
            return None
        self._tried = self._clock()
        try:
            self._write(self._head + line(gap))
        except OSError:
            return None
        self._head, self.gap = b"", None
        return gap

    def close(self) -> None:
        """Closes the file; idempotent."""
        self.is_open = False
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.close(descriptor)
        except OSError as error:  # a file system that writes late reports its errors here
            self._add_to_gap(b"", error.strerror or str(error))

    def _is_due(self) -> bool:
        since = self._clock() - self._tried
        return since >= _RETRY_EVERY_S or since < 0  # the clock may have been set back

    def _add_to_gap(self, data: bytes, error: str) -> None:
        now = self._clock()
        first = self.gap or LogGap(now, now, 0, error)
        self.gap = replace(first, until=now, lines=first.lines + _lines_in(data))

    def _write(self, data: bytes) -> None:
        # The file could not be created before, or its folder was gone.
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.open()
        assert self._descriptor is not None
        whole, done = b"\n" + data if self._torn else data, 0
        try:
            while done < len(whole):
                done += os.write(self._descriptor, whole[done:])
        except OSError:
            self._cut_back(done)
            raise
        self._torn = False

    def _cut_back(self, count: int) -> None:
        """Cuts off a partly written line; if that fails, the next write begins with a newline."""
        assert self._descriptor is not None
        if not count:
            return
        self._torn = True
        with suppress(OSError):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - count)
            self._torn = False


def _end_of_lines(descriptor: int, end: int) -> int:
    """The offset after the last newline before ``end``; 0 if there is none."""
    while end > 0:
        begin = max(0, end - _CHUNK_BYTES)
        if (found := os.pread(descriptor, end - begin, begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        end = begin
    return 0


def _lines_in(data: bytes) -> int:
    return data.count(b"\n") + bool(data and not data.endswith(b"\n"))
