"""Follows the record of a run while it grows: new lines of its files, new events and steps, and the job after them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, event_in, row_in
from kungfu.event_log.events import AnyEvent, RecordEvent
from kungfu.event_log.job import Job

# The maximum number of bytes per read: the record of a week is read in many small parts.
_CHUNK_BYTES = 1 << 20
_NEWEST_BYTES = 1 << 20


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading; another user's record may contain a pipe or a device, which would block.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return file


class GrowingFile:
    """A reader of the new complete lines of a file; an incomplete line is left for the next read. The first read covers
    only the complete lines in the last ``at_first_bytes`` of the file.

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

    def read(self) -> tuple[list[bytes], bool]:
        """The next non-empty lines, and True if there may be more."""
        try:
            with open_regular(self._path) as file:
                if self._at_first_bytes is not None:
                    self._offset = max(0, file.seek(0, 2) - self._at_first_bytes - 1)  # and the newline before
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

    def read_all(self) -> Iterator[bytes]:
        """All lines that are complete by now, read in parts."""
        has_more = True
        while has_more:
            lines, has_more = self.read()
            yield from lines


@dataclass(frozen=True)
class NewRecords:
    """The additions to a record: events and lines of metrics, each in file order."""

    events: tuple[AnyEvent, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()


class RecordFollower:
    """Reads the additions to a growing record with each call; skips ``damaged`` lines, and counts them.

    The first read covers only the last ``newest_bytes`` of the metrics; ``has_more`` is True if lines are left."""

    def __init__(self, folder: Path, *, newest_bytes: int | None = None) -> None:
        self._folder, self._events = folder, GrowingFile(folder / "events.jsonl")
        self._metrics = GrowingFile(folder / "metrics.jsonl", at_first_bytes=newest_bytes)
        self._is_checked = self.has_more = False
        self.damaged = 0

    def read(self) -> NewRecords:
        """The additions since the last call.

        Raises:
            UsageError: The record has an unsupported version, or cannot be read.
        """
        try:
            (events, more_events), (rows, more_rows) = self._events.read(), self._metrics.read()
        except OSError as error:
            raise UsageError(f"{self._folder}: {error.strerror}; give a folder that can be read") from error
        self.has_more = more_events or more_rows
        figures = [row_in(line) for line in rows]
        self.damaged += figures.count(None)
        return NewRecords(tuple(self._parsed(events)), tuple(row for row in figures if row is not None))

    def _parsed(self, lines: list[bytes]) -> list[AnyEvent]:
        found: list[AnyEvent] = []
        for line in lines:
            event = event_in(line)
            # The first line holds the version, without which the other lines mean nothing.
            if not self._is_checked:
                check_version(event, where=str(self._folder / "events.jsonl"))
                self._is_checked = True
            elif event is None:
                self.damaged += 1
            elif not isinstance(event, RecordEvent):
                found.append(event)
        return found


class JobWatcher:
    """Follows the files of a job's folder as they grow; ``job`` is the state of the job at the last look.

    >>> from tempfile import TemporaryDirectory
    >>> lines = '{"event": "record", "version": 3}', '{"event": "spawned", "peer": 0, "pid": 7}', ""
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text(chr(10).join(lines))
    ...     JobWatcher(Path(folder)).look().joiners
    (0,)
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, Job()
        # Only the newest step matters: the steps of a week need not be read.
        self._record = RecordFollower(folder, newest_bytes=_NEWEST_BYTES)

    def look(self) -> Job:
        """Reads the additions and returns the job after them. Raises ``UsageError`` for an unsupported version."""
        has_more = True
        while has_more:
            new, has_more = self._record.read(), self._record.has_more
            for event in new.events:
                self.job = self.job.after(event)
            for row in new.rows:
                self.job = self.job.after_step(row)
        return self.job
