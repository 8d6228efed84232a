"""Finds steps that are missing in the metrics: their rank 0 was lost, or they could not be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from kungfu.cli.report.metrics import Row, rows_in_order
from kungfu.event_log.events import FinishedEvent, GapEvent, LoggedEvent, of_topics
from kungfu.event_log.values import finite_number

# Seconds from the end of a step on a peer until it is written, on a busy machine.
_REPORT_S = 5.0


def missing_steps(events: Sequence[LoggedEvent], metrics: Iterable[Row]) -> list[str]:
    """A remark on each row of missing steps, from the first step in `metrics` to the last step that was done.

    Rank 0 sends its steps every `--report-every` seconds, so a lost rank 0 loses its last steps.

    Args:
        events: The events of the run, which give the last step and the losses of peers.
        metrics: The measured steps.

    >>> missing_steps([], [{"step": step} for step in (39, 40, 45)])
    ['steps 41 to 44 are not in metrics.jsonl']
    """
    recovered = {event.step for event in of_topics(events, "recovery")}
    return [
        f"{_named(first, last)} not in metrics.jsonl{_why(first, last, recovered) or _unwritten(events, before, after)}"
        for first, last, before, after in _gaps(events, metrics, recovered)
    ]


def _gaps(
    events: Iterable[LoggedEvent], metrics: Iterable[Row], recovered: Collection[int]
) -> Iterator[tuple[int, int, float | None, float | None]]:
    """The first and the last step of each gap, and the times of the steps before and after it."""
    newest, reported_at = None, None
    for step, row in rows_in_order(metrics):
        at = finite_number(row.get("time"))
        if newest is not None and step > newest + 1:
            yield newest + 1, int(step) - 1, reported_at, at
        newest, reported_at = int(step), at
    # There are no measured steps.
    if newest is None:
        return
    last = max([newest, *recovered, *(event.steps for event in events if isinstance(event, FinishedEvent))])
    if last > newest:
        yield newest + 1, last, reported_at, None


def _named(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def _why(first: int, last: int, recovered: Collection[int]) -> str:
    """The reason for a gap if rank 0 was lost: survivors continue from its last step, or repeat the step before it."""
    lost = any(first <= step <= last or step == last - 1 for step in recovered)
    them = "it" if first == last else "them"
    return f": rank 0 was lost before it reported {them}" if lost else ""


def _unwritten(events: Iterable[LoggedEvent], before: float | None, after: float | None) -> str:
    """The reason for a gap if the record could not be written then; the end of the last gap is unknown."""
    for event in events:
        if not isinstance(event, GapEvent) or event.file != "metrics.jsonl":
            continue
        if (before is None or before <= event.until) and (after is None or event.since <= after + _REPORT_S):
            return f": their figures could not be written ({event.error})"
    return ""
