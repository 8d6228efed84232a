"""A plan compared with its baselines, as tables and a picture for people, and as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from rich.table import Table

from kungfu_planning.tune.baselines import SLACK, Search, best_naive, best_static
from kungfu_planning.tune.estimation import FRESH_SEEDS, Estimate, Outlook, outlook
from kungfu_planning.tune.latency import Seconds
from kungfu_planning.tune.planner import plan_elastic
from kungfu_planning.tune.simulator import Simulator
from kungfu_planning.tune.spec.tuning_spec import TuningSpec
from kungfu_planning.tune.timeline import Box, StageUsage, boxes, first_run_stage_usage, mean_stage_usage
from kungfu_planning.units import as_clock

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle


@dataclass(frozen=True)
class Judged(Estimate):
    """A plan with the planner's estimate, and with ``fresh`` runs, which were not drawn during planning."""

    fresh: Outlook


@dataclass(frozen=True)
class Comparison:
    """The plan and the baselines of an experiment; a baseline is None if no plan of its kind meets the deadline."""

    simulator: Simulator
    search: Search
    deadline_s: float
    planned: Judged
    static: Judged | None
    naive: Judged | None


def compare(simulator: Simulator, *, deadline_s: float, search: Search, bracket: int = 0) -> Comparison:
    """Plans an experiment, finds its static and naive baselines, and draws fresh runs of each of these plans.

    Args:
        simulator: the job and the cloud.
        deadline_s: the deadline of the search, in seconds from its start.
        search: the settings of the planner.
        bracket: the number of the experiment among parallel experiments, each of which has different draws.

    Raises:
        UsageError: No plan meets the deadline.
    """
    first_seed = simulator.seed + 1 + bracket * FRESH_SEEDS

    def judged(found: Estimate) -> Judged:
        return Judged(
            found.gpus, found.seconds, found.dollars, outlook(simulator, plan=found.gpus, first_seed=first_seed)
        )

    static = best_static(simulator, deadline_s=deadline_s, search=search)
    naive = best_naive(simulator, deadline_s=deadline_s, search=search)
    return Comparison(
        simulator,
        search,
        deadline_s,
        judged(plan_elastic(simulator, deadline_s=deadline_s, search=search)),
        None if static is None else judged(static),
        None if naive is None else judged(naive),
    )


def compare_all(
    simulators: Iterable[Simulator], *, deadline_s: float, search: Search, brackets: int
) -> list[Comparison]:
    """The comparison of each of ``brackets`` parallel experiments.

    All experiments must meet the deadline, so each of them needs the confidence to the power of ``1 / brackets``.
    """
    if search.confidence is not None:
        search = replace(search, confidence=search.confidence ** (1 / brackets))
    return [
        compare(simulator, deadline_s=deadline_s, search=search, bracket=number)
        for number, simulator in enumerate(simulators)
    ]


class Figures(msgspec.Struct, kw_only=True):
    """The time and cost of a plan, or of the plans of all parallel brackets.

    ``seconds`` and ``dollars`` are means over the planner's runs; other figures are of fresh runs, drawn afterwards.
    """

    seconds: float
    seconds_p50: float
    seconds_p95: float
    dollars: float
    dollars_p50: float
    dollars_p95: float
    late_share: float
    """The share of the fresh runs that end after the deadline, 0 to 1."""
    seconds_by_seed: tuple[float, float]
    """The smallest and the largest of the seeds' mean completion times, over the fresh runs of each seed."""
    dollars_by_seed: tuple[float, float]


class PlanReport(Figures, kw_only=True):
    """The plan of an experiment with the resources of its stages; times are means."""

    stages: tuple[StageUsage, ...]


class ExperimentReport(msgspec.Struct):
    """An experiment's plan and baselines; a baseline is null if no plan of its kind meets the deadline."""

    planned: PlanReport
    static: PlanReport | None
    naive: PlanReport | None


