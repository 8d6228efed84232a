"""The panels of every picture: size, batch and noise scale, loss, throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.lib.stride_tricks import sliding_window_view

from kungfu.cli.draw.recorded_run import RecordedRun
from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED
from kungfu.cli.report.step_groups import DrawnCurve, Series
from kungfu.event_log.events import Topic
from kungfu.event_log.values import duration, figure

# A monitor or a loss that spans more than this factor is drawn on a logarithmic axis.
_DECADES = 30.0
# Each is a line at its step: a size that was asked for, and the loss of peers.
CHANGES: Mapping[Topic, str] = {"rescale": GREY, "recovery": RED}
_SMOOTH_STEPS = 25
# Those near an end have fewer around them, on one side at least so many: a lone odd one leaves no trace there either.
_LEAST_AROUND = 2
# An epoch's last batch is smaller: one step among these is not typical.
_ODD_AMONG = 9
_MOST_NAMES = 12
# Of changes: a picture is some 1,000 pixels wide.
_MOST_LINES = 1_000
_WINDOWS_AT_ONCE = 1 << 14


def draw_size(panel: Any, run: RecordedRun) -> None:
    """The peers, and what rules requested."""
    size = run.curve("size")
    draw_curve(panel, run.steps, size, color=BLUE, linewidth=2, is_stepped=True)
    decisions = run.happened("decision")
    panel.scatter(
        [event.step for event in decisions], [event.asked for event in decisions],
        marker="D", s=34, facecolor="white", edgecolor=RED, linewidth=1.5, zorder=3, label="size asked for",
    )  # fmt: skip
    if decisions:
        panel.legend(loc="upper left", frameon=False, fontsize=9)
    top = np.nanmax([1.0, *size.high[np.isfinite(size.high)], *(event.asked for event in decisions)])
    panel.set_ylim(0, top * 1.3)
    panel.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    panel.set_ylabel("size (peers)")
    _name_rescales(panel, run, height=top * 0.04)


def draw_noise(panel: Any, run: RecordedRun) -> None:
    """The batch, and beside it the noise scale where a policy has one."""
    noise, batch = run.curve("noise_scale"), run.curve("batch")
    watched = np.isfinite(noise.values).any()
    if watched:
        named = f"noise scale ({noise.note})" if noise.note else "noise scale"
        draw_curve(panel, run.steps, noise, color=ORANGE, line=line_of(noise), linewidth=1.8, label=named)
    typical = _typical(batch.values, among=_ODD_AMONG)
    draw = partial(draw_curve, color=GREY, line=typical, is_stepped=True)
    draw(panel, run.steps, batch, linewidth=1.3, linestyle="--", label="batch")
    panel.set_ylabel("noise scale (samples)" if watched else "batch (samples)")
    fit_axis(panel, np.concatenate([noise.values, typical]))
    if watched:
        panel.legend(loc="lower right", frameon=False, fontsize=9)


def draw_curve(
    panel: Any,
    x: Series,
    curve: DrawnCurve,
    *,
    color: str,
    line: Series | None = None,
    is_stepped: bool = False,
    **look: Any,
) -> None:
    """A curve as a line, with its extremes as a pale band behind it, and a gap where it is no number in most steps.

    Args:
        panel: To draw in.
        x: The x values of the points; the value of one holds for the range before it.
        curve: The curve to draw.
        color: The color of both.
        line: The median line, if the values jump from step to step: if these are no groups, they are drawn pale.
        is_stepped: True if nothing is between two values.
        look: The look of the line.
    """
    if (curve.low < curve.high).any():
        step = "pre" if is_stepped else None
        panel.fill_between(x, curve.low, curve.high, step=step, color=color, alpha=0.25, linewidth=0)
    elif line is not None and not is_stepped:
        panel.plot(x, curve.values, color=color, linewidth=0.8, alpha=0.3)
    gaps = np.isnan(curve.values) & (curve.undefined > 0)
    drawn = np.where(gaps, np.nan, curve.values if line is None else line)
    paint = partial(panel.step, where="pre") if is_stepped else panel.plot
    paint(x, drawn, color=color, marker=".", markersize=3, markevery=_lonely(drawn), **look)


def _lonely(values: Series) -> list[int]:
    """The places of known values between unknown ones, to which no line leads."""
    known = np.pad(~np.isnan(values), 1)
    return [*map(int, np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:]))]


def line_of(curve: DrawnCurve) -> Series:
    """The line of a signal: where it jumps within most groups of steps, what is typical; else its medians."""
    jumps = np.mean(curve.low < curve.high) > 0.5
    return smoothed(curve.values, np.zeros(len(curve.values))) if jumps else curve.values


def draw_loss(panel: Any, run: RecordedRun) -> None:
    """The loss, and the steps in which it is no number."""
    loss = run.curve("loss")
    smooth = smoothed(loss.values, np.zeros(len(loss.values)))
    draw_curve(panel, run.steps, loss, color=RED, line=smooth, linewidth=1.8)
    panel.set_ylabel("loss")
    fit_axis(panel, smooth)
    _mark_lost(panel, run)


def _mark_lost(panel: Any, run: RecordedRun) -> None:
    """A mark at the foot of each step whose loss is no number: a line that ends says nothing."""
    lost = run.lost
    if not lost.size:
        return
    which = f"{run.lost_as}, first at step {figure(lost[0])}"
    foot = panel.get_xaxis_transform()
    panel.scatter(lost, [0.03] * len(lost), transform=foot, marker="x", s=18, color=RED, label=which)
    panel.legend(loc="upper right", frameon=False, fontsize=9)


def draw_speed(panel: Any, run: RecordedRun) -> None:
    """Samples per second."""
    speed = run.curve("samples_per_s")
    smooth = smoothed(speed.values, run.curve("size").values)
    draw_curve(panel, run.steps, speed, color=GREEN, line=smooth, linewidth=1.8)
    panel.set_ylabel("samples/s")
    if np.isfinite(smooth).any():
        # A lone step that was timed too short must not flatten all the others.
        highest = max(float(np.nanmax(smooth)), float(np.nanpercentile(speed.high, 99)))
        panel.set_ylim(0, highest * 1.15 or 1.0)


def draw_changes(panel: Any, run: RecordedRun) -> None:
    """A line at each change of the membership."""
    # All of a kind are one artist: of a long run there may be thousands, and beside each other they are a plane.
    apart = (run.steps[-1] - run.steps[0]) / _MOST_LINES
    for topic, colour in CHANGES.items():
        steps = _thinned(sorted(event.step for event in run.happened(topic)), apart=apart)
        lines = [[(step, 0.0), (step, 1.0)] for step in steps]
        drawn = LineCollection(
            lines, transform=panel.get_xaxis_transform(), colors=colour, linewidths=1, linestyles=":", zorder=0
        )
        panel.add_collection(drawn, autolim=False)


def _thinned(steps: Sequence[int], *, apart: float) -> Iterator[int]:
    """The rising steps that are at least this far from the last one returned."""
    last = -math.inf
    for step in steps:
        if step - last >= apart:
            last = step
            yield step


def _name_rescales(panel: Any, run: RecordedRun, *, height: float) -> None:
    """Beside each line, on the side where the size is larger and leaves room below."""
    rescales = [event for topic in CHANGES for event in run.happened(topic)]
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
    """The typical value around each point, never across a change of `group`: a jump stays one."""
    # The points at which the group changes; NaN is a group of its own.
    edges = np.flatnonzero(np.diff(np.nan_to_num(group, nan=-1.0))) + 1
    return np.concatenate([_typical(part, among=_SMOOTH_STEPS) for part in np.split(values, edges)])


def _typical(values: Series, *, among: int) -> Series:
    """The median of the known values of the `among` points around each: single ones that are odd leave no trace."""
    count, reach = len(values), among // 2
    typical = np.empty(count)
    padded = np.pad(values, reach, constant_values=math.nan)
    # Part by part: a window for each of a million steps would be hundreds of megabytes.
    for begin in range(0, count, _WINDOWS_AT_ONCE):
        windows = sliding_window_view(padded[begin : begin + _WINDOWS_AT_ONCE + among - 1], among)
        typical[begin : begin + len(windows)] = _medians(windows)
    # Near an end it is that of fewer, as many on one side as on the other, so that a line rises and falls to its ends.
    for at in {*range(min(reach, count)), *range(max(0, count - reach), count)}:
        near = max(_LEAST_AROUND, min(reach, at, count - 1 - at))
        typical[at] = _medians(values[None, max(0, at - near) : at + near + 1])[0]
    return typical


def _medians(windows: Series) -> Series:
    """The median of the known values of each row, NaN if it has none."""
    rising = np.sort(windows, axis=1)  # NaN comes last
    known, rows = np.count_nonzero(~np.isnan(rising), axis=1), np.arange(len(rising))
    medians: Series = (rising[rows, np.maximum(known - 1, 0) // 2] + rising[rows, known // 2]) / 2
    return medians
