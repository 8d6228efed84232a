"""The decisions of a run as a table, and the parts of its stops as trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kungfu.cli.report.decisions import reasons, winners
from kungfu.cli.report.values import UNKNOWN, counted, duration, figure
from kungfu.event_log.events import (
    DecisionEvent,
    LoggedEvent,
    RecoveredEvent,
    RefusedEvent,
    RescaleEvent,
    SpanEvent,
    SpanPart,
)

__all__ = ["decisions_table", "span_trees"]

_COLUMNS = (("step", "right"), ("rule", "left"), ("saw", "left"), ("asked", "right"), ("came to", "left"))
_STOP = ("stood still", "right")


def decisions_table(events: Iterable[LoggedEvent]) -> Table:
    """A row for each decision, rescale, recovery and refusal.

    Args:
        events: The events of a run, in order.

    Returns:
        A table in which the row of a decision has what the rule saw and asked for, and that of a rescale or a recovery
        the size it came to and for how long training stood still. Unknown values are shown as ``-``.
    """
    table = Table(title="Decisions", title_justify="left")
    for name, side in (*_COLUMNS, _STOP):
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    for event in events:
        row = _row(event)
        if row:
            table.add_row(*(Text(cell) for cell in row))
    return table


def _row(event: LoggedEvent) -> tuple[str, ...]:
    match event:
        case DecisionEvent():
            asked = f"{figure(event.size)} -> {figure(event.asked)}"
            return figure(event.step), _rule(event), reasons(event.saw) or UNKNOWN, asked, event.done, ""
        case RescaleEvent():
            came = f"{figure(event.before)} -> {figure(event.after)} peers"
            return figure(event.step), event.rule, "", "", came, duration(event.stop_s)
        case RecoveredEvent():
            came = f"{figure(event.before)} -> {figure(event.after)} peers"
            lost = f"loss of {counted(len(event.lost), 'peer')}"
            return figure(event.step), lost, "", "", came, duration(event.stop_s)
        case RefusedEvent():
            return "", event.rule, "", figure(event.asked), f"refused: {event.reason}", ""
    return ()


def _rule(event: DecisionEvent) -> str:
    return f"{event.rule}: {winners(event)} won" if event.won or event.lost else event.rule


def span_trees(events: Sequence[LoggedEvent]) -> Iterator[Tree]:
    """A tree for each view of a run: its peers, the slowest first, and what took each of them how long.

    >>> [tree.label for tree in span_trees([SpanEvent(what="rescale", peer=1, view=2, step=9, s=0.05)])]
    ['view 2, after step 9']
    """
    spans = [event for event in events if isinstance(event, SpanEvent)]
    for view in dict.fromkeys(span.view for span in spans):
        those = sorted((span for span in spans if span.view == view), key=_slowest_first)
        tree = Tree(f"view {figure(view)}, after step {figure(those[0].step)}")
        for span in those:
            _grow(tree.add(f"peer {figure(span.peer)}, {span.what}: {duration(span.s)}"), span.parts)
        yield tree


def _slowest_first(span: SpanEvent) -> tuple[bool, float]:
    """A joiner waits for long before it is admitted, and keeps nobody waiting."""
    return span.what == "join", -span.s


def _grow(tree: Tree, parts: Sequence[SpanPart]) -> None:
    for part in parts:
        _grow(tree.add(f"{part.name} {duration(part.s)}"), part.parts)
