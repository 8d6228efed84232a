"""The picture of a replay: the size of the run with the requested sizes, and below the decisions of every rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kungfu.cli.png import BLUE, GREY, RED, blank_figure, integer_ticks, write_png
from kungfu.cli.replay.timeline import TimelineRow
from kungfu.compiler import FiredRule
from kungfu.control import Rescale
from kungfu.trace import Trace


def draw_replay(trace: Trace, decisions: Sequence[FiredRule], rows: Sequence[TimelineRow], target: Path) -> Path:
    """Draws a replay as a PNG and returns its path; raises ``UsageError`` if `target` cannot be written."""
    figure = blank_figure(9.0, 5.5)
    size, rules = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (2.0, 1.0)})
    _draw_size(size, trace, decisions)
    _draw_rules(rules, decisions, rows)
    for panel in (size, rules):
        panel.spines[["top", "right"]].set_visible(False)
    rules.set_xlabel("step")
    return write_png(figure, target)


def _draw_size(panel: Any, trace: Trace, decisions: Sequence[FiredRule]) -> None:
    steps = trace.steps
    panel.step([one.step for one in steps], [one.size for one in steps], where="post", color=BLUE, label="run")
    wanted = [one for one in decisions if isinstance(one.action, Rescale)]
    panel.scatter(
        [one.step for one in wanted], [one.value for one in wanted],
        marker="D", s=30, facecolor="white", edgecolor=RED, zorder=3, label="asked for in the replay",
    )  # fmt: skip
    panel.set_ylim(0, 1.2 * max([1, *(one.size for one in steps), *(one.value for one in wanted)]))
    integer_ticks(panel.yaxis)
    panel.set_ylabel("size (peers)")
    panel.legend(loc="upper left", frameon=False, fontsize=9)


def _draw_rules(panel: Any, decisions: Sequence[FiredRule], rows: Sequence[TimelineRow]) -> None:
    ran = [row for row in rows if row.rule and row.run]
    names = list(dict.fromkeys([*(one.rule for one in decisions), *(row.rule for row in ran)]))
    panel.scatter(
        [one.step for one in decisions], [names.index(one.rule) for one in decisions],
        marker="D", s=30, facecolor="white", edgecolor=RED, label="in the replay",
    )  # fmt: skip
    at = [names.index(row.rule) for row in ran]
    panel.scatter([row.step for row in ran], at, marker="x", s=24, color=GREY, zorder=3, label="in the run")
    panel.set_yticks(range(len(names)), names, fontsize=9)
    panel.set_ylim(-0.6, max(len(names), 1) - 0.4)
    if names:
        panel.legend(loc="upper right", frameon=False, fontsize=9)
