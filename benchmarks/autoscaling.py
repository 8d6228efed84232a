"""Checks that `autoscale` finds the efficient size from any initial size: figures 6 and 7 of Or et al., 2020.

The jobs are real jobs under kungfu-run, with real peers, training graph, messages and decisions. Each peer represents
four T4 GPUs, and their time for a step is a sleep: the seconds of the measured curve, divided by 20. CIFAR-10 trains
with a global batch of 1024 from 2, 4 and 8 peers, ImageNet with 200 samples on each GPU from 2, 8 and 16. One peer is
added at a time. The jobs run on two kinds of curves; both are printed:

- the least concave majorants of the measurements, with a required scaling efficiency of 0.25;
- the measurements themselves, with the paper's 0.1. On a curve with dips the best size depends on the initial size.

*Best* is the size at which the paper's schedule stops on the curve without noise. The static twin of a job has the
job's initial size and samples, and is computed from the same curve; a short real run of each twin shows the error of
the computation. If the published curves are not next to the repository, stated curves are used, and the output reports
it.

Prints tables with the paper's figures next to ours, draws ``runs/benchmarks/autoscaling.png`` of the majorants, and
prints a JSON object as its last line: ``worst_distance_from_best`` in units of one peer, and for each job its figures,
and the same for the measurements under ``measured``.

Run: ``python -m benchmarks.autoscaling [--seconds 40] [--curves majorant measured] [--quick]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.emulation.curves import DATA, GPUS_EACH, Curve, amdahl, best_size, measured_t4
from benchmarks.emulation.jobs import RealRun, Task, Work, checked, run_job

PICTURE = Path("runs/benchmarks/autoscaling.png")
Kind = Literal["majorant", "measured"]
EFFICIENCY: Mapping[Kind, float] = {"majorant": 0.25, "measured": 0.1}  # required, by the kind of the curves
FASTER, UNIT, EVERY, LEAST = 20.0, 1, 10, 2
STARTS = {"CIFAR-10": (2, 4, 8), "ImageNet": (2, 8, 16)}
# Real samples represented by one of ours, and real steps by one of ours: the same samples per second with fewer
# messages, since all processes share the cores of this machine.
SAMPLES_EACH = {"CIFAR-10": 4, "ImageNet": 25}
STEPS_EACH = {"CIFAR-10": 8, "ImageNet": 3}
# Factors on the length of a job, so that a job that grows from 2 to 16 peers still has work left at 16.
LONGER = {"CIFAR-10": 1, "ImageNet": 4}
# By application: completion time and GPU time against static, mean and extreme; seconds until converged, mean and most.
PAPER = {
    "CIFAR-10": "time -8% (to -16%), GPU time -59% (to -85%), converged after 61 s, 78 s at most",
    "ImageNet": "time -19% (to -45%), GPU time +7% (to +15%), converged after 264 s, 583 s at most",
}


@dataclass(frozen=True)
class Case:
    """A job to run, and its static twin.

    Args:
        application: "CIFAR-10" or "ImageNet".
        task: The job with the policy.
        best: The size at which the rule stops without noise.
    """

    application: str
    task: Task
    best: int

    @property
    def start(self) -> int:
        """Peers at the start."""
        return self.task.start

    @property
    def static_s(self) -> float:
        """Seconds of the static twin."""
        return self.task.work.curve.seconds(self.start, samples=self.task.work.samples)

    @property
    def static_gpu_s(self) -> float:
        """GPU seconds of the static twin."""
        return self.static_s * self.start * GPUS_EACH


@dataclass(frozen=True)
class Result:
    """The result of a case.

    Args:
        case: The case that was run.
        run: The real job.
        twin_error: The fraction by which a real step of the static twin took longer than computed.
    """

    case: Case
    run: RealRun
    twin_error: float | None

    @property
    def distance(self) -> float:
        """The distance from the best size, in units of `UNIT` peers."""
        return abs(self.run.size - self.case.best) / UNIT

    @property
    def time_saved(self) -> float:
        """The fraction of the static twin's time saved by the policy; below 0 if the job took longer."""
        return 1 - self.run.seconds / self.case.static_s

    @property
    def gpu_time_saved(self) -> float:
        """The fraction of the static twin's GPU time saved by the policy."""
        return 1 - self.run.peer_seconds * GPUS_EACH / self.case.static_gpu_s


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=40.0,
        help="that CIFAR-10's fastest static twin takes (40); ImageNet's: 4 times",
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published curves")
    kinds = get_args(Kind)
    parser.add_argument("--curves", nargs="+", choices=kinds, default=kinds, help="the kinds of curves to run (both)")
    parser.add_argument("--quick", action="store_true", help="CIFAR-10 from 2 peers only, and no twin is checked")
    given = parser.parse_args(words)
    if not 1 <= given.seconds <= 3600:
        parser.error(f"--seconds {given.seconds:g}: takes 1 to 3600 seconds")
    return given


