"""Steps that were done and are missing in the metrics: their rank 0 was lost, or they could not be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kungfu.cli.report.values import finite_number
from kungfu.event_log.events import FinishedEvent, GapEvent, LoggedEvent, RecoveredEvent

__all__ = ["is_gap", "missing_steps"]

# Between the end of a step on a peer and the moment in which it would have been written, for a machine that is busy.
_REPORT_S = 5.0


def missing_steps(events: Sequence[LoggedEvent], metrics: Iterable[Mapping[str, Any]]) -> list[str]:
    """A remark on each row of steps that is missing between the first one in `metrics` and the last one that was done.

    Rank 0 sends its steps every `--report-every` seconds, so that its last ones are lost with it.

    Args:
        events: The events of the run: they say which step was the last, and where peers were lost.
        metrics: The measured steps.

    >>> missing_steps([], [{"step": step} for step in (39, 40, 45)])
    ['steps 41 to 44 are not in metrics.jsonl']
    """
    times = {
        int(step): finite_number(row.get("time"))
        for row in metrics
        if (step := finite_number(row.get("step"))) is not None
    }
    told = set(times)
    if not told:
        return []
    recovered = {event.step for event in events if isinstance(event, RecoveredEvent)}
    last = max([*told, *recovered, *(event.steps for event in events if isinstance(event, FinishedEvent))])
    return [
        f"{_named(first, end)} not in metrics.jsonl"
        f"{_why(range(first, end + 1), recovered) or _unwritten(events, times.get(first - 1), times.get(end + 1))}"
        for first, end in _rows(step for step in range(min(told), last + 1) if step not in told)
    ]


def is_gap(event: LoggedEvent, file: str) -> bool:
    """Whether an event says that a file of the record lacks something that could not be written."""
    return isinstance(event, GapEvent) and event.file == file


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


def _unwritten(events: Iterable[LoggedEvent], before: float | None, after: float | None) -> str:
    """Whether the record could not be written between two steps; of the last steps nobody knows when they ended."""
    for event in events:
        if not isinstance(event, GapEvent) or event.file != "metrics.jsonl":
            continue
        if (before is None or before <= event.until) and (after is None or event.since <= after + _REPORT_S):
            return f": what was told of them could not be written ({event.error})"
    return ""
