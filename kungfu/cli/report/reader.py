"""Reads what a run left in its folder, and says what of it could not be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, line_to_event
from kungfu.event_log.events import AnyEvent, RecordEvent

__all__ = ["EventRecord", "MetricsRecord", "read_events", "read_metrics"]


@dataclass(frozen=True)
class EventRecord:
    """The events of a run in the order of the file, and a remark for each line that is none."""

    events: tuple[AnyEvent, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class MetricsRecord:
    """The figures of each step in the order of the file, and a remark for each line that has none."""

    rows: tuple[Mapping[str, Any], ...]
    remarks: tuple[str, ...] = ()


def read_events(folder: Path) -> EventRecord:
    """Reads what was decided and done: ``events.jsonl``.

    Raises:
        UsageError: There is no such file, nothing in it, or the record is of another version.
    """
    lines = _lines(folder, "events.jsonl")
    parsed = [_event(line) for line in lines]
    if not any(parsed):
        raise _nothing_in(folder / "events.jsonl")
    check_version(parsed[0], where=str(folder / "events.jsonl"))
    events = tuple(one for one in parsed if one is not None and not isinstance(one, RecordEvent))
    return EventRecord(events, _remarks(lines, parsed, name="events.jsonl"))


def read_metrics(folder: Path) -> MetricsRecord:
    """Reads what was measured in each step: ``metrics.jsonl``.

    Raises:
        UsageError: There is no such file, or nothing in it.
    """
    lines = _lines(folder, "metrics.jsonl")
    parsed = [_row(line) for line in lines]
    rows = tuple(one for one in parsed if one is not None)
    if not rows:
        raise _nothing_in(folder / "metrics.jsonl")
    return MetricsRecord(rows, _remarks(lines, parsed, name="metrics.jsonl"))


def _lines(folder: Path, name: str) -> list[str]:
    try:
        return (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        what = f"the folder holds no {name}" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"{folder}: {what}; give the folder that kungfu-run wrote to (its --logdir)") from None
    except OSError as error:
        raise UsageError(f"{folder / name}: {error.strerror}; give a folder that can be read") from error


def _nothing_in(path: Path) -> UsageError:
    return UsageError(f"{path}: no line of it is a record; did the run start, and is this its folder?")


def _event(line: str) -> AnyEvent | None:
    try:
        return line_to_event(line)
    except ValueError:
        return None


def _row(line: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _remarks(lines: Sequence[str], parsed: Sequence[object], *, name: str) -> tuple[str, ...]:
    """One for each line that could not be read. Blank lines say nothing."""
    bad = [place for place, line in enumerate(lines, start=1) if line.strip() and parsed[place - 1] is None]
    return tuple(_remark(place, last=place == len(lines), name=name) for place in bad)


def _remark(place: int, *, last: bool, name: str) -> str:
    why = "half-written: the run is writing it, or was cut off" if last else "damaged"
    return f"line {place} of {name} is {why}; it was left out"
