"""``kungfu plan simulate``: runs a trace through one policy or two, on one cluster or several."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.progress import Progress, TaskID

from kungfu.errors import UsageError
from kungfu_planning.cli.table_console import TableConsole
from kungfu_planning.schedule import (
    SHAPES,
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
from kungfu_planning.schedule.job import with_load
from kungfu_planning.schedule.measured_curves import ANY_MODEL
from kungfu_planning.schedule.outcome import summary, write_jobs
from kungfu_planning.schedule.report import (
    SimulationReport,
    SweepRun,
    answers,
    reductions,
    save_plot,
    summary_table,
    sweep_table,
)
from kungfu_planning.schedule.traces.read import FORMATS, own_columns
from kungfu_planning.units import duration_s

SUMMARY = "run a scheduler over a trace of jobs"

_EVENTS_A_TICK = 500
_SHOWN_ROWS = 20
_TUNING = tuple(one.name for one in fields(Tuning))
# Options that only some policies use; see `CatalogueEntry.options`.
_USED_BY_SOME = (*_TUNING, "pause", "pause_in", "resume", "overhead", "min_share", "max_share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``kungfu plan simulate``."""
    parser.epilog, parser.formatter_class = _epilog(), argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("trace", nargs="?", metavar="TRACE", help="a CSV file (.gz too), or generated:SHAPE:JOBS[:SEED[:LOAD]]")
    add(
        "--gpus",
        type=_each_once(_numbers(int, example="64,128,256")),
        metavar="N,..",
        help="GPUs of the cluster; several values are simulated in turn",
    )
    add("--policy", choices=CATALOGUE, help="the policy that allocates GPUs to jobs")
    add("--against", choices=CATALOGUE, help="a second policy to compare with")
    add(
        "--load", type=_each_once(_numbers(float, example="0.6,0.8,1")), metavar="X,..",
        help="target load, requested GPU seconds / (smallest of --gpus x arrival period); arrivals are rescaled;"
        " several values are simulated in turn (default: the load of the trace)",
    )  # fmt: skip
    add(
        "--p95",
        metavar="TIME",
        help='report the smallest --gpus that keeps the 95th percentile of completion times within TIME, such as "2h"',
    )
    add("--by", choices=("size", "user", "model"), default="size", help="the groups of jobs in the table (size)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--schema", action="store_true", help="print the JSON schema of the --json output, and exit")
    add("--jobs-csv", type=Path, metavar="FILE", help="write each job's start, end and GPUs over time")
    add("--plot", nargs="?", const="simulate.png", metavar="FILE", help="draw utilisation and queue over time")
    _add_trace_arguments(parser.add_argument_group("trace"))
    _add_policy_arguments(parser.add_argument_group("policy"))


def _epilog() -> str:
    """The end of the help text: the shapes of generated traces, and the defaults of each policy."""
    lines = ["shapes of generated traces (run times are log-normal, sizes powers of two):"]
    for name, shape in SHAPES.items():
        sizes = ", ".join(f"{2**power}: {share / sum(shape.sizes):.1%}" for power, share in enumerate(shape.sizes))
        longest = f"{shape.longest_s / 3600:g} h"
        lines.append(f"  {name:<8} median {shape.median_s:g} s, at most {longest}; GPUs {sizes}")
    lines.append("defaults of the policies (pauses in seconds, shares of the GPUs that a job asks for):")
    for name, entry in CATALOGUE.items():
        printed = [f"{option.replace('_', '-')} {value}" for option, value in _defaults(entry).items()]
        lines.append(f"  {name:<17} {', '.join(printed) or 'no option'}")
    return "\n".join(lines)


def _defaults(entry: CatalogueEntry) -> dict[str, Any]:
    """The default of each option that a policy uses."""
    pauses, tuning = entry.pauses or Pauses(), asdict(entry.defaults)
    low, high = (f"{share:g}" for share in entry.shares) if entry.shares else ("1 GPU", "the cluster")
    known = {
        "pause": f"{pauses.out_s:g}", "pause_in": f"{pauses.in_s:g}", "resume": f"{pauses.resume_s:g}",
        "overhead": f"{pauses.overhead:g}", "min_share": low, "max_share": high,
        "quanta": ",".join(f"{one:g}" for one in Tuning().quanta),
        "starvation": "off" if tuning["starvation"] is None else f"{tuning['starvation']:g}",
        "pending_over": tuning["pending_over"], "exact_up_to": tuning["exact_up_to"],
    }  # fmt: skip
    return {option: value for option, value in known.items() if option in entry.options}


