"""Follows the record of a run while it grows: reads new events and steps, and updates the state of the job."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, event_in, row_in
from kungfu.event_log.events import AnyEvent, RecordEvent
from kungfu.event_log.growing_file import GrowingFile
from kungfu.event_log.job import Job

_NEWEST_BYTES = 1 << 20


@dataclass(frozen=True)
class NewRecords:
    """The additions to a record: events and lines of metrics, each in file order."""

    events: tuple[AnyEvent, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()


class RecordFollower:
    """Reads a growing record: each `read` returns the additions; ``damaged`` counts the lines that cannot be read.

    The first read covers only the last ``newest_bytes`` of the metrics. ``has_more`` is True if unread lines remain."""

    def __init__(self, folder: Path, *, newest_bytes: int | None = None) -> None:
        self._folder, self._events = folder, GrowingFile(folder / "events.jsonl")
        self._metrics = GrowingFile(folder / "metrics.jsonl", at_first_bytes=newest_bytes)
        self._is_checked = self.has_more = False
        self.damaged = 0

    def read(self) -> NewRecords:
        """The events and the lines of metrics added to the record since the last call.

        Raises ``UsageError`` if the record is of another version, cannot be read, or is that of another run now."""
        try:
            (events, more_events), (rows, more_rows) = self._events.read(), self._metrics.read()
        except OSError as error:
            advice = "start again" if error.errno == errno.ESTALE else "give a folder that can be read"
            raise UsageError(f"{self._folder}: {error.strerror}; {advice}") from error
        self.has_more = more_events or more_rows
        figures = [row_in(line) for line in rows]
        self.damaged += figures.count(None)
        return NewRecords(tuple(self._parsed(events)), tuple(row for row in figures if row is not None))

    def _parsed(self, lines: list[bytes]) -> list[AnyEvent]:
        found: list[AnyEvent] = []
        for line in lines:
            event = event_in(line)
            # The first line contains the version, on which the meaning of the other lines depends.
            if not self._is_checked:
                check_version(event, where=str(self._folder / "events.jsonl"))
                self._is_checked = True
            elif event is None:
                self.damaged += 1
            elif not isinstance(event, RecordEvent):
                found.append(event)
        return found


class JobWatcher:
    """Follows the files of a job's folder as they grow; ``job`` is the state of the job at the last call of `look`.

    Of the metrics, the first look reads only the last ``newest_bytes``.

    >>> from tempfile import TemporaryDirectory
    >>> lines = '{"event": "record", "version": 6}', '{"event": "spawned", "peer": 0, "pid": 7}', ""
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text(chr(10).join(lines))
    ...     JobWatcher(Path(folder)).look().joiners
    (0,)
    """

    def __init__(self, folder: Path, *, newest_bytes: int = _NEWEST_BYTES) -> None:
        self.folder, self.job = folder, Job()
        # Only the newest step matters: the steps of a week need not be read.
        self._record = RecordFollower(folder, newest_bytes=newest_bytes)

    def look(self) -> Job:
        """Reads the new lines, and returns the state of the job. Raises ``UsageError`` for an unsupported version."""
        has_more = True
        while has_more:
            new, has_more = self._record.read(), self._record.has_more
            for event in new.events:
                self.job = self.job.after(event)
            for row in new.rows:
                self.job = self.job.after_step(row)
        return self.job
