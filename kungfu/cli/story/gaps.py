"""Steps that were done, and of which the record holds no metrics: who was to tell of them was lost first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kungfu.cli.story.values import number

__all__ = ["gaps"]

Fields = Mapping[str, Any]


def gaps(events: Sequence[Fields], metrics: Iterable[Fields]) -> list[str]:
    """A remark on every row of steps that is missing between the first one in `metrics` and the last one that was done.

    Rank 0 tells of steps every `--report-every` seconds, so that its last ones are lost with it.

    >>> gaps([{"event": "recovered", "step": 44}], [{"step": step} for step in (39, 40, 45)])
    ['steps 41 to 44 are not in metrics.jsonl: rank 0 was lost before it told of them']
    """
    told = {int(step) for row in metrics if (step := number(row.get("step"))) is not None}
    if not told:
        return []
    recovered = {int(step) for step in _steps(events, ("recovered",))}
    last = max([*told, *recovered, *(int(step) for step in _steps(events, ("finished",)))])
    return [
        f"{_named(first, end)} not in metrics.jsonl{_why(range(first, end + 1), recovered)}"
        for first, end in _rows(step for step in range(min(told), last + 1) if step not in told)
    ]


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
