"""Figures as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kungfu.schedule.outcome.metrics import Figures, Summary

__all__ = ["summary_table"]


def summary_table(summaries: Sequence[Summary], *, title: str) -> Table:
    """One block of rows a policy: all jobs, then each size class; times in seconds."""
    table = Table(title=title, caption="seconds; wait: until the first start; pending: all time without GPUs")
    for heading in ("policy", "jobs", "", "JCT", "wait", "pending", "adjusted", "makespan", "utilisation"):
        table.add_column(heading, justify="left" if heading in ("policy", "") else "right")
    for summary in summaries:
        ends = (f"{summary.makespan_s:,.0f}", f"{summary.utilisation:.1%}")
        table.add_row(summary.policy, *_cells("all", figures=summary.overall), *ends)
        for name, figures in summary.by_size.items():
            table.add_row("", *_cells(name, figures=figures), "", "")
        table.add_section()
    return table


def _cells(name: str, *, figures: Figures) -> tuple[str, ...]:
    times = (figures.jct_s, figures.wait_s, figures.pending_s)
    shown = ["-" if time != time else f"{time:,.1f}" for time in times]
    adjusted = "-" if figures.adjustments != figures.adjustments else f"{figures.adjustments:.1f}"
    return (str(figures.jobs), name, *shown, adjusted)