class TuningReport(msgspec.Struct, kw_only=True):
    """The JSON output of ``kungfu plan tuning``.

    Experiments run in parallel: ``dollars`` add up, and ``seconds`` are of the experiment that ends last.
    """

    version: Literal[1] = 1
    deadline_s: float
    confidence: float | None
    """The share of runs that must meet the deadline; null if only the mean completion time must."""
    deadline_holds: Literal["in the mean", "in the share of runs"]
    fresh_runs: int
    settings: dict[str, Any]
    """The specification as read: experiments, scaling, cloud, search, samples, seed."""
    planned: Figures
    static: Figures | None
    naive: Figures | None
    experiments: list[ExperimentReport]


def tuning_report(found: Sequence[Comparison], *, spec: TuningSpec, confidence: float | None) -> TuningReport:
    """The report of the comparisons ``found``, one for each experiment of ``spec``."""
    return TuningReport(
        deadline_s=found[0].deadline_s,
        confidence=confidence,
        deadline_holds="in the mean" if confidence is None else "in the share of runs",
        fresh_runs=found[0].planned.fresh.seconds.size,
        settings=asdict(spec),
        planned=_figures([each.planned for each in found], deadline_s=found[0].deadline_s),
        static=_figures_or_none([each.static for each in found], deadline_s=found[0].deadline_s),
        naive=_figures_or_none([each.naive for each in found], deadline_s=found[0].deadline_s),
        experiments=[_experiment(each) for each in found],
    )


def _figures(side_by_side: Sequence[Judged], *, deadline_s: float) -> Figures:
    seconds = np.max([each.fresh.seconds for each in side_by_side], axis=0)
    dollars = np.sum([each.fresh.dollars for each in side_by_side], axis=0)
    (s50, s95), (d50, d95) = (np.quantile(drawn, (0.5, 0.95)).tolist() for drawn in (seconds, dollars))
    by_seed = [drawn.mean(axis=1) for drawn in (seconds, dollars)]
    return Figures(
        seconds=max(each.seconds for each in side_by_side),
        seconds_p50=s50,
        seconds_p95=s95,
        dollars=sum(each.dollars for each in side_by_side),
        dollars_p50=d50,
        dollars_p95=d95,
        late_share=_late_share(seconds, deadline_s=deadline_s),
        seconds_by_seed=(float(by_seed[0].min()), float(by_seed[0].max())),
        dollars_by_seed=(float(by_seed[1].min()), float(by_seed[1].max())),
    )


def _late_share(seconds: Seconds, *, deadline_s: float) -> float:
    return float((seconds > deadline_s * (1 + SLACK)).mean())


def _figures_or_none(side_by_side: Sequence[Judged | None], *, deadline_s: float) -> Figures | None:
    present = [each for each in side_by_side if each is not None]
    return _figures(present, deadline_s=deadline_s) if len(present) == len(side_by_side) else None


def _experiment(found: Comparison) -> ExperimentReport:
    def plan(judged: Judged) -> PlanReport:
        figures = msgspec.structs.asdict(_figures([judged], deadline_s=found.deadline_s))
        return PlanReport(**figures, stages=mean_stage_usage(found.simulator, plan=judged.gpus))

    return ExperimentReport(
        plan(found.planned),
        None if found.static is None else plan(found.static),
        None if found.naive is None else plan(found.naive),
    )


def as_tables(found: Sequence[Comparison], *, report: TuningReport) -> Iterator[Table]:
    """A table of the stages of each experiment, then a table of cost and time compared with the baselines."""
    for index, each in enumerate(found):
        title = "Plan" if len(found) == 1 else f"Plan of bracket {index + 1} of {len(found)}"
        yield _stages(each, title=title)
    yield _beside(report, seed=found[0].simulator.seed)


def _stages(found: Comparison, *, title: str) -> Table:
    table = Table(title=title)
    for column in ("stage", "trials", "GPUs a trial", "GPUs", "instances", "from", "to"):
        table.add_column(column, justify="right")
    for index, held in enumerate(mean_stage_usage(found.simulator, plan=found.planned.gpus)):
        sizes = (index, held.trials, held.gpus_per_trial, held.gpus, held.instances)
        table.add_row(*map(str, sizes), as_clock(held.start_s), as_clock(held.end_s))
    return table