def measured_curves(folder: Path) -> dict[str, Curve]:
    """The measured curves, in device seconds; stated curves if the folder is missing."""
    if not folder.is_dir():
        return {
            "CIFAR-10": _without_one_peer(amdahl(6000.0, serial=0.95, most=8)),
            "ImageNet": _without_one_peer(amdahl(800.0, serial=0.005, most=16)),
        }
    return {
        "CIFAR-10": measured_t4(folder, "cifar10", local_batch=lambda gpus: 1024 / gpus, most=8),
        "ImageNet": measured_t4(folder, "imagenet", local_batch=lambda gpus: 200.0, most=16),
    }


def _without_one_peer(curve: Curve) -> Curve:
    return replace(curve, throughput={size: one for size, one in curve.throughput.items() if size >= LEAST})


def cases(curves: Mapping[str, Curve], *, seconds: float, kind: Kind) -> list[Case]:
    """All jobs on one kind of curves; the fastest static twin of CIFAR-10 takes ``seconds``."""
    made, efficiency = [], EFFICIENCY[kind]
    for application, measured in curves.items():
        each, steps = SAMPLES_EACH[application], STEPS_EACH[application]
        curve = (measured.smoothed() if kind == "majorant" else measured).faster(FASTER / each)
        samples = round(seconds * LONGER[application] * max(curve.throughput.values()))
        if application == "CIFAR-10":
            work = Work(curve, samples, steps * 1024 // each, "global_batch_size")
        else:
            work = Work(curve, samples, steps * 200 * GPUS_EACH // each, "local_batch_size")
        policy = (
            f"kungfu.policies:autoscale(max_peers={curve.most}, min_peers={LEAST}, efficiency={efficiency}, "
            f"unit={UNIT}, every={EVERY}, keep={work.keep!r})"
        )
        for start in STARTS[application]:
            best = best_size(curve, efficiency=efficiency, start=start)
            made.append(Case(application, Task(work, start, curve.most, LEAST, policy), best))
    return made


def run(case: Case, *, check: bool) -> Result:
    """Runs a case; if ``check``, also a short job of its twin."""
    error = checked(case.task) if check else None
    return Result(case, run_job(case.task), error)


def told_sizes(run: RealRun) -> str:
    """The sizes of a job in order, and the last requested size, as text."""
    sizes = [size for size, before in zip(run.sizes, (0, *run.sizes), strict=False) if size != before]
    decisions = [event for event in run.events if event["event"] == "decision"]
    last = (
        f", the last decision was for {decisions[-1]['asked']:g} after step {decisions[-1]['step']}"
        if decisions
        else ""
    )
    return f"{' '.join(map(str, sizes))} in {len(run.sizes)} steps{last}"


def figures(results: Sequence[Result]) -> dict[str, object]:
    """The figures for the JSON object."""
    made: dict[str, object] = {"worst_distance_from_best": max(one.distance for one in results)}
    for application in dict.fromkeys(one.case.application for one in results):
        own = [one for one in results if one.case.application == application]
        errors = [abs(one.twin_error) for one in own if one.twin_error is not None]
        made[application.lower().replace("-", "")] = {
            "best": {str(one.case.start): one.case.best for one in own},
            "sizes": {str(one.case.start): one.run.size for one in own},
            "seconds": {str(one.case.start): round(one.run.seconds, 1) for one in own},
            "static_seconds": {str(one.case.start): round(one.case.static_s, 1) for one in own},
            "time_saved_mean": round(statistics.mean(one.time_saved for one in own), 3),
            "time_saved_most": round(max(one.time_saved for one in own), 3),
            "gpu_time_saved_mean": round(statistics.mean(one.gpu_time_saved for one in own), 3),
            "gpu_time_saved_most": round(max(one.gpu_time_saved for one in own), 3),
            "converged_s_most": round(max(one.run.settled_s for one in own), 1),
            "worst_twin_error": round(max(errors), 3) if errors else None,
        }
    return made


def curve_table(measured: Mapping[str, Curve]) -> Table:
    """A table of the measured and the smoothed curve of each application."""
    table = Table(title="samples / s by peers of four GPUs: measured, and its least concave majorant", box=SIMPLE_HEAD)
    table.add_column("")
    for size in range(LEAST, max(one.most for one in measured.values()) + 1):
        table.add_column(str(size), justify="right", no_wrap=True)
    for application, curve in measured.items():
        for name, one in ((application, curve), ("  majorant", curve.smoothed())):
            table.add_row(name, *(f"{value:.0f}" for value in one.throughput.values()))
    return table


def result_table(results: Sequence[Result], *, kind: Kind) -> Table:
    """A table with a row for each job on one kind of curves."""
    rule = f"autoscale(efficiency={EFFICIENCY[kind]}, unit={UNIT})"
    title = f"{rule}, {kind} curves: device seconds / {FASTER:g}, GPUs in fours"
    table = Table(title=title, box=SIMPLE_HEAD)
    for heading in (
        "",
        "from",
        "ends at",
        "best",
        "converged",
        "time",
        "static",
        "saved",
        "GPU time saved",
        "twin off",
    ):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for application in dict.fromkeys(one.case.application for one in results):
        for one in results:
            if one.case.application != application:
                continue
            off = "" if one.twin_error is None else f"{one.twin_error:+.1%}"
            times = (f"{seconds:.1f} s" for seconds in (one.run.settled_s, one.run.seconds, one.case.static_s))
            sizes = (one.case.start, one.run.size, one.case.best)
            table.add_row(
                application, *map(str, sizes), *times, f"{one.time_saved:+.1%}", f"{one.gpu_time_saved:+.1%}", off
            )
        table.add_section()
    return table


def drawn(results: Sequence[Result]) -> Figure:
    """Draws figures 6 and 7: completion time and GPU time by the initial size, and the size over time."""
    applications = list(dict.fromkeys(one.case.application for one in results))
    figure = Figure(figsize=(11, 3.1 * len(applications)), layout="constrained")
    rows = figure.subplots(len(applications), 3, squeeze=False)
    for (times, gpu_times, sizes), application in zip(rows, applications, strict=True):
        own = [one for one in results if one.case.application == application]
        places = range(len(own))
        starts = [str(one.case.start) for one in own]
        bars = [
            (times, "completion, s", [one.case.static_s for one in own], [one.run.seconds for one in own]),
            (gpu_times, "GPU seconds", [one.case.static_gpu_s for one in own],
             [one.run.peer_seconds * GPUS_EACH for one in own]),
        ]  # fmt: skip
        for axes, label, static, scaled in bars:
            axes.bar([place - 0.2 for place in places], static, 0.4, label="static (from the curve)", color="#8a8f98")
            axes.bar([place + 0.2 for place in places], scaled, 0.4, label="autoscale (real job)", color="#1f6fb4")
            axes.set(title=application, xlabel="peers at the start", ylabel=label, xticks=list(places))
            axes.margins(y=0.3)  # for the legend
            axes.set_xticklabels(starts)
        times.legend(fontsize=8)
        for one in own:
            sizes.step(
                [0.0, *one.run.ends], [one.case.start, *one.run.sizes], where="pre", label=f"from {one.case.start}"
            )
        sizes.axhline(own[0].case.best, color="black", linestyle=":", linewidth=1, label="best")
        sizes.set(title=application, xlabel="seconds", ylabel="peers", ylim=(0, None))
        sizes.yaxis.set_major_locator(MaxNLocator(integer=True))
        sizes.legend(fontsize=8)
    return figure


def main(words: Sequence[str] | None = None) -> int:
    """Runs all jobs, prints the tables and draws the figures."""
    given = arguments(words)
    console, before, begun = Console(width=140), os.getloadavg()[0], time.monotonic()
    measured = measured_curves(given.data)
    if not given.data.is_dir():
        names = ", ".join(f"{name}: {one.name}" for name, one in measured.items())
        console.print(f"no published curves in {given.data}: stated ones take their place ({names})", highlight=False)
    console.print(f"Real jobs; what their devices take is emulated by a sleep of the curve's seconds / {FASTER:g}.")
    console.print(curve_table(measured))
    found: dict[Kind, list[Result]] = {}
    for kind in given.curves:
        wanted = cases(measured, seconds=given.seconds, kind=kind)
        found[kind] = []
        for case in wanted[:1] if given.quick else wanted:
            console.print(f"{kind} curve, {case.application} from {case.start} peers", highlight=False)
            found[kind].append(run(case, check=not given.quick))
            console.print(f"  {told_sizes(found[kind][-1].run)}", highlight=False)
        console.print(result_table(found[kind], kind=kind))
    for application, paper in PAPER.items():
        console.print(f"the paper, {application}: {paper}", highlight=False)
    made = {kind: figures(results) for kind, results in found.items()}
    if "majorant" in found:
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        drawn(found["majorant"]).savefig(PICTURE)
        console.print(f"picture  {PICTURE}")
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    times = {"wall_s": round(time.monotonic() - begun, 1), "load": load}
    print(json.dumps({**made.pop("majorant", {}), **made, **times}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