def _add_trace_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--curves", metavar="DIR|FILE",
        help="throughput: a DIR with MODEL.csv (table) or MODEL.json (profile) of each model, or one profile of all"
        " jobs; by default jobs scale perfectly",
    )  # fmt: skip
    add("--measured-only", action="store_true", help="refuse sizes and batches that were not measured")
    add("--skip-bad-rows", action="store_true", help="leave out rows that cannot be read; they are counted and listed")
    add("--scaling", choices=("strong", "hybrid"), default="strong", help="keep the batch, or let it follow the size")
    formats = ", ".join(FORMATS)
    add(
        "--columns",
        metavar="K=NAME,..",
        help=f"column names, as submit=,gpus=,duration=,..., or a known format: {formats}",
    )
    add("--min-share", type=float, help="fewest GPUs of a job, as a share of its request")
    add("--max-share", type=float, help="most GPUs of a job, as a multiple of its request")


def _add_policy_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--pause",
        type=float,
        metavar="S",
        help="pause of a running job that gains GPUs (with efifo and ebf: that gains or loses GPUs)",
    )
    add("--resume", type=float, metavar="S", help="pause of a preempted job when it gets GPUs again (30; 0: free)")
    add("--pause-in", type=float, metavar="S", help="pause of a running job that loses GPUs (efifo, ebf: --pause)")
    add("--overhead", type=float, help="permanent loss of throughput due to elasticity, as a fraction (0)")
    quanta = ",".join(f"{one:g}" for one in Tuning().quanta)
    add(
        "--quanta",
        type=_numbers(float, example="10000,200000"),
        help=f"GPU seconds after which a job moves to a lower-priority queue, comma-separated ({quanta})",
    )
    add("--starvation", type=float, help="a preempted job is promoted after waiting this many times its running time")
    add("--pending-over", type=int, help="elastic-tiresias shrinks jobs when more jobs than this wait (0)")
    add("--exact-up-to", type=int, help="largest number of running jobs for which admissions are forecast exactly")


def run(arguments: argparse.Namespace) -> int:
    """Simulates and reports; returns the exit status.

    Raises:
        UsageError: The arguments are invalid; raised before anything is printed or written.
    """
    if arguments.schema:
        print(json.dumps(msgspec.json.schema(SimulationReport), indent=2))
        return 0
    target_s = _check_asked(arguments)
    if arguments.plot:
        import matplotlib  # noqa: F401 - if it is missing, the error comes before the simulation
    skipped: list[str] = []
    results, runs = _simulated(arguments, skip=lambda error: skipped.append(str(error)))
    report = SimulationReport(
        settings=_settings(arguments),
        jobs=len(results[0].jobs),
        skipped_rows=skipped,
        runs=runs,
        reductions=reductions(runs) if len(_policies(arguments)) == 2 else [],
        answers=[] if target_s is None else answers(runs, target_s=target_s),
    )
    if arguments.jobs_csv:
        write_jobs(results[0], path=arguments.jobs_csv)
    if arguments.plot:
        save_plot(results, path=arguments.plot)
    _tell_skipped(skipped)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _show(arguments, report=report)
    return 0


def _check_asked(arguments: argparse.Namespace) -> float | None:
    """Refuses contradictory options; returns the target of the 95th percentile in seconds, if one is given."""
    for name, value in (("TRACE", arguments.trace), ("--gpus", arguments.gpus), ("--policy", arguments.policy)):
        if not value:
            raise UsageError(f"{name} is missing; write: kungfu plan simulate TRACE --gpus 128 --policy tiresias")
    _check_used(arguments)
    several = len(arguments.gpus) * len(arguments.load or (1,)) > 1
    if several and (arguments.plot or arguments.jobs_csv):
        raise UsageError("--plot and --jobs-csv are for one cluster: give one number to --gpus, and one to --load")
    if arguments.jobs_csv and arguments.against:
        raise UsageError("--jobs-csv is for one policy: leave --against out")
    if arguments.measured_only and (not arguments.curves or arguments.scaling == "hybrid"):
        raise UsageError("--measured-only needs --curves and scaling strong, since hybrid sizes lie between measured")
    if arguments.p95 is None:
        return None
    target_s = duration_s(arguments.p95)
    if target_s <= 0:
        raise UsageError(f"--p95 {arguments.p95}: give a time above 0, as --p95 2h")
    return target_s


def _policies(arguments: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(name for name in (arguments.policy, arguments.against) if name))


