"""Figures as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kungfu.schedule.outcome.metrics import Figures, Summary

__all__ = ["summary_table"]


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


def _cells(figures: Figures) -> tuple[str, ...]:
    times = (figures.jct_s, figures.wait_s, figures.pending_s)
    shown = ["-" if time != time else _brief(time) for time in times]
    return (
        str(figures.jobs),
        *shown,
        "-" if figures.adjustments != figures.adjustments else f"{figures.adjustments:.1f}",
    )


def _brief(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.1f}"
