"""Reads what a run left in its folder, and says what of it could not be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kungfu.errors import UsageError

__all__ = ["Record", "read_events", "read_metrics"]


@dataclass(frozen=True)
class Record:
    """The objects of one stream in the order of the file, and a remark for each line that is none."""

    entries: tuple[Mapping[str, Any], ...]
    remarks: tuple[str, ...] = ()


def read_events(folder: Path) -> Record:
    """What was decided and done: ``events.jsonl``. Raises ``UsageError`` where there is none, or nothing in it."""
    return _read(folder, "events.jsonl")


def read_metrics(folder: Path) -> Record:
    """What was measured in each step: ``metrics.jsonl``. Raises as `read_events` does."""
    return _read(folder, "metrics.jsonl")


def _read(folder: Path, name: str) -> Record:
    try:
        lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        what = f"the folder holds no {name}" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"{folder}: {what}; give the folder that kungfu-run wrote to (its --logdir)") from None
    except OSError as error:
        raise UsageError(f"{folder / name}: {error.strerror}; give a folder that can be read") from error
    entries, remarks = [], []
    for place, line in enumerate(lines, start=1):
        fields = _parsed(line)
        if fields is not None:
            entries.append(fields)
        elif line.strip():
            remarks.append(_remark(place, last=place == len(lines), name=name))
    if not entries:
        raise UsageError(f"{folder / name}: no line of it is a record; did the run start, and is this its folder?")
    return Record(tuple(entries), tuple(remarks))


def _parsed(line: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _remark(place: int, *, last: bool, name: str) -> str:
    why = "half-written: the run is writing it, or was cut off" if last else "damaged"
    return f"line {place} of {name} is {why}; it was left out"