def _beside(report: TuningReport, *, seed: int) -> Table:
    within = f"Within {as_clock(report.deadline_s)}"
    columns = {"time": "{seconds}", "cost": "{dollars}", "of static": "{share}"}
    if report.fresh_runs == 1:
        table = Table(title=within, caption="nothing in the specification is random: every run is like this")
    else:
        asked = "in the mean" if report.confidence is None else f"in {report.confidence:.4g} of the runs"
        spread = " to ".join(f"${dollars:.2f}" for dollars in report.planned.dollars_by_seed)
        caption = (
            f"time, cost: means, seed {seed}; the rest: {report.fresh_runs:,} fresh runs, mean cost by seed {spread}"
        )
        table = Table(title=f"{within} {asked}", caption=caption)
        columns = {"mean time": "{seconds}", "p95": "{s95}", "late": "{late}", "mean cost": "{dollars}"}
        columns |= {"p50": "{d50}", "p95 ": "{d95}", "of static": "{share}"}
    for column in ("", *columns):
        table.add_column(column, justify="right")
    for name, figures in (("planned", report.planned), ("static", report.static), ("naive elastic", report.naive)):
        shown = figures and _shown(figures, static=report.static)
        cells = [cell.format(**shown) for cell in columns.values()] if shown else ["none meets it"]
        table.add_row(name, *cells, *("-" for _ in range(len(columns) - len(cells))))
    return table


def _shown(figures: Figures, *, static: Figures | None) -> dict[str, str]:
    return {
        "seconds": as_clock(figures.seconds),
        "s95": as_clock(figures.seconds_p95),
        "late": f"{figures.late_share:.1%}",
        "dollars": f"${figures.dollars:.2f}",
        "d50": f"${figures.dollars_p50:.2f}",
        "d95": f"${figures.dollars_p95:.2f}",
        "share": f"{figures.dollars / static.dollars:.0%}" if static and static.dollars else "-",
    }


_SURVIVOR, _OTHER, _IDLE = "#3a9d5d", "#7da7d9", "#eeeeee"


def draw_comparison(found: Sequence[Comparison]) -> Figure:
    """A figure with a row per experiment: the best static cluster on the left, the plan on the right, on equal scales.

    The trial that survives to the end is green; idle GPUs are grey. The titles show means over all drawn runs, and
    the boxes show the first run.

    Reference:
        Misra et al., 2021, figure 1.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 2, squeeze=False, sharex="row", sharey="row")
    for row, each in zip(panels, found, strict=True):
        _panel(row[0], found=each, judged=each.static, name="static")
        _panel(row[1], found=each, judged=each.planned, name="planned")
        row[0].set_ylabel("GPUs")
    return figure


def _panel(axes: Any, *, found: Comparison, judged: Judged | None, name: str) -> None:
    simulator, deadline_s = found.simulator, found.deadline_s
    axes.set_xlabel("minutes" if not simulator.is_random else f"minutes, in one of {simulator.runs} drawn runs")
    axes.axvline(deadline_s / 60, color="black", linestyle=":", linewidth=1)
    if judged is None:
        axes.set_title(f"{name}: none meets the deadline")
        return
    late = _late_share(judged.fresh.seconds, deadline_s=deadline_s)
    drawn = "" if not simulator.is_random else f" in the mean, {late:.0%} of runs late"
    axes.set_title(f"{name}: ${judged.dollars:.2f} in {judged.seconds / 60:.1f} min{drawn}", fontsize="medium")
    node = simulator.cloud.instance.gpus
    before = 0
    for held in first_run_stage_usage(simulator, plan=judged.gpus):
        axes.add_patch(_idle(held.start_s, end_s=held.ready_s, gpus=min(before, held.instances) * node))
        axes.add_patch(_idle(held.ready_s, end_s=held.end_s, gpus=held.instances * node))
        before = held.instances
    for box in boxes(simulator, plan=judged.gpus):
        axes.add_patch(_patch(box))
    axes.autoscale_view()


def _idle(start_s: float, *, end_s: float, gpus: int) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((start_s / 60, 0), (end_s - start_s) / 60, gpus, facecolor=_IDLE)


def _patch(box: Box) -> Rectangle:
    from matplotlib.patches import Rectangle

    color = _SURVIVOR if box.trial == 0 else _OTHER
    size = ((box.end_s - box.start_s) / 60, box.gpus)
    return Rectangle((box.start_s / 60, box.first_gpu), *size, facecolor=color, edgecolor="white", linewidth=0.4)
