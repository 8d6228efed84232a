"""Reads the record of a run, with remarks on unreadable lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, event_in
from kungfu.event_log.events import AnyEvent, RecordEvent, StartedEvent


@dataclass(frozen=True)
class EventRecord:
    """The events of a run in the order of the file, and a remark for each line without an event."""

    events: tuple[AnyEvent, ...]
    remarks: tuple[str, ...] = ()


def read_events(folder: Path) -> EventRecord:
    """Reads the events of a run from ``events.jsonl``.

    Raises:
        UsageError: There is no such file, it has no events, or the record is of another version.
    """
    events, bad, number = list[AnyEvent](), list[int](), 0
    first: AnyEvent | None = None
    with open_record(folder, "events.jsonl") as lines:
        for number, line in enumerate(lines, start=1):
            event = event_in(line)
            first = event if number == 1 else first
            if event is not None:
                events.append(event)
            # Blank lines are ignored.
            elif line.strip():
                bad.append(number)
    if not events:
        raise nothing_in(folder / "events.jsonl")
    check_version(first, where=str(folder / "events.jsonl"))
    remarks = (_remark(one, is_last=one == number, name="events.jsonl") for one in bad)
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
    """Opens a file of the record in `folder`; raises ``UsageError`` if there is none, or if it cannot be read."""
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


def _remark(number: int, *, is_last: bool, name: str) -> str:
    why = "half-written: the run is writing it, or was cut off" if is_last else "damaged"
    return f"line {number} of {name} is {why}; it was left out"
