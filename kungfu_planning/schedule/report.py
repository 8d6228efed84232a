"""Reports of simulations: tables for a terminal, JSON for programs, and a plot over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from kungfu.errors import UsageError
from kungfu_planning.pictures import write_picture
from kungfu_planning.schedule.outcome import GroupMetrics, SimulationResult, Summary, reduction


def summary_table(summaries: Sequence[Summary], *, title: str) -> Table:
    """A table with a block of rows per policy: all jobs, then each group; times in seconds."""
    printed = [f"{one.policy}: makespan {one.makespan_s:,.0f}, busy {_share(one.utilisation)}" for one in summaries]
    units = "seconds; wait: to the first start; pending: all time without GPUs; moves: adjustments a job"
    table = Table(
        title=title, caption="\n".join((*printed, units)), box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True
    )  # fmt: skip
    table.add_column("policy", no_wrap=True, max_width=17)
    for heading in ("jobs", "JCT", "p50", "p95", "p99", "wait", "pending", "moves"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(f"[bold]{summary.policy}[/bold]", *_cells(summary.overall))
        for name, figures in summary.groups.items():
            table.add_row(f"  {escape(name) or '(none)'}", *_cells(figures))
    return table


def sweep_table(runs: Sequence[SweepRun], *, title: str) -> Table:
    """A table with a row for each cluster, load and policy; times in seconds."""
    table = Table(title=title, caption="seconds", box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    for heading in ("GPUs", "load", "policy", "JCT", "p50", "p95", "p99", "wait", "makespan", "busy"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for run in runs:
        figures, load = run.summary.overall, "-" if run.load is None else f"{run.load:g}"
        times = (figures.jct_s, figures.jct_p50_s, figures.jct_p95_s, figures.jct_p99_s, figures.wait_s)
        ends = (_brief(run.summary.makespan_s), _share(run.summary.utilisation))
        table.add_row(str(run.summary.gpus), load, run.summary.policy, *map(_brief, times), *ends)
    return table


def _cells(figures: GroupMetrics) -> tuple[str, ...]:
    times = (figures.jct_s, figures.jct_p50_s, figures.jct_p95_s, figures.jct_p99_s, figures.wait_s, figures.pending_s)
    return str(figures.jobs), *map(_brief, times), "-" if figures.adjustments is None else f"{figures.adjustments:.1f}"


def _brief(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f}" if seconds >= 1000 else f"{seconds:.1f}"


def _share(utilisation: float | None) -> str:
    return "-" if utilisation is None else f"{utilisation:.1%}"


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation of a sweep; ``load`` is None if the arrivals of the trace are unchanged."""

    load: float | None
    summary: Summary


class Reduction(msgspec.Struct, kw_only=True):
    """The fractions by which times under the first policy are below those under the second; negative if above."""

    gpus: int
    load: float | None
    jct: float | None
    pending: float | None
    makespan: float | None


class SweepAnswer(msgspec.Struct, kw_only=True):
    """The smallest cluster of the sweep for which the 95th percentile of completion times is within the target.

    If no cluster of the sweep meets the target, ``gpus`` is None and ``jct_p95_s`` is the smallest percentile found.
    """

    policy: str
    load: float | None
    target_s: float
    gpus: int | None
    jct_p95_s: float | None


class SimulationReport(msgspec.Struct, kw_only=True):
    """The JSON output of ``kungfu plan simulate``; times in seconds."""

    version: Literal[1] = 1
    settings: dict[str, Any]
    """Every option of the command line, and the pauses, shares and parameters of each policy."""
    jobs: int
    skipped_rows: list[str]
    """The skipped rows, each with its error."""
    runs: list[SweepRun]
    reductions: list[Reduction]
    answers: list[SweepAnswer]


def reductions(runs: Sequence[SweepRun]) -> list[Reduction]:
    """For each cluster and load, the fractions by which the first policy's times are below the second policy's."""
    found = []
    for ours, theirs in zip(runs[::2], runs[1::2], strict=True):
        before, after = theirs.summary, ours.summary
        found.append(
            Reduction(
                gpus=after.gpus,
                load=ours.load,
                jct=reduction(before.overall.jct_s, after=after.overall.jct_s),
                pending=reduction(before.overall.pending_s, after=after.overall.pending_s),
                makespan=reduction(before.makespan_s, after=after.makespan_s),
            )
        )
    return found


def answers(runs: Sequence[SweepRun], *, target_s: float) -> list[SweepAnswer]:
    """For each policy and load, the smallest cluster whose 95th percentile of completion times meets the target."""
    found = []
    for policy, load in dict.fromkeys((run.summary.policy, run.load) for run in runs):
        mine = [run.summary for run in runs if (run.summary.policy, run.load) == (policy, load)]
        by_gpus = {one.gpus: one.overall.jct_p95_s or 0.0 for one in mine}
        enough = [gpus for gpus, p95_s in by_gpus.items() if p95_s <= target_s]
        least = min(enough, default=None)
        p95_s = min(by_gpus.values()) if least is None else by_gpus[least]
        found.append(SweepAnswer(policy=policy, load=load, target_s=target_s, gpus=least, jct_p95_s=p95_s))
    return found


_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0}


def save_plot(results: Sequence[SimulationResult], *, path: str | Path) -> Path:
    """Writes a picture of busy GPUs and waiting jobs over time; the file is complete or absent.

    Args:
        results: the simulations to compare, at least one.
        path: the file; its extension (.png, .svg, .pdf) sets the format.

    Raises:
        UsageError: The file cannot be written, or the extension is unknown.
    """
    from matplotlib.figure import Figure  # imported only here: takes half a second

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
    """The name of the largest unit of time that is at most half as long as ``span_s``; at least seconds."""
    return next((name for name, seconds in reversed(_UNITS.items()) if span_s >= 2 * seconds), "seconds")
