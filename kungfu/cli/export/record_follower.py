"""Follows the record of a run while it grows: the events and the metrics that are new since the last look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kungfu.cli.report.metrics import Row, row_of_line
from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, event_in
from kungfu.event_log.events import AnyEvent, RecordEvent
from kungfu.event_log.growing_file import GrowingFile

__all__ = ["NewRecords", "RecordFollower"]


@dataclass(frozen=True)
class NewRecords:
    """What was added to a record: events and lines of metrics, each in the order of its file."""

    events: tuple[AnyEvent, ...] = ()
    rows: tuple[Row, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.events or self.rows)


class RecordFollower:
    """Reads a record as far as it is written, again and again.

    Args:
        folder: The folder that kungfu-run writes to.

    Attributes:
        damaged: How many lines could not be read; they are left out.
        has_more: Whether the last call of `take` has left lines unread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events, self._metrics = GrowingFile(folder / "events.jsonl"), GrowingFile(folder / "metrics.jsonl")
        self._is_checked = self.has_more = False
        self.damaged = 0

    def take(self) -> NewRecords:
        """What is new since the last call.

        Raises:
            UsageError: The record is of another version, or cannot be read.
        """
        try:
            (events, more_events), (rows, more_rows) = self._events.read(), self._metrics.read()
        except OSError as error:
            raise UsageError(f"{self._folder}: {error.strerror}; give a folder that can be read") from error
        self.has_more = more_events or more_rows
        return NewRecords(tuple(self._parsed(events)), tuple(self._rows(rows)))

    def _parsed(self, lines: list[bytes]) -> list[AnyEvent]:
        found: list[AnyEvent] = []
        for line in lines:
            event = event_in(line)
            # The first line says the version, and without it the others mean nothing.
            if not self._is_checked:
                check_version(event, where=str(self._folder / "events.jsonl"))
                self._is_checked = True
            elif event is None:
                self.damaged += 1
            elif not isinstance(event, RecordEvent):
                found.append(event)
        return found

    def _rows(self, lines: list[bytes]) -> list[Row]:
        rows = [row_of_line(line) for line in lines]
        self.damaged += rows.count(None)
        return [row for row in rows if row is not None]
