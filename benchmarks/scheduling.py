"""The effect of elasticity on published and generated traces, and the speed of the simulator.

``python -m benchmarks.scheduling [--data DIR] [--jobs N]`` prints tables with the papers' figures next to ours and, as
its last line, one JSON object. Published traces are read from a folder next to the repository, and omitted if absent.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kungfu_planning.schedule import (
    ClusterJob,
    Pauses,
    generated,
    read_job_trace,
    read_throughputs,
    reduction,
    simulate,
    summary,
)
from kungfu_planning.schedule.cluster_policies.catalogue import CATALOGUE, with_shares
from kungfu_planning.schedule.outcome import Summary
from kungfu_planning.schedule.traces.read import BatchScaling

DATA = Path(__file__).parents[2] / "shared" / "data"
RIGID = ("fifo", "first-fit", "easy", "conservative", "tiresias")
CLASSES = ("small", "median", "large")
Figures = dict[str, float | dict[str, float] | None]


@dataclass(frozen=True)
class Run:
    """The arguments of one simulation."""

    jobs: tuple[ClusterJob, ...]
    gpus: int
    policy: str
    pauses: Pauses | None = None
    pending_over: int = 0


def made(run: Run) -> Summary:
    """Runs one simulation, with the limits and pauses of the policy's paper, and returns its figures."""
    entry = CATALOGUE[run.policy]
    pauses = run.pauses or entry.pauses or Pauses()
    jobs = with_shares(run.jobs, shares=entry.shares)
    return summary(
        simulate(
            jobs,
            gpus=run.gpus,
            policy=entry.make(replace(entry.defaults, pending_over=run.pending_over)),
            pauses=pauses,
        )
    )


def tiresias_table(traces: Iterable[tuple[str, tuple[ClusterJob, ...], int]]) -> tuple[Table, Figures]:
    """Compares Tiresias with Elastic-Tiresias: the reduction of the mean JCT, of all jobs and by size class."""
    table = _table(
        "Elastic-Tiresias: reduction of mean JCT against Tiresias (quanta 10,000 and 200,000 GPU s)",
        headings=("trace", "GPUs", "N", "all", *CLASSES, "pending", "after"),
    )
    table.add_row("paper", "?", "?", "29.8%", "46.7%", "-8.2%", "24.2%", "", "")
    figures: Figures = {}
    for name, jobs, gpus in track(list(traces), description="Tiresias"):
        rigid = made(Run(jobs, gpus, "tiresias"))
        for waiting in (0, 5, 20):
            elastic = made(Run(jobs, gpus, "elastic-tiresias", pending_over=waiting))
            table.add_row(name, str(gpus), str(waiting), *_reductions(rigid, after=elastic), *_pending(rigid, elastic))
            if waiting == 0:
                figures[f"etiresias_jct_reduction_{name}"] = reduction(rigid.overall.jct_s, after=elastic.overall.jct_s)
    return table, figures