def _simulated(
    arguments: argparse.Namespace, *, skip: Callable[[UsageError], None]
) -> tuple[list[SimulationResult], list[SweepRun]]:
    """The results for the last cluster and load, and a summary for every policy, cluster and load."""
    jobs = _jobs(arguments, skip=skip if arguments.skip_bad_rows else None)
    if arguments.by != "size" and not any(getattr(job, arguments.by) for job in jobs):
        raise UsageError(f"--by {arguments.by}: no job of {arguments.trace} names its {arguments.by}; name the column")
    names, by = _policies(arguments), arguments.by
    cases = [(load, gpus) for load in arguments.load or (None,) for gpus in arguments.gpus]
    console, runs, results = Console(stderr=True), list[SweepRun](), list[SimulationResult]()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
        for load, gpus in cases:
            moved = jobs if load is None else with_load(jobs, gpus=min(arguments.gpus), load=load)
            title = "" if len(cases) == 1 else f" {gpus} GPUs" + ("" if load is None else f" load {load:g}")
            tasks = [bars.add_task(f"{name}{title}", total=len(jobs)) for name in names]
            results = [
                _one(arguments, name=name, jobs=moved, gpus=gpus, tick=_ticker(bars, task))
                for name, task in zip(names, tasks, strict=True)
            ]
            runs += [SweepRun(load=load, summary=summary(result, by=by)) for result in results]
    return results, runs


def _check_used(arguments: argparse.Namespace) -> None:
    """Refuses an option that no policy of the command uses, since the results would seem to depend on it."""
    names = _policies(arguments)
    for option in _USED_BY_SOME:
        users = [name for name, entry in CATALOGUE.items() if option in entry.options]
        if getattr(arguments, option) is not None and not {*users} & {*names}:
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(
                f"{flag} is not used by {' or '.join(names)}: leave it out, or choose a policy that "
                f"looks at it ({', '.join(users)})"
            )


def _one(
    arguments: argparse.Namespace,
    *,
    name: str,
    jobs: Sequence[ClusterJob],
    gpus: int,
    tick: Callable[[State], None],
) -> SimulationResult:
    entry = CATALOGUE[name]
    return simulate(
        with_shares(jobs, shares=_shares(arguments, entry=entry, gpus=gpus)),
        gpus=gpus,
        policy=entry.make(_tuning(arguments, entry=entry)),
        pauses=_pauses(arguments, entry=entry),
        keep_allocations=arguments.jobs_csv is not None,
        watch=tick,
    )


def _tuning(arguments: argparse.Namespace, *, entry: CatalogueEntry) -> Tuning:
    given = {one: getattr(arguments, one) for one in _TUNING if getattr(arguments, one) is not None}
    return replace(entry.defaults, **given)


def _ticker(bars: Progress, task: TaskID) -> Callable[[State], None]:
    """Returns a callback that counts finished jobs and updates a progress bar."""
    events, arrived = 0, 0

    def tick(state: State) -> None:
        nonlocal events, arrived
        events, arrived = events + 1, arrived + len(state.arrived)
        if events % _EVENTS_A_TICK == 0 or not len(state.running):
            bars.update(task, completed=arrived - len(state.running) - len(state.pending))

    return tick


def _jobs(arguments: argparse.Namespace, *, skip: Callable[[UsageError], None] | None) -> tuple[ClusterJob, ...]:
    is_generated = arguments.trace.startswith("generated:")
    # A generated trace has curves, which only a single profile can replace.
    if is_generated and (
        arguments.columns or arguments.scaling == "hybrid" or arguments.skip_bad_rows
        or (arguments.curves and not Path(arguments.curves).suffix == ".json")
    ):  # fmt: skip
        raise UsageError(
            f"{arguments.trace} brings its own curves and columns: leave --columns, --scaling, --skip-bad-rows and "
            f"a folder of --curves out"
        )
    measured = read_throughputs(arguments.curves, measured_only=arguments.measured_only) if arguments.curves else None
    if not is_generated:
        columns = own_columns(arguments.columns) if arguments.columns else None
        return read_job_trace(
            arguments.trace, columns=columns, measured=measured, scaling=arguments.scaling, skip=skip
        )  # fmt: skip
    jobs = _generated(arguments.trace, gpus=min(arguments.gpus))
    if measured is None:
        return jobs
    try:
        curves = {gpus: measured.job_curve(ANY_MODEL, batch=None, gpus=gpus) for gpus in sorted({j.gpus for j in jobs})}
    except UsageError as error:
        raise UsageError(f"{arguments.curves}: {error}") from error
    return tuple(replace(job, curve=curves[job.gpus][0], min_gpus=curves[job.gpus][1]) for job in jobs)


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
    """The words for the jobs, seed and load of a generated trace; defaults replace those omitted at the end."""
    return [*words, *("", "0", "0.8")[len(words) :]]


