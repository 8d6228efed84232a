"""Steps that were done and are missing in the metrics: their rank 0 was lost, or they could not be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from kungfu.cli.report.metrics import Row, rows_in_order
from kungfu.event_log.events import FinishedEvent, GapEvent, LoggedEvent, of_topics
from kungfu.event_log.values import finite_number

# Between the end of a step on a peer and the moment in which it would have been written, for a machine that is busy.
_REPORT_S = 5.0


def missing_steps(events: Sequence[LoggedEvent], metrics: Iterable[Row]) -> list[str]:
    """A remark on each row of steps that is missing between the first one in `metrics` and the last one that was done.

    Rank 0 sends its steps every `--report-every` seconds, so that its last ones are lost with it.

    Args:
        events: The events of the run: they say which step was the last, and where peers were lost.
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
    """First and last of steps that are missing, and the times of the ones before and after them."""
    newest, reported_at = None, None
    for step, row in rows_in_order(metrics):
        at = finite_number(row.get("time"))
        if newest is not None and step > newest + 1:
            yield newest + 1, int(step) - 1, reported_at, at
        newest, reported_at = int(step), at
    # Nothing was measured.
    if newest is None:
        return
    last = max([newest, *recovered, *(event.steps for event in events if isinstance(event, FinishedEvent))])
    if last > newest:
        yield newest + 1, last, reported_at, None


def _named(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


def _why(first: int, last: int, recovered: Collection[int]) -> str:
    """Survivors continue from the last of these steps, or from the one before it, which is done once more."""
    lost = any(first <= step <= last or step == last - 1 for step in recovered)
    them = "it" if first == last else "them"
    return f": rank 0 was lost before it reported {them}" if lost else ""


def _unwritten(events: Iterable[LoggedEvent], before: float | None, after: float | None) -> str:
    """True if the record could not be written between two steps; the end of the last steps is unknown."""
    for event in events:
        if not isinstance(event, GapEvent) or event.file != "metrics.jsonl":
            continue
        if (before is None or before <= event.until) and (after is None or event.since <= after + _REPORT_S):
            return f": their figures could not be written ({event.error})"
    return ""
