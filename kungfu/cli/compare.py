"""``kungfu compare RUN RUN``: compares runs by time to a loss, cost, sizes and decisions."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from kungfu.cli.draw.panels import draw_curve, fit_axis, smoothed
from kungfu.cli.draw.recorded_run import MOST_GROUPS
from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED, blank_figure, integer_ticks, write_png
from kungfu.cli.report.narrative import changes
from kungfu.cli.report.reader import Row, read_events, read_rows, rows_in_order
from kungfu.cli.report.step_groups import Figures, Series, StepGroups
from kungfu.cli.report_console import ReportConsole
from kungfu.errors import UsageError
from kungfu.event_log.events import LoggedEvent, of_topics
from kungfu.event_log.job import Job, fold
from kungfu.event_log.numbers import as_json
from kungfu.event_log.values import counted, duration, figure, finite_number, number_or_nan, sizes_passed
from kungfu.extras import missing

_COLOURS = (BLUE, ORANGE, GREEN, RED, "#6f42c1", "#0b7285", "#a61e4d", GREY)
_OVER = {"time": "time (s)", "steps": "step", "samples": "samples", "peer-seconds": "peer-seconds"}
_OF_A_STEP = ("time", "size", "batch")
_CURVES = ("loss", "samples_per_s")
_SUMS = ("time", "samples", "peer-seconds")
# The number of points at the end of a run; the median of their losses is the loss of the run.
_AT_THE_END = 13


@dataclass(frozen=True)
class ComparedRun:
    """A run prepared for comparison; arrays have one entry per step, or per group of steps of a long run.

    Attributes:
        over: The values on each x axis of the plot, at the end of each step or group: seconds since training began,
            the number of the step, samples, and peer-seconds.
        figures: The loss, the size and the samples per second, in the same groups.
        loss: The typical loss around each step.
        speed: The typical samples per second around each step.
    """

    name: str
    count: int
    sizes: tuple[int, ...]
    over: Mapping[str, Series]
    figures: StepGroups
    loss: Series
    speed: Series
    job: Job
    events: tuple[LoggedEvent, ...]


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run; ``None`` means unknown or not reached.

    Attributes:
        seconds: Seconds from the beginning of training to the end of the last step.
        peer_seconds: The seconds of all peers together.
        loss: The typical loss at the end of the run.
        to_loss: Seconds, steps, samples and peer-seconds until the run reached the loss of the comparison.
        decisions: The number of sizes that each rule requested.
        changes: The number of membership changes, as text.
        stopped_s: Seconds for which these changes stopped training.
        note: A note on the record; empty for a complete run.
    """

    name: str
    steps: int
    samples: int
    seconds: float
    peer_seconds: float
    loss: float | None
    to_loss: Mapping[str, float] | None
    sizes: tuple[int, ...]
    decisions: Mapping[str, int]
    changes: str
    stopped_s: float
    note: str = ""