def _table(title: str, *, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _reductions(before: Summary, *, after: Summary) -> list[str]:
    pairs = [(before.overall, after.overall), *((before.groups[name], after.groups[name]) for name in CLASSES)]
    shares = (reduction(old.jct_s, after=new.jct_s) for old, new in pairs)
    return ["-" if share is None else f"{share:.1%}" for share in shares]


def _pending(*summaries: Summary) -> list[str]:
    return [f"{each.overall.pending_s:,.0f} s" for each in summaries]


def load_table() -> tuple[Table, Figures]:
    """The loads at which elasticity helps: the same jobs at increasing arrival rates."""
    table = _table(
        "Generated ITP-like trace, 128 GPUs: where elasticity pays (reduction of mean JCT)",
        headings=("load", "pending under Tiresias", "elastic", "GPU hours", "only shrinking", "GPU hours "),
    )
    figures: Figures = {}
    for load in track((0.1, 0.3, 0.6, 0.9, 1.2), description="loads"):
        jobs = generated("itp", jobs=1500, gpus=128, load=load, seed=1)
        rigid, elastic = made(Run(jobs, 128, "tiresias")), made(Run(jobs, 128, "elastic-tiresias"))
        shrinking = made(Run(tuple(replace(job, max_gpus=job.gpus) for job in jobs), 128, "elastic-tiresias"))
        row = [f"{load}", f"{rigid.overall.pending_s:,.0f} s"]
        for other in (elastic, shrinking):
            saved = reduction(rigid.overall.jct_s, after=other.overall.jct_s)
            row += [f"{saved:.1%}", f"{_hours(other) / _hours(rigid):.2f}x"]
        table.add_row(*row)
        figures[f"shrinking_jct_reduction_load_{load}"] = reduction(rigid.overall.jct_s, after=shrinking.overall.jct_s)
        figures[f"elastic_gpu_hours_ratio_load_{load}"] = _hours(elastic) / _hours(rigid)
    return table, figures


def _hours(figures: Summary) -> float:
    return (figures.utilisation or 0.0) * figures.gpus * figures.makespan_s / 3600


def elan_table(trace_in: Callable[[BatchScaling], tuple[ClusterJob, ...]], *, gpus: int) -> tuple[Table, Figures]:
    """Compares FIFO and backfilling with E-FIFO and E-BF, for the pauses of several systems."""
    table = _table(
        f"Elan on 195 ITP jobs, {gpus} GPUs, min a quarter and max four times the request (reductions)",
        headings=("policy", "against", "batch", "pause", "JPT", "JCT", "makespan", "busy"),
    )
    table.add_row("paper", "FIFO, BF", "hybrid", "1 s", "43%+", "25%+", "21%+", "")
    jobs = trace_in("strong")
    rigid = {name: made(Run(jobs, gpus, name)) for name in track(("fifo", "easy", "conservative"), description="rigid")}
    cases = [(policy, scaling, pause) for policy in ("efifo", "ebf") for scaling, pause in _SYSTEMS]
    figures: Figures = {}
    for policy, scaling, pause in track(cases, description="Elan"):
        after = made(Run(trace_in(scaling), gpus, policy, Pauses(pause, pause)))
        for against in ("fifo",) if policy == "efifo" else ("easy", "conservative"):
            shares = _elan_shares(rigid[against], after=after)
            busy = f"{after.utilisation:.0%}"
            table.add_row(policy, against, scaling, f"{pause:g} s", *(f"{share:.1%}" for share in shares), busy)
            if (scaling, pause) == ("strong", 1.0):
                suffix = "_conservative" if against == "conservative" else ""
                figures[f"{policy}_jct_reduction_195job{suffix}"] = shares[1]
    return table, figures


_SYSTEMS: tuple[tuple[BatchScaling, float], ...] = (("strong", 0.0), ("strong", 1.0), ("strong", 80.0), ("hybrid", 1.0))


def _elan_shares(before: Summary, *, after: Summary) -> tuple[float, float, float]:
    shares = (
        reduction(before.overall.wait_s, after=after.overall.wait_s),
        reduction(before.overall.jct_s, after=after.overall.jct_s),
        reduction(before.makespan_s, after=after.makespan_s),
    )
    first, second, third = (math.nan if share is None else share for share in shares)
    return first, second, third


def speed_table(count: int, *, gpus: int = 1024, load: float = 0.9) -> tuple[Table, Figures]:
    """The seconds to simulate a long trace under each policy, and their growth for rigid policies."""
    table = _table(
        f"Speed: {count:,} jobs on {gpus:,} GPUs (ITP-like, load {load}), processor seconds",
        headings=("policy", "seconds", "a quarter of the jobs", "growth over n log n"),
    )
    seconds, growth = {}, {}
    for policy in track(list(CATALOGUE), description="speed"):
        seconds[policy], quarter = (_timed(policy, count=jobs, gpus=gpus, load=load) for jobs in (count, count // 4))
        ideal = 4 * math.log(count) / math.log(count // 4)
        growth[policy] = seconds[policy] / quarter / ideal
        table.add_row(policy, f"{seconds[policy]:.1f}", f"{quarter:.1f}", f"{growth[policy]:.2f}")
    rigid = max(growth[policy] for policy in RIGID)
    return table, {"seconds_by_policy": seconds, "slowest_s": max(seconds.values()), "rigid_growth_over_n_log_n": rigid}


def _timed(policy: str, *, count: int, gpus: int, load: float) -> float:
    run = Run(generated("itp", jobs=count, gpus=gpus, load=load, seed=1), gpus, policy)
    start = time.process_time()
    made(run)
    return time.process_time() - start


def limits_table() -> tuple[Table, Figures]:
    """The two longest simulations: Tiresias on 200,000 jobs, and E-BF on an overloaded cluster."""
    table = _table(
        "Processor time of long and of overloaded simulations", headings=("simulation", "seconds", "ms a job")
    )
    figures: Figures = {}
    cases = [("tiresias", 200_000, 1024, 0.9), ("ebf", 10_000, 1024, 1.5), ("ebf", 10_000, 128, 1.5)]
    for policy, count, gpus, load in track(cases, description="limits"):
        seconds = _timed(policy, count=count, gpus=gpus, load=load)
        title = f"{policy}, {count:,} jobs, {gpus:,} GPUs, load {load}"
        table.add_row(title, f"{seconds:.1f}", f"{seconds / count * 1000:.2f}")
        figures[f"{policy}_s_{count}jobs_{gpus}gpus_load_{load}"] = seconds
    return table, figures


def published(data: Path) -> list[tuple[Table, Figures]]:
    """The tables that need the published traces."""
    measured = read_throughputs(data / "throughputs_A100")

    def trace(name: str, scaling: BatchScaling = "strong") -> tuple[ClusterJob, ...]:
        return read_job_trace(data / name, measured=measured, scaling=scaling)

    clusters = [(f"itp{number}", trace(f"itp/cluster{number}.csv"), 128) for number in ("01", "03", "06", "10")]
    philly = ("philly103959", trace("philly/philly_103959.csv"), 32)
    return [
        tiresias_table([*clusters, philly]),
        elan_table(lambda scaling: trace("itp/195job.csv", scaling), gpus=64),
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Runs all simulations, and prints the tables and a JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of published traces")
    parser.add_argument("--jobs", type=int, default=60_000, help="length of the trace of the speed test")
    arguments = parser.parse_args(words)
    console, figures = Console(), dict.fromkeys(_PROMISED)
    parts = published(arguments.data) if arguments.data.is_dir() else []
    for table, more in (*parts, load_table(), speed_table(arguments.jobs), limits_table()):
        console.print(table)
        figures |= more
    if not parts:
        console.print(f"no published traces in {arguments.data}: their tables are left out, their figures are null")
    print(json.dumps(figures))
    return 0


_PROMISED = (
    "etiresias_jct_reduction_itp06",
    "etiresias_jct_reduction_philly103959",
    "efifo_jct_reduction_195job",
    "ebf_jct_reduction_195job",
)

if __name__ == "__main__":
    raise SystemExit(main())
