"""``kungfu profile MIN MAX``: measures throughput and efficiency at each size and batch: a table, JSON and a plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Column, Table

from kungfu.cli.job.submit import exit_code, submit_and_wait
from kungfu.cli.png import BLUE, GREEN, GREY, blank_figure, integer_ticks, png_of
from kungfu.cli.report.reader import read_start
from kungfu.cli.report_console import ReportConsole
from kungfu.errors import UsageError
from kungfu.event_log.values import figure
from kungfu.extras import missing
from kungfu.runtime.core.request import Asked, Profile
from kungfu.runtime.core.requests.profiling import Point
from kungfu.runtime.job_api.status import RequestProgress


@dataclass(frozen=True)
class Measure:
    """The measurement at one size and batch, of all peers together."""

    size: int
    samples_per_s: float
    efficiency: float  # throughput per peer relative to the best size of the batch; 1 at that size
    steps: int
    batch: float  # mean samples of a step


def run_profile(
    folder: Path, request: Asked, *, timeout_s: float, form: Literal["text", "json"], target: Path | None
) -> int:
    """Requests a profile from the job, prints the figures, writes STEM.json and STEM.png; returns the exit code."""
    progress = submit_and_wait(folder, request, timeout_s=timeout_s)
    batches = request.what.batches if isinstance(request.what, Profile) else ()
    measures = efficiencies(progress.points, batches=batches)
    started = read_start(folder) if measures else None
    document = {
        "version": 1,
        "program": started.command if started else (),
        "attachment": started.attachment if started else "",
        "request": progress.words,
        "state": progress.state,
        "reason": progress.reason,
        "sizes": measures,  # batch by batch, and for each batch in order of rising sizes
    }
    stem = target or folder / "profile"
    text = json.dumps(document, indent=2, default=asdict)
    if form == "json":
        print(text)
    else:
        _print(progress, measures, batches=batches)
    if measures:
        figures = stem.with_name(f"{stem.name}.json")
        _write(figures, f"{text}\n".encode())
        written = [figures, *_plotted(measures, stem.with_name(f"{stem.name}.png"), batches=batches)]
        if form == "text":
            print(f"written: {', '.join(map(str, written))}")
    return exit_code(progress, timeout_s=timeout_s)


def efficiencies(points: Sequence[Point], *, batches: Sequence[int] = ()) -> list[Measure]:
    """Throughput ``t(p)`` in samples/s and efficiency ``(t(p) / p) / max_q (t(q) / q)``, by size.

    The size with the most samples per peer has efficiency 1; this is often, but not always, the smallest size. A
    profile of several batches has the sizes of each batch, one batch after the other.

    >>> [one.efficiency for one in efficiencies([Point(2, 5, 300, 2.0), Point(1, 5, 100, 1.0)])]
    [1.0, 0.75]
    >>> [one.batch for one in efficiencies([Point(1, 2, 8, 1.0), Point(1, 2, 4, 1.0)], batches=(2, 4))]
    [2.0, 4.0]

    Reference:
        Amoeba (Wu et al., 2019), section 3.1.
    """
    if batches:
        of = {batch: [one for one in points if one.samples == one.steps * batch] for batch in sorted(batches)}
        return [one for measured in of.values() for one in efficiencies(measured)]
    best = max((one.samples_per_s / one.size for one in points), default=0.0)
    found = list[Measure]()
    for one in sorted(points, key=lambda one: one.size):
        efficiency = one.samples_per_s / one.size / best if best else 0.0
        batch = one.samples / one.steps if one.steps else 0.0
        found.append(Measure(one.size, one.samples_per_s, efficiency, one.steps, batch))
    return found


def _print(progress: RequestProgress, measures: Sequence[Measure], *, batches: Sequence[int]) -> None:
    console = ReportConsole(highlight=False)
    if measures:
        names = (*(("batch",) if batches else ()), "peers", "samples/s", "a peer", "efficiency", "steps")
        table = Table(*(Column(name, justify="right") for name in names))
        for one in measures:
            speeds = (figure(one.samples_per_s), figure(one.samples_per_s / one.size))
            batch = (f"{one.batch:g}",) if batches else ()
            table.add_row(*batch, str(one.size), *speeds, f"{one.efficiency:.0%}", str(one.steps))
        console.print(table)
    if progress.state != "carried out":
        console.print(f"{progress.words}: {progress.state}{': ' if progress.reason else ''}{progress.reason}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be written with --to") from error


def _plotted(measures: Sequence[Measure], target: Path, *, batches: Sequence[int] = ()) -> list[Path]:
    """Draws the plot and returns its path; without matplotlib, says so and returns no path."""
    if advice := missing("plots"):
        print(f"kungfu profile: no plot is drawn: it {advice}", file=sys.stderr)
        return []
    _write(target, _draw(measures, batches=batches))
    return [target]


def _draw(measures: Sequence[Measure], *, batches: Sequence[int]) -> bytes:
    """A PNG of throughput and efficiency; the dotted line is the highest throughput per peer times the size.

    Of several batches, it shows the curves of all: the larger the batch, the darker."""
    canvas = blank_figure(7.0, 4.2)
    left: Any = canvas.subplots()
    right = left.twinx()
    best, most = max(one.samples_per_s / one.size for one in measures), max(one.size for one in measures)
    left.plot([0, most], [0, best * most], color=GREY, linestyle=":", label="all at their best")
    for number, batch in enumerate(sorted(batches) or [None]):
        shown = [one for one in measures if batch in (None, one.batch)]
        sizes, speeds, shares = zip(*((one.size, one.samples_per_s, one.efficiency) for one in shown), strict=True)
        kind = {"alpha": (number + 1) / max(1, len(batches))}
        of = "" if batch is None else f" at {batch}"
        left.plot(sizes, speeds, color=BLUE, marker="o", label=f"throughput{of}", **kind)
        right.plot(sizes, shares, color=GREEN, marker="s", linestyle="--", label=f"efficiency{of}", **kind)
    left.set_xlabel("size (peers)")
    left.set_ylabel("throughput (samples/s)", color=BLUE)
    right.set_ylabel("efficiency", color=GREEN)
    left.set_ylim(bottom=0)
    left.set_xlim(left=0)
    right.set_ylim(0, 1.05)
    right.spines["top"].set_visible(False)
    left.spines["top"].set_visible(False)
    integer_ticks(left.xaxis)
    canvas.legend(loc="outside upper center", ncols=3, frameon=False)
    return png_of(canvas)
