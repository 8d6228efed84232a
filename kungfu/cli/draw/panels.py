"""The panels of every picture: size, batch and noise scale, loss, throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.lib.stride_tricks import sliding_window_view

from kungfu.cli.draw.curves import Series
from kungfu.cli.draw.recorded_run import RecordedRun
from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED
from kungfu.cli.report.values import duration, figure
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
# Of changes: a picture is some 1,000 pixels wide.
_MOST_LINES = 1_000
_WINDOWS_AT_ONCE = 1 << 14


def draw_size(panel: Any, run: RecordedRun) -> None:
    """The peers, and what rules asked for."""
    size = run.series("size")
    panel.step(run.steps, size, where="post", color=BLUE, linewidth=2)
    decisions = run.happened(DecisionEvent)
    panel.scatter(
        [event.step for event in decisions], [event.asked for event in decisions],
        marker="D", s=34, facecolor="white", edgecolor=RED, linewidth=1.5, zorder=3, label="size asked for",
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
    noise, batch = run.series("noise_scale"), _typical(run.typical("batch"), among=_ODD_AMONG)
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
    smooth = smoothed(run.typical("loss"), np.zeros_like(loss))
    panel.plot(run.steps, loss, color=RED, linewidth=0.8, alpha=0.3)
    panel.plot(run.steps, smooth, color=RED, linewidth=1.8)
    panel.set_ylabel("loss")
    fit_axis(panel, smooth)
    _mark_lost(panel, run)


def _mark_lost(panel: Any, run: RecordedRun) -> None:
    """A mark at the foot of each step whose loss is no number: a line that ends says nothing."""
    lost = run.curves.lost
    if not lost:
        return
    (first, what), steps = lost[0], [step for step, _ in lost]
    which = f"{what}, first at step {figure(first)}"
    foot = panel.get_xaxis_transform()
    panel.scatter(steps, [0.03] * len(steps), transform=foot, marker="x", s=18, color=RED, label=which)
    panel.legend(loc="upper right", frameon=False, fontsize=9)


def draw_speed(panel: Any, run: RecordedRun) -> None:
    """Samples per second."""
    speed = run.series("samples_per_s")
    smooth = smoothed(run.typical("samples_per_s"), run.series("size"))
    panel.plot(run.steps, speed, color=GREEN, linewidth=0.8, alpha=0.3)
    panel.plot(run.steps, smooth, color=GREEN, linewidth=1.8)
    panel.set_ylabel("samples/s")
    if np.isfinite(smooth).any():
        # A lone step that was timed too short must not flatten all the others.
        highest = max(float(np.nanmax(smooth)), float(np.nanpercentile(speed, 99)))
        panel.set_ylim(0, highest * 1.15 or 1.0)


def draw_changes(panel: Any, run: RecordedRun) -> None:
    """A line at each change of the membership."""
    # All of a kind are one artist: of a long run there may be thousands, and beside each other they are a plane.
    apart = (run.steps[-1] - run.steps[0]) / _MOST_LINES
    for kind, colour in CHANGES.items():
        steps = _thinned(sorted(event.step for event in run.happened(kind)), apart=apart)
        lines = [[(step, 0.0), (step, 1.0)] for step in steps]
        drawn = LineCollection(
            lines, transform=panel.get_xaxis_transform(), colors=colour, linewidths=1, linestyles=":", zorder=0
        )
        panel.add_collection(drawn, autolim=False)


def _thinned(steps: Sequence[int], *, apart: float) -> Iterator[int]:
    """Of rising steps those that are at least so far from the last one that was given."""
    last = -math.inf
    for step in steps:
        if step - last >= apart:
            last = step
            yield step


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
    typical = np.empty(len(values))
    padded = np.pad(values, among // 2, constant_values=math.nan)
    # Part by part: a window for each of a million steps would be hundreds of megabytes.
    for begin in range(0, len(values), _WINDOWS_AT_ONCE):
        windows = sliding_window_view(padded[begin : begin + _WINDOWS_AT_ONCE + among - 1], among)
        typical[begin : begin + len(windows)] = _medians(windows)
    return typical


def _medians(windows: Series) -> Series:
    """The median of the known values of each row, NaN where it has none."""
    rising = np.sort(windows, axis=1)  # NaN comes last
    known, rows = np.count_nonzero(~np.isnan(rising), axis=1), np.arange(len(rising))
    medians: Series = (rising[rows, np.maximum(known - 1, 0) // 2] + rising[rows, known // 2]) / 2
    return medians
