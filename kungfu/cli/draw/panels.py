"""The panels of every picture: size, batch and noise scale, loss, throughput."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.lib.stride_tricks import sliding_window_view

from kungfu.cli.draw.recorded_run import RecordedRun, Series
from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED
from kungfu.cli.report.values import duration, figure, finite_number, not_finite
from kungfu.event_log.events import DecisionEvent, RecoveredEvent, RescaleEvent

__all__ = [
    "CHANGES",
    "draw_changes",
    "draw_loss",
    "draw_noise",
    "draw_size",
    "draw_speed",
    "fit_axis",
    "smoothed",
]

# A monitor or a loss that spans more than this factor is drawn on a logarithmic axis.
_DECADES = 30.0
# Each is a line at its step: a size that was asked for, and the loss of peers.
CHANGES: Mapping[type[RescaleEvent | RecoveredEvent], str] = {RescaleEvent: GREY, RecoveredEvent: RED}
_SMOOTH_STEPS = 25
# An epoch's last batch is smaller: one step among these is not typical.
_ODD_AMONG = 9
_MOST_NAMES = 12


def draw_size(panel: Any, run: RecordedRun) -> None:
    """The peers, and what rules asked for."""
    size = run.series("size")
    panel.step(run.steps, size, where="post", color=BLUE, linewidth=2)
    decisions = run.happened(DecisionEvent)
    panel.scatter(
        [event.step for event in decisions], [event.asked for event in decisions],
        marker="D", s=34, facecolor="white", edgecolor=RED, linewidth=1.5, zorder=3, label="size a rule asked for",
    )  # fmt: skip
    if decisions:
        panel.legend(loc="upper left", frameon=False, fontsize=9)
    top = np.nanmax([1.0, *size[np.isfinite(size)], *(event.asked for event in decisions)])
    panel.set_ylim(0, top * 1.3)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    panel.set_ylabel("size (peers)")
    _name_rescales(panel, run, height=top * 0.04)


def draw_noise(panel: Any, run: RecordedRun) -> None:
    """The batch, and beside it the noise scale where a policy has one."""
    noise, batch = run.series("noise_scale"), _typical(run.series("batch"), among=_ODD_AMONG)
    watched = np.isfinite(noise).any()
    if watched:
        panel.plot(run.steps, noise, color=ORANGE, linewidth=1.8, label="noise scale")
    panel.step(run.steps, batch, where="post", color=GREY, linewidth=1.3, linestyle="--", label="batch")
    panel.set_ylabel("noise scale (samples)" if watched else "batch (samples)")
    fit_axis(panel, np.concatenate([noise, batch]))
    if watched:
        panel.legend(loc="lower right", frameon=False, fontsize=9)


def draw_loss(panel: Any, run: RecordedRun) -> None:
    """The loss, and the steps in which it is no number."""
    loss = run.series("loss")
    smooth = smoothed(loss, np.zeros_like(loss))
    panel.plot(run.steps, loss, color=RED, linewidth=0.8, alpha=0.3)
    panel.plot(run.steps, smooth, color=RED, linewidth=1.8)
    panel.set_ylabel("loss")
    fit_axis(panel, smooth)
    _mark_lost(panel, run)


def _mark_lost(panel: Any, run: RecordedRun) -> None:
    """A mark at the foot of each step whose loss is no number: a line that ends says nothing."""
    lost = [row for row in run.rows if not_finite(row.get("loss"))]
    if not lost:
        return
    which = f"{not_finite(lost[0]['loss'])}, first at step {figure(lost[0]['step'])}"
    steps = [finite_number(row["step"]) for row in lost]
    foot = panel.get_xaxis_transform()
    panel.scatter(steps, [0.03] * len(steps), transform=foot, marker="x", s=18, color=RED, label=which)
    panel.legend(loc="upper right", frameon=False, fontsize=9)


def draw_speed(panel: Any, run: RecordedRun) -> None:
    """Samples per second."""
    speed = run.series("samples_per_s")
    smooth = smoothed(speed, run.series("size"))
    panel.plot(run.steps, speed, color=GREEN, linewidth=0.8, alpha=0.3)
    panel.plot(run.steps, smooth, color=GREEN, linewidth=1.8)
    panel.set_ylabel("samples/s")
    if np.isfinite(smooth).any():
        # A lone step that was timed too short must not flatten all the others.
        highest = max(float(np.nanmax(smooth)), float(np.nanpercentile(speed, 99)))
        panel.set_ylim(0, highest * 1.15 or 1.0)


def draw_changes(panel: Any, run: RecordedRun) -> None:
    """A line at each change of the membership."""
    for kind, colour in CHANGES.items():
        for event in run.happened(kind):
            panel.axvline(event.step, color=colour, linewidth=1, linestyle=":", zorder=0)


def _name_rescales(panel: Any, run: RecordedRun, *, height: float) -> None:
    """Beside each line, on the side where the size is larger and leaves room below."""
    rescales = [event for kind in CHANGES for event in run.happened(kind)]
    for event in rescales if len(rescales) <= _MOST_NAMES else ():
        side = "left" if event.after > event.before else "right"
        text = f" stood {duration(event.stop_s)} "
        panel.text(event.step, height, text, rotation=90, va="bottom", ha=side, fontsize=8, color="#555a61",
                   clip_on=True, in_layout=False)  # fmt: skip


def fit_axis(panel: Any, values: Series) -> None:
    """A logarithmic axis where the values need one."""
    known = values[np.isfinite(values)]
    if known.size and known.min() > 0 and known.max() / known.min() > _DECADES:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif known.size and known.min() >= 0:
        panel.set_ylim(bottom=0)


def smoothed(values: Series, group: Series) -> Series:
    """The typical value around each step, never across a change of `group`: a jump stays one."""
    # The steps at which the group changes; NaN is a group of its own.
    edges = np.flatnonzero(np.diff(np.nan_to_num(group, nan=-1.0))) + 1
    return np.concatenate([_typical(part, among=_SMOOTH_STEPS) for part in np.split(values, edges)])


def _typical(values: Series, *, among: int) -> Series:
    """The median of the known values of the `among` steps around each: single steps that are odd leave no trace."""
    # One window of values around each step, padded with unknown ones at both ends.
    windows = sliding_window_view(np.pad(values, among // 2, constant_values=math.nan), among)
    known = np.isfinite(windows).any(axis=1)
    typical = np.full(len(values), math.nan)
    typical[known] = np.nanmedian(windows[known], axis=1)
    return typical
