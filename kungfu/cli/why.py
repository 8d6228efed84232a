"""``kungfu why RUN``: prints the decisions of a run and their reasons, as a narrative or as JSON."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from kungfu.cli.report.narrative import Paragraph, narrative, totals
from kungfu.cli.report.reader import EventRecord, Row, read_events, read_rows, rows_in_order
from kungfu.cli.report_console import ReportConsole
from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_json
from kungfu.event_log.events import FinishedEvent, GapEvent, LoggedEvent, RestartedEvent, SpanEvent, SpanPart, of_topics
from kungfu.event_log.job import fold
from kungfu.event_log.numbers import as_json, as_whole
from kungfu.event_log.values import duration, figure, finite_number
from kungfu.runtime.job_api.job_file import is_running, read_job_file

Content = Literal["narrative", "spans"]

_MARGIN = 11
_NARROW = 60
_LINES_AT_ONCE = 500
# The columns of a file.
_PAGE = 100
# Seconds from the end of a step on a peer until the record has the step, on a busy machine.
_REPORT_S = 5.0


def why_command(folder: Path, *, content: Content = "narrative", form: Literal["text", "json"] = "text") -> int:
    """Prints the run in `folder` as a narrative, or the timed parts of its stops; returns the exit code."""
    record = read_events(folder)
    remarks = [*record.remarks, *_unmeasured(folder, record)]
    if form == "json":
        document = {"folder": str(folder), **_document(record.events, content, now=_now(folder)), "notes": remarks}
        print(json.dumps(as_json(document), indent=2, allow_nan=False))
        return 0
    console = ReportConsole(highlight=False)
    console.print(Text(f"the run in {folder}\n", style="bold"), soft_wrap=True)
    for tree in span_trees(record.events) if content == "spans" else ():
        console.print(tree)
    paragraphs, width = narrative(record.events, now=_now(folder)) if content == "narrative" else (), console.width
    _print(console, (line for paragraph in paragraphs for line in _lines(paragraph, width=width)))
    for remark in remarks:
        console.print(Text(f"note: {remark}", style="yellow"), soft_wrap=True)
    return 0


def span_trees(events: Sequence[LoggedEvent]) -> Iterator[Tree]:
    """A tree for each view of a run: its peers, slowest first, with the timed parts of each pause at the barrier.

    >>> [tree.label for tree in span_trees([SpanEvent(what="rescale", peer=1, view=2, step=9, s=0.05)])]
    ['view 2, after step 9']
    """
    for those in _spans_of_views(events):
        tree = Tree(f"view {those[0].view}, after step {figure(those[0].step)}")
        for span in those:
            _grow(tree.add(f"peer {span.peer}, {span.what}: {duration(span.s)}"), span.parts)
        yield tree


def _spans_of_views(events: Sequence[LoggedEvent]) -> Iterator[list[SpanEvent]]:
    """The spans of each view, the slowest peer first."""
    spans = [event for event in events if isinstance(event, SpanEvent)]
    for view in dict.fromkeys(span.view for span in spans):
        # A joiner waits long before its admission without delaying other peers.
        yield sorted((span for span in spans if span.view == view), key=lambda span: (span.what == "join", -span.s))


def _grow(tree: Tree, parts: Sequence[SpanPart]) -> None:
    for part in parts:
        _grow(tree.add(f"{part.name} {duration(part.s)}"), part.parts)


def why_text(events: Sequence[LoggedEvent]) -> str:
    """The narrative of a run as text, for a file."""
    lines = (line for one in narrative(events) for line in _lines(one, width=_PAGE))
    return "".join(f"{line.plain}\n" for line in lines)


def _document(events: Sequence[LoggedEvent], content: Content, *, now: float | None) -> dict[str, Any]:
    """The narrative or the spans as plain values."""
    if content == "spans":
        views = ([event_to_json(span) for span in spans] for spans in _spans_of_views(events))
        return {"views": [{"view": spans[0]["view"], "step": spans[0]["step"], "spans": spans} for spans in views]}
    paragraphs = [
        {**asdict(replace(one, event=None)), "event": one.event and event_to_json(one.event)}
        for one in narrative(events, now=now)
    ]
    return {"is_running": now is not None, "totals": asdict(totals(fold(events), now)), "paragraphs": paragraphs}


def _now(folder: Path) -> float | None:
    """The present time if the recorded job is known to run; else ``None``."""
    try:
        return time.time() if is_running(read_job_file(folder)) else None
    # The record was copied without the job file, or belongs to another user's job.
    except UsageError:
        return None


def _print(console: Console, lines: Iterator[Text]) -> None:
    """Prints lines in large batches, since a long record has several hundred thousand lines and each call is slow."""
    while several := list(islice(lines, _LINES_AT_ONCE)):
        if console.is_terminal:
            console.print(Text("\n").join(several), soft_wrap=True)
        # A file has no styles and no columns.
        else:
            console.file.write("".join(f"{line.plain}\n" for line in several))


def _unmeasured(folder: Path, record: EventRecord) -> list[str]:
    """Remarks on gaps in the metrics; if no peer was lost and all metrics were written, the metrics are not read."""
    lost = any(
        event.topic == "recovery"
        or isinstance(event, RestartedEvent)
        or (isinstance(event, GapEvent) and event.file == "metrics.jsonl")
        for event in record.events
    )
    metrics = folder / "metrics.jsonl"
    if not lost or not metrics.exists() or not metrics.stat().st_size:
        return []
    return missing_steps(record.events, read_rows(folder))


def _lines(paragraph: Paragraph, *, width: int) -> Iterator[Text]:
    """The wrapped lines of a paragraph, with the time on the left, or above the text on a narrow terminal."""
    at = "" if paragraph.at_s is None else _moment(paragraph.at_s)
    margin = 2 if width < _NARROW else _MARGIN
    room = max(20, width - margin - 4)
    if margin < _MARGIN and at:
        yield Text(at, style="cyan")
    lead = f"{at} ".ljust(margin) if margin == _MARGIN else " " * margin
    for line in _wrapped(paragraph.headline, room + 4 + margin - len(lead)):
        yield Text(lead, style="cyan").append(line, style="bold")
        lead = " " * margin
    for detail in paragraph.details:
        for nth, line in enumerate(_wrapped(detail, room)):
            yield Text(f"{' ' * margin}{'  - ' if nth == 0 else '    '}{line}")


def _wrapped(text: str, room: int) -> list[str]:
    # Most lines fit, and are not wrapped: wrapping a line takes ten times as long as making the line.
    if len(text) <= room and text.isprintable() and not text.endswith(" "):
        return [text]
    return textwrap.wrap(text, room) or [""]


def _moment(at_s: float) -> str:
    return f"+{at_s:.1f} s" if at_s < 1 else f"+{duration(at_s)}"


# ---- missing steps ---------------------------------------------------------------------------------------------------


def missing_steps(events: Sequence[LoggedEvent], metrics: Iterable[Row]) -> list[str]:
    """A remark on each gap in the steps, from the first step in `metrics` to the last completed step.

    Rank 0 sends its steps every `--report-every` seconds, so a lost rank 0 loses its last steps.

    Args:
        events: The events of the run, which give the last step and the losses of peers.

    >>> missing_steps([], [{"step": step} for step in (39, 40, 45)])
    ['steps 41 to 44 are not in metrics.jsonl']
    """
    recovered, found = {event.step for event in of_topics(events, "recovery")}, list[str]()
    for first, last, before, after in _gaps(events, metrics):
        steps, them = (f"step {first} is", "it") if first == last else (f"steps {first} to {last} are", "them")
        why = _unwritten(events, before, after)
        if any(event.step == last for event in events if isinstance(event, RestartedEvent)):
            why = f": kungfu-run was lost before it received {them}"
        # Survivors continue from the last step of a lost rank 0, or repeat the step before that step.
        if any(first <= step <= last or step == last - 1 for step in recovered):
            why = f": rank 0 was lost before it reported {them}"
        found.append(f"{steps} not in metrics.jsonl{why}")
    return found


def _gaps(
    events: Sequence[LoggedEvent], metrics: Iterable[Row]
) -> Iterator[tuple[int, int, float | None, float | None]]:
    """Yields the first and the last step of each gap, and the times of the measured steps before and after the gap.

    A run that averages models measures only the steps that end with an average."""
    newest, reported_at = None, None
    for step, row in rows_in_order(metrics):
        at, before = finite_number(row.get("time")), int(step) - (as_whole(row.get("steps_since_average")) or 1)
        if newest is not None and before > newest:
            yield newest + 1, before, reported_at, at
        newest, reported_at = int(step), at
    # There are no measured steps.
    if newest is None:
        return
    # Some of the steps before the job was started again may have been undone.
    events = events[1 + max((at for at, one in enumerate(events) if isinstance(one, RestartedEvent)), default=-1) :]
    recovered = [event.step for event in of_topics(events, "recovery")]
    last = max([newest, *recovered, *(event.steps for event in events if isinstance(event, FinishedEvent))])
    if last > newest:
        yield newest + 1, last, reported_at, None


def _unwritten(events: Iterable[LoggedEvent], before: float | None, after: float | None) -> str:
    """The error, as text, that kept the steps of a gap from the metrics, or ""; ``after`` is None for the last gap."""
    for event in events:
        if not isinstance(event, GapEvent) or event.file != "metrics.jsonl":
            continue
        if (before is None or before <= event.until) and (after is None or event.since <= after + _REPORT_S):
            return f": their figures could not be written ({event.error})"
    return ""