def _shares(arguments: argparse.Namespace, *, entry: CatalogueEntry, gpus: int) -> tuple[float, float] | None:
    if arguments.min_share is None and arguments.max_share is None:
        return entry.shares
    low, high = entry.shares or (0.0, float(gpus))
    return (
        low if arguments.min_share is None else arguments.min_share,
        high if arguments.max_share is None else arguments.max_share,
    )


def _pauses(arguments: argparse.Namespace, *, entry: CatalogueEntry) -> Pauses:
    """The pauses of jobs whose GPUs change: as the options say, else as in the policy's paper; rigid policies: none."""
    pauses = entry.pauses
    if pauses is None:
        return Pauses()
    if arguments.resume is not None and entry.preempts:
        pauses = replace(pauses, resume_s=arguments.resume)
    if not entry.adjusts:
        return pauses
    if arguments.overhead is not None:
        pauses = replace(pauses, overhead=arguments.overhead)
    if arguments.pause is not None:
        pauses = replace(pauses, out_s=arguments.pause, in_s=arguments.pause if pauses.in_s else 0.0)
    return pauses if arguments.pause_in is None else replace(pauses, in_s=arguments.pause_in)


def _used(arguments: argparse.Namespace, *, entry: CatalogueEntry) -> dict[str, Any]:
    """The settings with which a policy is simulated."""
    tuning = _tuning(arguments, entry=entry)
    return {
        "pauses": asdict(_pauses(arguments, entry=entry)),
        "tuning": {name: getattr(tuning, name) for name in sorted(entry.tuning)},
        "shares": entry.adjusts and _shares(arguments, entry=entry, gpus=max(arguments.gpus)),
    }


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    reported = _reported(arguments)
    options = {name: value for name, value in vars(arguments).items() if name in reported}
    used = {name: _used(arguments, entry=CATALOGUE[name]) for name in _policies(arguments)}
    return {**options, "jobs_csv": arguments.jobs_csv and str(arguments.jobs_csv), "policies": used}


def _reported(arguments: argparse.Namespace) -> set[str]:
    """The names of the command's options, without the entries that the program added to ``arguments``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return {action.dest for action in parser._actions} & vars(arguments).keys()


def _tell_skipped(skipped: Sequence[str]) -> None:
    if not skipped:
        return
    print(f"{len(skipped)} rows are left out:", file=sys.stderr)
    for one in skipped[:_SHOWN_ROWS]:
        print(f"  {one}", file=sys.stderr)
    if len(skipped) > _SHOWN_ROWS:
        print(f"  and {len(skipped) - _SHOWN_ROWS} more; --json lists all", file=sys.stderr)


def _show(arguments: argparse.Namespace, *, report: SimulationReport) -> None:
    console = TableConsole()
    if len(report.runs) > len(_policies(arguments)):
        console.print(sweep_table(report.runs, title=f"{arguments.trace}: {report.jobs:,} jobs"))
    else:
        summaries = [run.summary for run in report.runs]
        console.print(summary_table(summaries, title=f"{arguments.trace} on {arguments.gpus[0]} GPUs"))
    for one in report.reductions:
        shares = {"jct": one.jct, "pending": one.pending, "makespan": one.makespan}
        less = ", ".join(f"{name} {-share:+.1%}" for name, share in shares.items() if share is not None)
        where = "" if len(report.reductions) == 1 else f" on {one.gpus} GPUs{_at_load(one.load)}"
        console.print(f"{arguments.policy} against {arguments.against}{where}: {less}")
    for answer in report.answers:
        found = f"{answer.gpus} GPUs have" if answer.gpus else "none of these clusters has; the best one has"
        said = f"95 % of jobs within {arguments.p95} under {answer.policy}{_at_load(answer.load)}"
        console.print(f"{said}: {found} {(answer.jct_p95_s or 0.0) / 3600:.2f} h")
    if arguments.plot:
        console.print(f"plot: {arguments.plot}")
    if arguments.jobs_csv:
        console.print(f"jobs: {arguments.jobs_csv}")


def _at_load(load: float | None) -> str:
    return "" if load is None else f" at load {load:g}"


_Number = TypeVar("_Number", int, float)


def _numbers(kind: type[_Number], *, example: str) -> Callable[[str], tuple[_Number, ...]]:
    """Returns a parser of numbers separated by commas."""

    def read(text: str) -> tuple[_Number, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except (ValueError, OverflowError) as error:
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is no list of numbers; write them as {example}") from error

    return read


def _each_once(read: Callable[[str], tuple[_Number, ...]]) -> Callable[[str], tuple[_Number, ...]]:
    """Returns a parser that drops repeated numbers."""
    return lambda text: tuple(dict.fromkeys(read(text)))
