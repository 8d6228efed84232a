"""The decisions of a run as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from kungfu.cli.report.choice import choice_of
from kungfu.cli.report.sentence import reasons
from kungfu.cli.report.values import UNKNOWN, count, duration, figure, mapping_of, text_of

__all__ = ["decisions_table"]

_COLUMNS = (("step", "right"), ("rule", "left"), ("saw", "left"), ("asked", "right"), ("came to", "left"))
_STOP = ("stood still", "right")


def decisions_table(events: Iterable[Mapping[str, Any]]) -> Table:
    """A row for each decision, rescale and recovery of `events`, as they stand in ``events.jsonl``.

    A decision's row has what the rule saw and asked for; that of a rescale or a recovery has the size it came to, and
    for how long training stood still. Unknown values are shown as ``-``.
    """
    table = Table(title="Decisions", title_justify="left")
    for name, side in (*_COLUMNS, _STOP):
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    for event in events:
        row = _row(event)
        if row:
            table.add_row(*(Text(cell) for cell in row))
    return table


def _row(event: Mapping[str, Any]) -> tuple[str, ...]:
    match event.get("event"):
        case "decision":
            asked = f"{figure(event.get('size'))} -> {figure(event.get('asked'))}"
            return figure(event.get("step")), _rule(event), _saw(event), asked, text_of(event, "done"), ""
        case "rescale":
            came = f"{figure(event.get('from'))} -> {figure(event.get('to'))} peers"
            return figure(event.get("step")), text_of(event, "rule"), "", "", came, duration(event.get("stop_s"))
        case "recovered":
            came = f"{figure(event.get('from'))} -> {figure(event.get('to'))} peers"
            lost = f"loss of {count(len(mapping_of(event, 'lost')), 'peer')}"
            return figure(event.get("step")), lost, "", "", came, duration(event.get("stop_s"))
        case "refused":
            why = f"refused: {text_of(event, 'reason')}"
            return "", text_of(event, "rule"), "", figure(event.get("asked")), why, ""
    return ()


def _rule(event: Mapping[str, Any]) -> str:
    choice = choice_of(text_of(event, "rule"), mapping_of(event, "saw"))
    won = f": {' and '.join(choice.winners) or UNKNOWN} won" if choice else ""
    return text_of(event, "rule") + won


def _saw(event: Mapping[str, Any]) -> str:
    return reasons(mapping_of(event, "saw")) or UNKNOWN
