"""The picture of a comparison: GPUs over time, static beside planned, a box for each trial in each stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kungfu.tune.report.comparison import Comparison
from kungfu.tune.report.timeline import Box, boxes, stages_in_run
from kungfu.tune.simulate import Estimate, Simulator

__all__ = ["draw", "save"]

_SURVIVOR, _OTHER, _IDLE = "#3a9d5d", "#7da7d9", "#eeeeee"


def draw(found: Sequence[Comparison]) -> Figure:
    """A figure with one row an experiment: the best static cluster left, the plan right, on the same scales.

    Green is the trial that survives to the end, grey what is held and idle. Titles say means over all drawn runs,
    boxes are those of the first one. As figure 1 of Misra et al., 2021.
    """
    figure = Figure(figsize=(10, 3.6 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), 2, squeeze=False, sharex="row", sharey="row")
    for row, each in zip(panels, found, strict=True):
        _panel(row[0], simulator=each.simulator, estimate=each.static, name="static", deadline_s=each.deadline_s)
        _panel(row[1], simulator=each.simulator, estimate=each.planned, name="planned", deadline_s=each.deadline_s)
        row[0].set_ylabel("GPUs")
    return figure


def save(figure: Figure, *, path: Path) -> None:
    """Write the figure; a file that cannot be finished is not begun: it is written beside and then renamed."""
    unfinished = path.with_name(f".{path.name}.unfinished{path.suffix}")
    try:
        figure.savefig(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _panel(axes: Any, *, simulator: Simulator, estimate: Estimate | None, name: str, deadline_s: float) -> None:
    axes.set_xlabel("minutes" if simulator.runs == 1 else f"minutes, in one of {simulator.runs} drawn runs")
    axes.axvline(deadline_s / 60, color="black", linestyle=":", linewidth=1)
    if estimate is None:
        axes.set_title(f"{name}: none meets the deadline")
        return
    axes.set_title(f"{name}: ${estimate.dollars:.2f} in {estimate.seconds / 60:.1f} min")
    node = simulator.cloud.instance.gpus
    before = 0
    for held in stages_in_run(simulator, plan=estimate.gpus):
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
