"""``kungfu why DIR``: prints the decisions of a run and their reasons, as a narrative."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from kungfu.cli.report import (
    EventRecord,
    Paragraph,
    missing_steps,
    narrative,
    read_events,
    read_rows,
)
from kungfu.errors import UsageError
from kungfu.event_log.events import GapEvent, LoggedEvent, SpanEvent, SpanPart
from kungfu.event_log.values import duration, figure
from kungfu.runtime.job_api.job_file import is_running, read_job_file

Form = Literal["narrative", "spans"]

_MARGIN = 11
_NARROW = 60
_LINES_AT_ONCE = 500


def why_command(folder: Path, *, form: Form = "narrative") -> int:
    """Prints the narrative of the run in `folder`, or the spans of its stops; returns the exit code."""
    record = read_events(folder)
    console = Console(highlight=False)
    console.print(Text(f"the run in {folder}\n", style="bold"), soft_wrap=True)
    for tree in span_trees(record.events) if form == "spans" else ():
        console.print(tree)
    paragraphs, width = narrative(record.events, now=_now(folder)) if form == "narrative" else (), console.width
    _print(console, (line for paragraph in paragraphs for line in _lines(paragraph, width=width)))
    for remark in (*record.remarks, *_unmeasured(folder, record)):
        console.print(Text(f"note: {remark}", style="yellow"), soft_wrap=True)
    return 0


def span_trees(events: Sequence[LoggedEvent]) -> Iterator[Tree]:
    """A tree for each view of a run: its peers, the slowest first, with the durations of their spans.

    Examples:
        >>> [tree.label for tree in span_trees([SpanEvent(what="rescale", peer=1, view=2, step=9, s=0.05)])]
        ['view 2, after step 9']
    """
    spans = [event for event in events if isinstance(event, SpanEvent)]
    for view in dict.fromkeys(span.view for span in spans):
        # A joiner waits long before its admission without delaying other peers.
        those = sorted((span for span in spans if span.view == view), key=lambda span: (span.what == "join", -span.s))
        tree = Tree(f"view {figure(view)}, after step {figure(those[0].step)}")
        for span in those:
            _grow(tree.add(f"peer {figure(span.peer)}, {span.what}: {duration(span.s)}"), span.parts)
        yield tree


def _grow(tree: Tree, parts: Sequence[SpanPart]) -> None:
    for part in parts:
        _grow(tree.add(f"{part.name} {duration(part.s)}"), part.parts)


def _now(folder: Path) -> float | None:
    """The present time if the recorded job is known to run; else ``None``."""
    try:
        return time.time() if is_running(read_job_file(folder)) else None
    # The record was copied without the job file, or belongs to another user's job.
    except UsageError:
        return None


def _print(console: Console, lines: Iterator[Text]) -> None:
    """Prints lines in large batches, since a long record has some hundred thousand lines and each call is slow."""
    while several := list(islice(lines, _LINES_AT_ONCE)):
        if console.is_terminal:
            console.print(Text("\n").join(several), soft_wrap=True)
        # A file has no styles and no columns.
        else:
            console.file.write("".join(f"{line.plain}\n" for line in several))


def _unmeasured(folder: Path, record: EventRecord) -> list[str]:
    """Remarks on gaps in the metrics, which are read only if peers were lost or the metrics could not be written."""
    lost = any(
        event.topic == "recovery" or (isinstance(event, GapEvent) and event.file == "metrics.jsonl")
        for event in record.events
    )
    metrics = folder / "metrics.jsonl"
    if not lost or not metrics.exists() or not metrics.stat().st_size:
        return []
    return missing_steps(record.events, read_rows(folder))


def _lines(paragraph: Paragraph, *, width: int) -> Iterator[Text]:
    """The wrapped lines of a paragraph, with the time on the left, or above on a narrow terminal."""
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
    # Most lines fit: wrapping a line takes ten times as long as making it.
    if len(text) <= room and text.isprintable() and not text.endswith(" "):
        return [text]
    return textwrap.wrap(text, room) or [""]


def _moment(at_s: float) -> str:
    return f"+{at_s:.1f} s" if at_s < 1 else f"+{duration(at_s)}"
