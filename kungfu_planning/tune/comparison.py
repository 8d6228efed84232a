"""A plan beside its baselines: as tables and as a picture for people, as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.table import Table

from kungfu_planning.tune.baselines import Search, best_naive, best_static
from kungfu_planning.tune.estimation import Estimate
from kungfu_planning.tune.planner import plan_elastic
from kungfu_planning.tune.simulator import Simulator
from kungfu_planning.tune.spec.units import as_clock
from kungfu_planning.tune.timeline import Box, boxes, first_run_stage_usage, mean_stage_usage


@dataclass(frozen=True)
class Comparison:
    """The plan and the baselines of one experiment; a baseline is None if none of its kind meets the deadline."""

    simulator: Simulator
    deadline_s: float
    planned: Estimate
    static: Estimate | None
    naive: Estimate | None


def compare(simulator: Simulator, *, deadline_s: float, search: Search) -> Comparison:
    """Plan one experiment, and find its static and naive baselines.

    Raises:
        UsageError: when no plan meets the deadline.
    """
    return Comparison(
        simulator,
        deadline_s,
        plan_elastic(simulator, deadline_s=deadline_s, search=search),
        best_static(simulator, deadline_s=deadline_s, search=search),
        best_naive(simulator, deadline_s=deadline_s, search=search),
    )


def as_tables(found: Sequence[Comparison]) -> Iterator[Table]:
    """The stages of each planned experiment, then cost and time beside the baselines."""
    for index, each in enumerate(found):
        title = "Plan" if len(found) == 1 else f"Plan of bracket {index + 1} of {len(found)}"
        yield _stages(each, title=title)
    yield _beside(found)


def _stages(found: Comparison, *, title: str) -> Table:
    table = Table(title=title)
    for column in ("stage", "trials", "GPUs a trial", "GPUs", "instances", "from", "to"):
        table.add_column(column, justify="right")
    for index, held in enumerate(mean_stage_usage(found.simulator, plan=found.planned.gpus)):
        sizes = (index, held.trials, held.gpus_per_trial, held.gpus, held.instances)
        table.add_row(*map(str, sizes), as_clock(held.start_s), as_clock(held.end_s))
    return table


def _beside(found: Sequence[Comparison]) -> Table:
    table = Table(title=f"Within {as_clock(found[0].deadline_s)}")
    for column in ("", "time", "cost", "of static"):
        table.add_column(column, justify="right")
    static = _total([each.static for each in found])
    rows = {
        "planned": _total([each.planned for each in found]),
        "static": static,
        "naive elastic": _total([each.naive for each in found]),
    }
    for name, total in rows.items():
        table.add_row(name, *_cells(total, static=static))
    return table


def _cells(total: dict[str, float] | None, *, static: dict[str, float] | None) -> tuple[str, str, str]:
    if total is None:
        return "none meets it", "-", "-"
    share = f"{total['dollars'] / static['dollars']:.0%}" if static and static["dollars"] else "-"
    return as_clock(total["seconds"]), f"${total['dollars']:.2f}", share


def as_document(found: Sequence[Comparison]) -> dict[str, Any]:
    """The JSON output: totals, then each experiment with the stages of its plan and its baselines.

    Experiments run side by side: dollars add up, the seconds are those of the last to end.

    Args:
        found: The comparisons, one per experiment.

    Returns:
        A JSON object; a baseline that some experiment lacks is null.
    """
    return {
        "deadline_s": found[0].deadline_s,
        "planned": _total([each.planned for each in found]),
        "static": _total([each.static for each in found]),
        "naive": _total([each.naive for each in found]),
        "experiments": [_experiment(each) for each in found],
    }


def _total(estimates: Sequence[Estimate | None]) -> dict[str, float] | None:
    present = [each for each in estimates if each is not None]
    if len(present) < len(estimates):
        return None
    return {"seconds": max(each.seconds for each in present), "dollars": sum(each.dollars for each in present)}


def _experiment(found: Comparison) -> dict[str, Any]:
    return {
        "planned": _plan(found.simulator, estimate=found.planned),
        "static": found.static and _plan(found.simulator, estimate=found.static),
        "naive": found.naive and _plan(found.simulator, estimate=found.naive),
    }


def _plan(simulator: Simulator, *, estimate: Estimate) -> dict[str, Any]:
    stages = [asdict(held) for held in mean_stage_usage(simulator, plan=estimate.gpus)]
    return {"seconds": estimate.seconds, "dollars": estimate.dollars, "stages": stages}


_SURVIVOR, _OTHER, _IDLE = "#3a9d5d", "#7da7d9", "#eeeeee"


def draw_comparison(found: Sequence[Comparison]) -> Figure:
    """A figure with one row per experiment: the best static cluster left, the plan right, on the same scales.

    Green is the trial that survives to the end; grey GPUs are held and idle. The titles give means over all drawn runs,
    the boxes are those of the first run.

    Reference:
        Misra et al., 2021, figure 1.
    """
    figure = Figure(figsize=(10, 3.6 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 2, squeeze=False, sharex="row", sharey="row")
    for row, each in zip(panels, found, strict=True):
        _panel(row[0], simulator=each.simulator, estimate=each.static, name="static", deadline_s=each.deadline_s)
        _panel(row[1], simulator=each.simulator, estimate=each.planned, name="planned", deadline_s=each.deadline_s)
        row[0].set_ylabel("GPUs")
    return figure


def _panel(axes: Any, *, simulator: Simulator, estimate: Estimate | None, name: str, deadline_s: float) -> None:
    axes.set_xlabel("minutes" if simulator.runs == 1 else f"minutes, in one of {simulator.runs} drawn runs")
    axes.axvline(deadline_s / 60, color="black", linestyle=":", linewidth=1)
    if estimate is None:
        axes.set_title(f"{name}: none meets the deadline")
        return
    axes.set_title(f"{name}: ${estimate.dollars:.2f} in {estimate.seconds / 60:.1f} min")
    node = simulator.cloud.instance.gpus
    before = 0
    for held in first_run_stage_usage(simulator, plan=estimate.gpus):
        axes.add_patch(_idle(held.start_s, end_s=held.ready_s, gpus=min(before, held.instances) * node))
        axes.add_patch(_idle(held.ready_s, end_s=held.end_s, gpus=held.instances * node))
        before = held.instances
    for box in boxes(simulator, plan=estimate.gpus):
        axes.add_patch(_patch(box))
    axes.autoscale_view()


def _idle(start_s: float, *, end_s: float, gpus: int) -> Rectangle:
    return Rectangle((start_s / 60, 0), (end_s - start_s) / 60, gpus, facecolor=_IDLE)


def _patch(box: Box) -> Rectangle:
    color = _SURVIVOR if box.trial == 0 else _OTHER
    size = ((box.end_s - box.start_s) / 60, box.gpus)
    return Rectangle((box.start_s / 60, box.first_gpu), *size, facecolor=color, edgecolor="white", linewidth=0.4)