@dataclass(frozen=True)
class ComparedRuns:
    """Several runs with their figures, and the loss ``goal`` for which their costs are compared."""

    runs: tuple[ComparedRun, ...]
    figures: tuple[RunFigures, ...]
    goal: float | None

    def rows(self) -> dict[str, list[str]]:
        """The cells of the table for each of its rows, by the name of the row."""
        columns = [_column(one, f"to loss {figure(self.goal)}") for one in self.figures]
        return {name: [column[name] for column in columns] for name in columns[0]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu compare``."""
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="RUN", help="the folders of the runs' records")
    add("--loss", type=float, metavar="L", help="loss for which to compare times (the lowest one that all runs reach)")
    add("--over", choices=tuple(_OVER), default="time", help="the x axis of the plot (%(default)s)")
    add("--to", type=Path, metavar="FILE", help="the PNG to write (compare.png)")
    add("--json", action="store_true", help="print one JSON object, for programs")


def run(given: argparse.Namespace) -> int:
    """Compares the runs of a command line: prints the table and draws the plot; returns the exit code."""
    if len(given.folders) < 2:
        raise UsageError(f"{given.folders[0]}: one run is compared with nothing; give two folders or more")
    if given.loss is not None and not math.isfinite(given.loss):
        raise UsageError(f"--loss {given.loss}: must be a number")
    compared = compare_runs(given.folders, goal=given.loss)
    goal, figures = compared.goal, compared.figures
    target = _plotted(compared, given)
    if given.json:
        document = {"loss": goal, "runs": [asdict(one) for one in figures], "plot": target and str(target)}
        print(json.dumps(as_json(document, nan=None), indent=2, allow_nan=False))
        return 0
    console = ReportConsole(highlight=False)
    console.print(_table(compared))
    for one in figures:
        if one.note:
            console.print(Text(f"note: {one.name}: {one.note}", style="yellow"), soft_wrap=True)
    if target is not None:
        console.print(Text(str(target)), soft_wrap=True)
    return 0


def _plotted(compared: ComparedRuns, given: argparse.Namespace) -> Path | None:
    """Draws the plot and returns its path; without matplotlib, returns ``None`` and says so, unless --to is given."""
    if given.to is None and (advice := missing("plots")):
        print(f"kungfu compare: no plot is drawn: it {advice}", file=sys.stderr)
        return None
    return write_png(drawn(compared.runs, compared.goal, over=given.over), given.to or Path("compare.png"))


def compare_runs(folders: Sequence[Path], *, goal: float | None = None) -> ComparedRuns:
    """Compares the runs in some folders.

    Args:
        goal: The loss for which to compare times; the lowest loss that all runs reach, if none is given.

    Raises:
        UsageError: A folder holds no record of this version, or no step.
    """
    names = [folder.resolve().name for folder in folders]
    # Runs with equal names could not be distinguished.
    names = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    runs = tuple(read_run(folder, name=name) for folder, name in zip(folders, names, strict=True))
    goal = _common_loss(runs) if goal is None else goal
    return ComparedRuns(runs, tuple(figures_of(one, goal=goal) for one in runs), goal)


# ---- figures ---------------------------------------------------------------------------------------------------------


def read_run(folder: Path, *, name: str) -> ComparedRun:
    """Reads a run; for a repeated step, the last line counts.

    Raises ``UsageError`` if the record is missing, is of another version, or has no step."""
    events = read_events(folder).events
    job = fold(events)
    began = math.nan if job.trained_at is None else job.trained_at
    groups, sizes, count = StepGroups(MOST_GROUPS), list[float](), 0
    for step, figures in _sums(rows_in_order(read_rows(folder)), began):
        groups.add(step, figures)
        if "size" in figures and sizes[-1:] != [figures["size"]]:
            sizes.append(figures["size"])
        count += 1
    if not count:
        raise UsageError(f"{folder / 'metrics.jsonl'}: no step of the run was measured, so it cannot be compared")
    # A sum grows, so its value at the end of a group is the highest.
    sums = {name: groups.curve(name).high for name in _SUMS}
    over = {"time": sums["time"], "steps": np.array([*groups.lasts()]), **sums}
    loss, speed, size = (groups.curve(name).values for name in (*_CURVES, "size"))
    typical = smoothed(loss, np.zeros_like(loss)), smoothed(speed, size)
    return ComparedRun(name, count, tuple(map(int, sizes)), over, groups, *typical, job, events)


def _sums(steps: Iterable[tuple[float, Row]], began: float) -> Iterator[tuple[float, Figures]]:
    """Yields each step with its figures and the sums up to its end: seconds, samples and peer-seconds."""
    seconds = samples = peer_seconds = 0.0
    is_first = True
    for step, row in steps:
        known = {name: number for name in _OF_A_STEP if (number := finite_number(row.get(name))) is not None}
        known |= {name: number for name in _CURVES if (number := number_or_nan(row.get(name))) is not None}
        time = known.pop("time", math.nan)
        # A clock may have been set back since training began.
        if is_first:
            began, is_first = min(began, time) if math.isfinite(began) else time, False
        before, passed = seconds, time - began
        seconds = max(seconds, 0.0 if math.isnan(passed) else passed)
        samples += known.pop("batch", 0.0)
        peer_seconds += known.get("size", 0.0) * (seconds - before)
        yield step, {**known, **dict(zip(_SUMS, (seconds, samples, peer_seconds), strict=True))}


def figures_of(compared: ComparedRun, *, goal: float | None) -> RunFigures:
    """The figures of a run, with the cost of reaching the loss ``goal``."""
    known = compared.loss[np.isfinite(compared.loss)]
    asked, job = Counter(one.rule for one in of_topics(compared.events, "decision")), compared.job
    first = int(next(compared.figures.firsts()))
    seconds, _, samples, peer_seconds = (float(axis[-1]) for axis in compared.over.values())
    resumed = f"its record begins with step {first:,}: what came before, in another run, is not counted"
    undefined = compared.figures.curve("loss").note
    notes = [resumed] * (first > 1) + [f"loss: {undefined}"] * bool(undefined)
    return RunFigures(
        compared.name, compared.count, int(samples), seconds, peer_seconds,
        float(np.median(known[-_AT_THE_END:])) if known.size else None, _reached(compared, goal),
        compared.sizes, dict(asked), changes(job), job.tally.stopped_s, "; ".join(notes),
    )  # fmt: skip


def _reached(compared: ComparedRun, goal: float | None) -> Mapping[str, float] | None:
    """The seconds, steps, samples and peer-seconds until a run reached the loss ``goal``; ``None`` if it never did."""
    there = np.flatnonzero(compared.loss <= (-math.inf if goal is None else goal))
    return {unit: float(values[there[0]]) for unit, values in compared.over.items()} if there.size else None


def _common_loss(runs: Sequence[ComparedRun]) -> float | None:
    """The lowest loss that every run reaches, plus one percent; ``None`` if a run has no loss."""
    if not all(np.isfinite(one.loss).any() for one in runs):
        return None
    highest = max(float(np.nanmin(one.loss)) for one in runs)
    # Slightly above that loss, so that a run need not match its lowest loss exactly.
    return float(f"{highest + 0.01 * abs(highest):.3g}")


# ---- as a table ------------------------------------------------------------------------------------------------------


def _table(compared: ComparedRuns) -> Table:
    columns = (Column(Text(one.name), justify="right", overflow="fold") for one in compared.figures)
    table = Table("", *columns)
    for name, cells in compared.rows().items():
        table.add_row(name, *map(Text, cells))
    return table


def _column(one: RunFigures, to: str) -> dict[str, str]:
    """The cells of a run by the names of their rows."""
    reached = one.to_loss or {}
    return {
        "time": duration(one.seconds),
        f"time {to}": duration(reached.get("time")),
        f"steps {to}": figure(reached.get("steps")),
        f"samples {to}": figure(reached.get("samples")),
        f"peer-seconds {to}": figure(reached.get("peer-seconds")),
        "loss at the end": figure(one.loss),
        "steps": figure(one.steps),
        "samples": figure(one.samples),
        "samples / s": figure(one.samples / one.seconds if one.seconds else None),
        "peer-seconds": figure(one.peer_seconds),
        "sizes": sizes_passed(one.sizes),
        "changes": one.changes,
        "stood still": duration(one.stopped_s),
        "decisions": ", ".join(f"{rule}: {count}" for rule, count in one.decisions.items()) or "none",
    }


# ---- as a plot -------------------------------------------------------------------------------------------------------


def drawn(runs: Sequence[ComparedRun], goal: float | None, *, over: str) -> Any:
    """A figure of loss, size and throughput of the runs, in panels with a common axis."""
    canvas = blank_figure(9.0, 8.5)
    panels: Any = canvas.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (1.4, 1.0, 1.0)})
    loss, size, speed = panels
    for compared, colour in zip(runs, itertools.cycle(_COLOURS), strict=False):
        x = compared.over[over]
        draw = partial(draw_curve, color=colour, linewidth=1.8)
        curve = compared.figures.curve
        note = curve("loss").note
        named = (f"{compared.name} ({note})" if note else compared.name).replace("$", r"\$")
        draw(loss, x, curve("loss"), line=compared.loss, label=named)
        draw(size, x, curve("size"), is_stepped=True)
        draw(speed, x, curve("samples_per_s"), line=compared.speed)
        steps = compared.over["steps"]
        rescales = (one.step for one in of_topics(compared.events, "rescale"))
        at = np.searchsorted(steps, [step for step in rescales if steps[0] <= step <= steps[-1]])
        size.scatter(x[at], curve("size").values[at], marker="D", s=26, facecolor="white", edgecolor=colour, zorder=3)
    if goal is not None:
        loss.axhline(goal, color=GREY, linewidth=1, linestyle=":")
    for panel, label in zip(panels, ("loss", "size (peers)", "samples/s"), strict=True):
        panel.set_ylabel(label)
        panel.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    fit_axis(loss, np.concatenate([one.loss for one in runs]))
    for panel in (size, speed):
        panel.set_ylim(bottom=0)
    integer_ticks(size.yaxis, most=6)
    loss.legend(loc="upper right", frameon=False, fontsize=9)
    panels[-1].set_xlabel(_OVER[over])
    canvas.suptitle(f"{counted(len(runs), 'run')} beside each other", fontsize=12)
    return canvas
