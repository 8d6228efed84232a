"""Follows the record of a run while it grows: the events and the metrics that are new since the last look."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, line_to_event
from kungfu.event_log.events import AnyEvent, RecordEvent

__all__ = ["NewRecords", "RecordFollower"]

# At most so much of a file is read at once: a record of a week is read in many small parts.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class NewRecords:
    """What was added to a record: events and lines of metrics, each in the order of its file."""

    events: tuple[AnyEvent, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.events or self.rows)


class _Tail:
    """The whole lines of a file that were not read yet; a line that is half written is left for the next time."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def read(self) -> tuple[list[bytes], bool]:
        """The next lines, and whether there may be more of them."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(_CHUNK_BYTES)
        # The run has not made the file yet.
        except FileNotFoundError:
            return [], False
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line for line in lines if line.strip()], len(chunk) == _CHUNK_BYTES


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
        self._events, self._metrics = _Tail(folder / "events.jsonl"), _Tail(folder / "metrics.jsonl")
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
            try:
                event = line_to_event(line)
            except ValueError:
                event = None
            # The first line says the version, and without it the others mean nothing.
            if not self._is_checked:
                check_version(event, where=str(self._folder / "events.jsonl"))
                self._is_checked = True
            elif event is None:
                self.damaged += 1
            elif not isinstance(event, RecordEvent):
                found.append(event)
        return found

    def _rows(self, lines: list[bytes]) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                found.append(row)
            else:
                self.damaged += 1
        return found
