"""The outcome of simulations for people: a table for a terminal, and a plot over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kungfu.errors import UsageError
from kungfu_planning.pictures import write_picture
from kungfu_planning.schedule.outcome import GroupMetrics, SimulationResult, Summary


def summary_table(summaries: Sequence[Summary], *, title: str) -> Table:
    """One block of rows a policy: all jobs, then each size class; times in seconds."""
    caption = "seconds; wait: to the first start; pending: all time without GPUs; moves: adjustments a job"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    table.add_column("policy", no_wrap=True)
    for heading in ("jobs", "JCT", "wait", "pending", "moves", "makespan", "busy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        ends = (f"{summary.makespan_s:,.0f}", f"{summary.utilisation:.1%}")
        table.add_row(f"[bold]{summary.policy}[/bold]", *_cells(summary.overall), *ends)
        for name, figures in summary.by_size.items():
            table.add_row(f"  {name}", *_cells(figures), "", "")
    return table


def _cells(figures: GroupMetrics) -> tuple[str, ...]:
    times = (figures.jct_s, figures.wait_s, figures.pending_s)
    shown = ["-" if time != time else _brief(time) for time in times]
    return (
        str(figures.jobs),
        *shown,
        "-" if figures.adjustments != figures.adjustments else f"{figures.adjustments:.1f}",
    )


def _brief(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.1f}"


_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0}


def save_plot(results: Sequence[SimulationResult], *, path: str | Path) -> Path:
    """Write a picture of busy GPUs and waiting jobs over time; the file appears whole or not at all.

    Args:
        results: simulations to compare, at least one.
        path: where to write; the ending (.png, .svg, .pdf) chooses the format.

    Raises:
        UsageError: if the file cannot be written, or the ending is unknown.
    """
    from matplotlib.figure import Figure  # takes half a second, and most simulations draw nothing

    figure = Figure(figsize=(9, 6), layout="constrained")
    busy, queue = figure.subplots(2, 1, sharex=True)
    unit = _unit(max(float(np.ptp(result.timeline.time_s)) for result in results))
    for result in results:
        elapsed = (result.timeline.time_s - result.timeline.time_s[0]) / _UNITS[unit]
        busy.step(elapsed, result.timeline.busy / result.gpus, where="post", label=result.policy, linewidth=0.8)
        queue.step(elapsed, result.timeline.pending, where="post", linewidth=0.8)
    busy.set(
        ylabel="busy GPUs (fraction)", ylim=(0, 1.05), title=f"{results[0].gpus} GPUs, {len(results[0].jobs)} jobs"
    )
    queue.set(ylabel="waiting jobs", xlabel=unit)
    busy.legend(loc="lower right")
    try:
        write_picture(figure, path=Path(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot write the plot {path}: {error}; give a writable path ending in .png, .svg or .pdf"
        ) from error
    return Path(path)


def _unit(span_s: float) -> str:
    """The largest unit of which the span has at least two."""
    return next((name for name, seconds in reversed(_UNITS.items()) if span_s >= 2 * seconds), "seconds")
