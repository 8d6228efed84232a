"""``kungfu plan simulate``: run a trace through one policy, or two side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from rich.console import Console
from rich.progress import Progress, TaskID

from kungfu.errors import UsageError
from kungfu_planning.schedule import (
    ClusterJob,
    Pauses,
    SimulationResult,
    State,
    generated,
    read_job_trace,
    read_throughputs,
    simulate,
)
from kungfu_planning.schedule.cluster_policies.catalogue import (
    CATALOGUE,
    CatalogueEntry,
    Tuning,
    with_shares,
)
from kungfu_planning.schedule.outcome import Summary, reduction, summary, summary_as_dict
from kungfu_planning.schedule.report import save_plot, summary_table
from kungfu_planning.schedule.traces.read import FORMATS, own_columns

SUMMARY = "run a scheduler over a trace of jobs"

_EVENTS_A_TICK = 500
_TUNING = tuple(one.name for one in fields(Tuning))
# Of these each policy uses some, or none; see `CatalogueEntry.options`.
_USED_BY_SOME = (*_TUNING, "pause", "pause_in", "overhead", "min_share", "max_share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``kungfu plan simulate``."""
    add = parser.add_argument
    add("trace", metavar="TRACE", help="a CSV file (.gz too), or generated:SHAPE:JOBS[:SEED[:LOAD]]")
    add("--gpus", type=int, required=True, help="GPUs of the cluster")
    add("--policy", choices=CATALOGUE, required=True)
    add("--against", choices=CATALOGUE, help="a second policy to compare with")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--plot", nargs="?", const="simulate.png", metavar="FILE", help="draw utilisation and queue over time")
    _add_trace_arguments(parser.add_argument_group("trace"))
    _add_policy_arguments(parser.add_argument_group("policy"))


def _add_trace_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--curves", metavar="DIR", help="throughput tables, one MODEL.csv each; without them jobs scale perfectly")
    add("--scaling", choices=("strong", "hybrid"), default="strong", help="keep the batch, or scale it with the size")
    formats = ", ".join(FORMATS)
    add("--columns", metavar="K=NAME,..", help=f"names of columns, submit=,gpus=,duration=,...; known: {formats}")
    add("--min-share", type=float, help="fewest GPUs of a job, as a share of its request")
    add("--max-share", type=float, help="most GPUs of a job, as a multiple of its request")


