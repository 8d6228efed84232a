"""Steps that were done, and of which the record holds no metrics: who was to tell of them was lost first, or they
could not be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kungfu.cli.report.values import number, text_of

__all__ = ["gaps", "is_gap"]

Fields = Mapping[str, Any]

# Between the end of a step on a peer and the moment in which it would have been written, for a machine that is busy.
_REPORT_S = 5.0


def gaps(events: Sequence[Fields], metrics: Iterable[Fields]) -> list[str]:
    """A remark on every row of steps that is missing between the first one in `metrics` and the last one that was done.

    Rank 0 tells of steps every `--report-every` seconds, so that its last ones are lost with it.

    >>> gaps([{"event": "recovered", "step": 44}], [{"step": step} for step in (39, 40, 45)])
    ['steps 41 to 44 are not in metrics.jsonl: rank 0 was lost before it told of them']
    """
    times = {int(step): number(row.get("time")) for row in metrics if (step := number(row.get("step"))) is not None}
    told = set(times)
    if not told:
        return []
    recovered = {int(step) for step in _steps(events, ("recovered",))}
    last = max([*told, *recovered, *(int(step) for step in _steps(events, ("finished",)))])
    return [
        f"{_named(first, end)} not in metrics.jsonl"
        f"{_why(range(first, end + 1), recovered) or _unwritten(events, times.get(first - 1), times.get(end + 1))}"
        for first, end in _rows(step for step in range(min(told), last + 1) if step not in told)
    ]


def is_gap(event: Fields, file: str) -> bool:
    """Whether an event says that a file of the record lacks something that could not be written."""
    return event.get("event") == "gap" and event.get("file") == file


def _steps(events: Iterable[Fields], kinds: Sequence[str]) -> Iterator[float]:
    """The steps that events of these kinds say were done."""
    for event in events:
        step = number(event.get("steps" if event.get("event") == "finished" else "step"))
        if event.get("event") in kinds and step is not None:
            yield step


def _rows(steps: Iterable[int]) -> list[tuple[int, int]]:
    """Rising numbers, as the first and the last of each row without a gap."""
    rows: list[tuple[int, int]] = []
    for step in steps:
        rows = [*rows[:-1], (rows[-1][0], step)] if rows and rows[-1][1] == step - 1 else [*rows, (step, step)]
    return rows


def _named(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def _why(steps: range, recovered: set[int]) -> str:
    """Survivors go on from the last of these steps, or from the one before it, which is done once more."""
    lost = recovered & {*steps, steps[-1] - 1}
    them = "it" if len(steps) == 1 else "them"
    return f": rank 0 was lost before it told of {them}" if lost else ""


def _unwritten(events: Iterable[Fields], before: float | None, after: float | None) -> str:
    """Whether the record could not be written between two steps; of the last steps nobody knows when they ended."""
    for event in events:
        since, until = number(event.get("from")), number(event.get("to"))
        if not is_gap(event, "metrics.jsonl") or since is None or until is None:
            continue
        if (before is None or before <= until) and (after is None or since <= after + _REPORT_S):
            return f": what was told of them could not be written ({text_of(event, 'error')})"
    return ""
