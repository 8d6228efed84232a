"""The stop of training at a join under kungfu, by bytes of state and by number of peers: a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.elasticity.systems import Task, by_kungfu

__all__ = ["measure_growth"]

BY_BYTES = ((2, 1.0), (2, 10.0), (2, 100.0), (2, 1000.0))  # peers before the join, megabytes
BY_PEERS = ((2, 10.0), (4, 10.0), (8, 10.0))
PICTURE = Path("runs/benchmarks/rescale-growth.png")
Point = dict[str, float]


def measure_growth(console: Console, *, rounds: int, device_s: float) -> list[Point]:
    """Measures every case, prints the table, draws the plot, and returns the points."""
    points = {}
    for low, megabytes in dict.fromkeys([*BY_BYTES, *BY_PEERS]):
        console.print(f"{low} -> {low + 1} peers and back, {megabytes:g} MB", highlight=False)
        one = by_kungfu(Task(low, megabytes, device_s, rounds))
        points[low, megabytes] = {
            "peers": low,
            "megabytes": megabytes,
            "join_stop_s": round(one.join_stop_s, 4),
            "leave_stop_s": round(one.leave_stop_s, 4),
            "step_s": round(one.step_s, 4),
        }
    console.print(_table(list(points.values())))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    _drawn([points[key] for key in BY_BYTES], [points[key] for key in BY_PEERS]).savefig(PICTURE, dpi=120)
    console.print(f"picture  {PICTURE}")
    return list(points.values())


def _table(points: Sequence[Point]) -> Table:
    made = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    for heading in ("peers", "MB", "join, ms", "leave, ms", "step, ms"):
        made.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        peers = f"{point['peers']:.0f} -> {point['peers'] + 1:.0f}"
        times = (f"{1e3 * point[name]:.0f}" for name in ("join_stop_s", "leave_stop_s", "step_s"))
        made.add_row(peers, f"{point['megabytes']:g}", *times)
    return made


def _drawn(by_bytes: Sequence[Point], by_peers: Sequence[Point]) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, by_bytes, "megabytes", xlabel="float32 state (MB)", title="2 → 3 peers and back")
    left.set(xscale="log", yscale="log")
    left.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for formatted in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
        formatted(StrMethodFormatter("{x:g}"))
    _draw(right, by_peers, "peers", xlabel="peers before the join", title=f"{by_peers[0]['megabytes']:g} MB of state")
    right.set(ylim=(0, None), xticks=[point["peers"] for point in by_peers])
    return figure


def _draw(axes: Any, points: Sequence[Point], name: str, *, xlabel: str, title: str) -> None:
    across = [point[name] for point in points]
    axes.plot(across, [1e3 * point["join_stop_s"] for point in points], "o-", label="a peer joins")
    axes.plot(across, [1e3 * point["leave_stop_s"] for point in points], "s--", label="a peer leaves")
    axes.set(xlabel=xlabel, ylabel="stop (ms)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