def _add_policy_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--pause", type=float, metavar="S", help="pause of a running job that gets GPUs (efifo, ebf: or loses some)")
    add("--pause-in", type=float, metavar="S", help="pause of a running job that loses GPUs")
    add("--overhead", type=float, help="permanent loss of throughput by elasticity, as a fraction (0)")
    quanta = ",".join(f"{one:g}" for one in Tuning().quanta)
    add("--quanta", type=_numbers, help=f"GPU seconds after which a job sinks, comma-separated ({quanta})")
    add("--starvation", type=float, help="a preempted job is promoted after waiting this many times its running time")
    add("--pending-over", type=int, help="N of rule R1: shrink when more jobs than this wait (0)")
    add("--exact-up-to", type=int, help="largest number of running jobs for which admissions are forecast exactly (64)")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and report; returns the exit status.

    Raises:
        UsageError: if the request cannot work; nothing is printed or written before.
    """
    results = _simulated(arguments)
    if arguments.plot:
        save_plot(results, path=arguments.plot)
    summaries = [summary(result) for result in results]
    if arguments.json:
        print(json.dumps(_report(arguments, summaries=summaries), indent=2, allow_nan=False))
    else:
        _show(arguments, summaries=summaries)
    return 0


def _simulated(arguments: argparse.Namespace) -> list[SimulationResult]:
    _check_used(arguments)
    jobs = _jobs(arguments)
    names = list(dict.fromkeys(name for name in (arguments.policy, arguments.against) if name))
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks = [bars.add_task(name, total=len(jobs)) for name in names]
        return [
            _one(arguments, name=name, jobs=jobs, tick=_ticker(bars, task))
            for name, task in zip(names, tasks, strict=True)
        ]


def _check_used(arguments: argparse.Namespace) -> None:
    """Refuses an option that no policy of the command uses: its figures would be taken for the effect of the option."""
    names = [name for name in (arguments.policy, arguments.against) if name]
    for option in _USED_BY_SOME:
        users = [name for name, entry in CATALOGUE.items() if option in entry.options]
        if getattr(arguments, option) is not None and not {*users} & {*names}:
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(
                f"{flag} is not used by {' or '.join(dict.fromkeys(names))}: leave it out, or choose a policy that "
                f"looks at it ({', '.join(users)})"
            )


def _one(
    arguments: argparse.Namespace, *, name: str, jobs: Sequence[ClusterJob], tick: Callable[[State], None]
) -> SimulationResult:
    entry = CATALOGUE[name]
    given = {one: getattr(arguments, one) for one in _TUNING if getattr(arguments, one) is not None}
    tuning = Tuning(**given)
    return simulate(
        with_shares(jobs, shares=_shares(arguments, entry=entry)),
        gpus=arguments.gpus,
        policy=entry.make(tuning),
        pauses=_pauses(arguments, entry=entry),
        watch=tick,
    )


def _ticker(bars: Progress, task: TaskID) -> Callable[[State], None]:
    """A callback that counts finished jobs and updates a progress bar."""
    events, arrived = 0, 0

    def tick(state: State) -> None:
        nonlocal events, arrived
        events, arrived = events + 1, arrived + len(state.arrived)
        if events % _EVENTS_A_TICK == 0 or not len(state.running):
            bars.update(task, completed=arrived - len(state.running) - len(state.pending))

    return tick


def _jobs(arguments: argparse.Namespace) -> tuple[ClusterJob, ...]:
    # A generated trace has curves of its own; one that is read may have tables.
    if arguments.trace.startswith("generated:"):
        if arguments.curves or arguments.columns or arguments.scaling == "hybrid":
            raise UsageError(
                f"{arguments.trace} brings its own curves and columns: leave --curves, --columns and --scaling out"
            )
        return _generated(arguments.trace, gpus=arguments.gpus)
    measured = read_throughputs(arguments.curves) if arguments.curves else None
    columns = own_columns(arguments.columns) if arguments.columns else None
    return read_job_trace(arguments.trace, columns=columns, measured=measured, scaling=arguments.scaling)


def _generated(text: str, *, gpus: int) -> tuple[ClusterJob, ...]:
    _, shape, *rest = text.split(":")
    try:
        jobs, seed, load = (parse(word) for parse, word in zip((int, int, float), _completed(rest), strict=True))
    except ValueError as error:
        raise UsageError(
            f"trace {text!r}: expected generated:SHAPE:JOBS[:SEED[:LOAD]], as generated:itp:500:0:0.8"
        ) from error
    return generated(shape, jobs=jobs, gpus=gpus, load=load, seed=seed)


def _completed(words: list[str]) -> list[str]:
    """Jobs, seed and load, with defaults for those that are left out at the end."""
    return [*words, *("", "0", "0.8")[len(words) :]]


def _shares(arguments: argparse.Namespace, *, entry: CatalogueEntry) -> tuple[float, float] | None:
    if arguments.min_share is None and arguments.max_share is None:
        return entry.shares
    low, high = entry.shares or (0.0, float(arguments.gpus))
    return (
        low if arguments.min_share is None else arguments.min_share,
        high if arguments.max_share is None else arguments.max_share,
    )


def _pauses(arguments: argparse.Namespace, *, entry: CatalogueEntry) -> Pauses:
    """The pauses of the command line, else those that the policy's paper measured; rigid policies have none."""
    if entry.pauses is None:
        return Pauses()
    pauses = entry.pauses
    if arguments.overhead is not None:
        pauses = replace(pauses, overhead=arguments.overhead)
    if arguments.pause is not None:
        pauses = replace(pauses, out_s=arguments.pause, in_s=arguments.pause if entry.pauses.in_s else 0.0)
    return pauses if arguments.pause_in is None else replace(pauses, in_s=arguments.pause_in)


def _report(arguments: argparse.Namespace, *, summaries: Sequence[Summary]) -> dict[str, object]:
    report: dict[str, object] = {
        "trace": arguments.trace,
        "gpus": arguments.gpus,
        "policies": {each.policy: summary_as_dict(each) for each in summaries},
    }
    if len(summaries) == 2:
        report["reduction"] = _reductions(summaries[0], against=summaries[1])
    return report


def _reductions(ours: Summary, *, against: Summary) -> dict[str, float]:
    """The fraction by which the first policy has less than the second; negative if it has more."""
    pairs = {
        "jct": (against.overall.jct_s, ours.overall.jct_s),
        "pending": (against.overall.pending_s, ours.overall.pending_s),
        "makespan": (against.makespan_s, ours.makespan_s),
    }
    return {name: reduction(before, after=after) for name, (before, after) in pairs.items() if before > 0}


def _show(arguments: argparse.Namespace, *, summaries: Sequence[Summary]) -> None:
    console = Console()
    console.print(summary_table(summaries, title=f"{arguments.trace} on {arguments.gpus} GPUs"))
    if len(summaries) == 2:
        shares = _reductions(summaries[0], against=summaries[1])
        less = ", ".join(f"{name} {-share:+.1%}" for name, share in shares.items())
        console.print(f"{summaries[0].policy} against {summaries[1].policy}: {less}")
    if arguments.plot:
        console.print(f"plot: {arguments.plot}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers; write them as 10000,200000") from error
