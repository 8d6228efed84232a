"""Reads the record of a run: its events, with remarks on unreadable lines, and its steps, line by line.

A record of tens of millions of steps would not fit in memory. The step numbers of a record increase, except for steps
that a failure undid and survivors soon repeat. Therefore bisection finds a step, and sorting within a window of a few
thousand lines yields the steps in order. Steps that were undone because the job was started again are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, event_in, row_in
from kungfu.event_log.events import AnyEvent, RecordEvent, RestartedEvent, StartedEvent
from kungfu.event_log.values import finite_number

Row = Mapping[str, Any]

_METRICS = "metrics.jsonl"
# A repeated step replaces the earlier version within this many lines.
_WINDOW_LINES = 4096
# The bytes at which bisection stops.
_NEAR_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class EventRecord:
    """The events of a run in the order of the file, and a remark for each line without an event."""

    events: tuple[AnyEvent, ...]
    remarks: tuple[str, ...] = ()


def read_events(folder: Path) -> EventRecord:
    """Reads the events of a run from ``events.jsonl``.

    Raises ``UsageError`` if there is no such file, it has no events, or the record is of another version."""
    path, events, bad, number = folder / "events.jsonl", list[AnyEvent](), list[int](), 0
    first: AnyEvent | None = None
    with open_record(folder, path.name) as lines:
        for number, line in enumerate(lines, start=1):
            event = event_in(line)
            first = event if number == 1 else first
            if event is not None:
                events.append(event)
            # Blank lines are ignored.
            elif line.strip():
                bad.append(number)
    if not events:
        raise nothing_in(path)
    check_version(first, where=str(path))
    cut = "half-written: the run is writing it, or was cut off"
    remarks = (f"line {one} of {path.name} is {cut if one == number else 'damaged'}; it was left out" for one in bad)
    return EventRecord(tuple(event for event in events if not isinstance(event, RecordEvent)), tuple(remarks))


def read_start(folder: Path) -> StartedEvent | None:
    """Reads a record up to the start of its job; ``None`` if the job has not started. Raises as `read_events` does."""
    path = folder / "events.jsonl"
    with open_record(folder, path.name) as lines:
        events = (event for line in lines if (event := event_in(line)) is not None)
        if (first := next(events, None)) is None:
            raise nothing_in(path)
        check_version(first, where=str(path))
        return next((event for event in events if isinstance(event, StartedEvent)), None)


def open_record(folder: Path, name: str) -> BinaryIO:
    """Opens a file of the record in `folder`; raises ``UsageError`` if the file is missing or cannot be read."""
    try:
        return (folder / name).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        what = f"the folder holds no {name}" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"{folder}: {what}; give the folder that kungfu-run wrote to (its --logdir)") from None
    except OSError as error:
        raise UsageError(f"{folder / name}: {error.strerror}; give a folder that can be read") from error


def nothing_in(path: Path) -> UsageError:
    """The error about a file without any line of a record."""
    return UsageError(f"{path}: no line of it is a record; did the run start, and is this its folder?")


# ---- steps -----------------------------------------------------------------------------------------------------------


def read_rows(folder: Path) -> Iterator[Row]:
    """Yields the figures of each step that counts, in the order of the file; lines without figures are skipped.

    Raises ``UsageError`` if there is no such file, or the file has no figures."""
    is_empty, restarts = True, _restarts(folder)
    with open_record(folder, _METRICS) as lines:
        for line in lines:
            if (row := row_in(line)) is not None:
                is_empty = False
                if not _is_undone(row, restarts):
                    yield row
    if is_empty:
        raise nothing_in(folder / _METRICS)


def rows_between(folder: Path, first: float, last: float = math.inf) -> Iterator[Row]:
    """Yields the figures of the steps from `first` to `last` in the order of the file, without reading earlier steps.

    Raises ``UsageError`` if there is no such file."""
    restarts = _restarts(folder)
    with open_record(folder, _METRICS) as file:
        file.seek(_offset_before(file, first, restarts))
        for line in file:
            row = row_in(line)
            step = None if row is None else finite_number(row.get("step"))
            if row is None or step is None or step < first or _is_undone(row, restarts):
                continue
            if step > last:
                return
            yield row


def newest_step(folder: Path) -> float:
    """The newest step of a record, from its last lines; raises ``UsageError`` if these lines have no step."""
    restarts = _restarts(folder)
    with open_record(folder, _METRICS) as file:
        file.seek(max(0, file.seek(0, 2) - _CHUNK_BYTES))
        rows = [row for row in map(row_in, file) if row and not _is_undone(row, restarts)]
        steps = [step for row in rows if (step := finite_number(row.get("step"))) is not None]
    if not steps:
        raise nothing_in(folder / _METRICS)
    return max(steps)


def rows_in_order(rows: Iterable[Row]) -> Iterator[tuple[float, Row]]:
    """The steps with their figures, in ascending order; for a repeated step, the last line counts.

    >>> rows = [{"step": 2, "loss": 7}, {"step": 1, "loss": 8}, {"step": 2, "loss": 9}]
    >>> [(step, row["loss"]) for step, row in rows_in_order(rows)]
    [(1.0, 8), (2.0, 9)]
    """
    held: dict[float, Row] = {}
    newest = -math.inf
    for row in rows:
        step = finite_number(row.get("step"))
        # The line has no step, or a step that was reported long before and must not count twice.
        if step is None or step <= newest:
            continue
        held[step] = row
        if len(held) == 2 * _WINDOW_LINES:
            for newest in sorted(held)[:_WINDOW_LINES]:
                yield newest, held.pop(newest)
    for step in sorted(held):
        yield step, held[step]


def _restarts(folder: Path) -> list[RestartedEvent]:
    """The restarts of a job in its record; none if the record has no events."""
    try:
        with (folder / "events.jsonl").open("rb") as lines:
            found = (event_in(line) for line in lines if b'"restarted"' in line)
            return [event for event in found if isinstance(event, RestartedEvent)]
    except OSError:
        return []


def _step_kept(row: Row, restarts: Iterable[RestartedEvent]) -> float | None:
    """The step of a row; if restarts have undone the step, the step of their earliest checkpoint."""
    step, view = finite_number(row.get("step")), finite_number(row.get("view"))
    if step is None or view is None:
        return step
    return min([step, *(one.step for one in restarts if view < one.first_view)])


def _is_undone(row: Row, restarts: Iterable[RestartedEvent]) -> bool:
    return _step_kept(row, restarts) != finite_number(row.get("step"))


def _offset_before(file: BinaryIO, step: float, restarts: Sequence[RestartedEvent]) -> int:
    """A byte offset shortly before the first line of `step`; the offset may lie within a line."""
    low, high = 0, file.seek(0, 2)
    while high - low > _NEAR_BYTES:
        middle = (low + high) // 2
        found = _step_after(file, middle, high, restarts)
        # There is no complete line between the offsets, or the found line is one of the wanted lines.
        if found is None or found >= step:
            high = middle
        else:
            low = middle
    return low


def _step_after(file: BinaryIO, offset: int, end: int, restarts: Sequence[RestartedEvent]) -> float | None:
    """The step, see `_step_kept`, of the first complete line after an offset; ``None`` if none begins before `end`."""
    file.seek(offset)
    offset += len(file.readline())
    while offset < end and (line := file.readline()):
        offset += len(line)
        row = row_in(line)
        if row is not None and (step := _step_kept(row, restarts)) is not None:
            return step
    return None
