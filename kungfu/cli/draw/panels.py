"""The panels of every picture: size, batch and noise scale, loss, throughput, and the policies' signals.

A panel of a signal has marks at the values that decisions used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kungfu.cli.draw.recorded_run import FRACTIONS, RecordedRun
from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED, integer_ticks
from kungfu.cli.report.step_groups import DrawnCurve, Series
from kungfu.event_log.events import RuleEvent, Topic
from kungfu.event_log.values import duration, figure, finite_number, label

# A monitor or a loss that spans more than this factor is drawn on a logarithmic axis.
_DECADES = 30.0
# The changes that a line marks at their step, and the colour of that line.
CHANGES: Mapping[Topic, str] = {"rescale": GREY, "recovery": RED}
_SMOOTH_STEPS = 25
# Points near an end have fewer neighbours, but at least this many on one side, so that single outliers vanish there.
_LEAST_AROUND = 2
# The last batch of an epoch is smaller: the median of this many steps ignores it.
_ODD_AMONG = 9
_MOST_NAMES = 12
# The limit of change lines: a picture is about 1,000 pixels wide.
_MOST_LINES = 1_000
_WINDOWS_AT_ONCE = 1 << 14
_PURPLE = "#6f42c1"
_PEERS = (BLUE, ORANGE, GREEN, _PURPLE, "#0b7285", "#a61e4d", GREY, RED)
# With more peers a legend would hide the lines.
_MOST_NAMED = 8
# The sizes of the marks at the inputs of a rule: for a requested size, and for a setting.
_MARK_SIZES = {"D": 34, "o": 14}
_MEANINGS = {"D": "size asked for by", "o": "set by"}


def draw_size(panel: Any, run: RecordedRun) -> None:
    """Draws the number of peers, and the sizes that rules requested."""
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
    integer_ticks(panel.yaxis, most=6)
    panel.set_ylabel("size (peers)")
    _name_rescales(panel, run, height=top * 0.04)


def draw_noise(panel: Any, run: RecordedRun) -> None:
    """Draws the batch, and the noise scale if a policy computes the noise scale."""
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
        # Above the panel: both curves may be anywhere in it.
        panel.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0, ncols=2, frameon=False, fontsize=9
        )


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
    """Draws a curve with a pale band between its extremes, and gaps at points with mostly non-finite steps.

    Args:
        x: The x values of the points; the value of a point applies from the x of the previous point to its own x.
        line: The smoothed line, if the values jump from step to step; ungrouped values are then drawn pale.
        is_stepped: True to draw steps instead of slopes between values.
        look: Further arguments for matplotlib's line.
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
    """The indices of known values with unknown values on both sides: a line between points would not show them."""
    known = np.pad(~np.isnan(values), 1)
    return [*map(int, np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:]))]


def line_of(curve: DrawnCurve) -> Series:
    """The values of a signal's line: smoothed if the signal varies within most groups of steps, else the medians."""
    jumps = np.mean(curve.low < curve.high) > 0.5
    return smoothed(curve.values, np.zeros(len(curve.values))) if jumps else curve.values


def draw_loss(panel: Any, run: RecordedRun) -> None:
    """Draws the loss, and marks the steps in which it is not finite."""
    loss, lost = run.curve("loss"), run.lost
    smooth = smoothed(loss.values, np.zeros(len(loss.values)))
    draw_curve(panel, run.steps, loss, color=RED, line=smooth, linewidth=1.8)
    panel.set_ylabel("loss")
    fit_axis(panel, smooth)
    # Marks at the foot of the panel, since the mere end of a line would explain nothing.
    if lost.size:
        which, foot = f"{run.lost_as}, first at step {figure(lost[0])}", panel.get_xaxis_transform()
        panel.scatter(lost, [0.03] * len(lost), transform=foot, marker="x", s=18, color=RED, label=which)
        panel.legend(loc="upper right", frameon=False, fontsize=9)


def draw_speed(panel: Any, run: RecordedRun) -> None:
    """Draws the samples per second."""
    speed = run.curve("samples_per_s")
    smooth = smoothed(speed.values, run.curve("size").values)
    draw_curve(panel, run.steps, speed, color=GREEN, line=smooth, linewidth=1.8)
    panel.set_ylabel("samples/s")
    if np.isfinite(smooth).any():
        # A single step that was timed too short must not flatten the rest of the curve.
        highest = max(float(np.nanmax(smooth)), float(np.nanpercentile(speed.high, 99)))
        panel.set_ylim(0, highest * 1.15 or 1.0)


def draw_changes(panel: Any, run: RecordedRun) -> None:
    """Draws a line at each change of the membership."""
    from matplotlib.collections import LineCollection

    # All lines of a kind are one artist. In a long run, thousands of lines would merge into a solid area.
    apart = (run.steps[-1] - run.steps[0]) / _MOST_LINES
    for topic, colour in CHANGES.items():
        steps = [-math.inf]
        for step in sorted(event.step for event in run.happened(topic)):
            if step - steps[-1] >= apart:
                steps.append(step)
        drawn = LineCollection(
            [[(step, 0.0), (step, 1.0)] for step in steps[1:]],
            transform=panel.get_xaxis_transform(), colors=colour, linewidths=1, linestyles=":", zorder=0,
        )  # fmt: skip
        panel.add_collection(drawn, autolim=False)


def _name_rescales(panel: Any, run: RecordedRun, *, height: float) -> None:
    """Writes each membership change's pause at its line, on the larger size's side, where the curve leaves room."""
    rescales = [event for topic in CHANGES for event in run.happened(topic)]
    for event in rescales if len(rescales) <= _MOST_NAMES else ():
        side = "left" if event.after > event.before else "right"
        text = f" stood {duration(event.stop_s)} "
        panel.text(event.step, height, text, rotation=90, va="bottom", ha=side, fontsize=8, color="#555a61",
                   clip_on=True, in_layout=False)  # fmt: skip


def fit_axis(panel: Any, values: Series) -> None:
    """Makes the y axis logarithmic for positive values over a wide range; else starts at 0 if no value is negative.

    An axis from 0 has a margin at its top, so that a mark at the highest value is not cut.
    """
    known = values[np.isfinite(values)]
    if known.size and known.min() > 0 and known.max() / known.min() > _DECADES:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif known.size and known.min() >= 0:
        panel.set_ylim(0, 1.1 * panel.get_ylim()[1])


def smoothed(values: Series, group: Series) -> Series:
    """The typical value around each point, taken only from points of the same ``group``, so that jumps stay sharp."""
    # The points at which the group changes; unknown groups (NaN) count as one group.
    edges = np.flatnonzero(np.diff(np.nan_to_num(group, nan=-1.0))) + 1
    return np.concatenate([_typical(part, among=_SMOOTH_STEPS) for part in np.split(values, edges)])


def _typical(values: Series, *, among: int) -> Series:
    """The median of the known values in a window of ``among`` points around each point; removes single outliers."""
    count, reach = len(values), among // 2
    typical = np.empty(count)
    padded = np.pad(values, reach, constant_values=math.nan)
    # In parts: windows for a million steps at once would need hundreds of megabytes.
    for begin in range(0, count, _WINDOWS_AT_ONCE):
        windows = sliding_window_view(padded[begin : begin + _WINDOWS_AT_ONCE + among - 1], among)
        typical[begin : begin + len(windows)] = _medians(windows)
    # Near an end the window shrinks on both sides alike, so that the line follows a trend to its ends.
    for at in {*range(min(reach, count)), *range(max(0, count - reach), count)}:
        near = max(_LEAST_AROUND, min(reach, at, count - 1 - at))
        typical[at] = _medians(values[None, max(0, at - near) : at + near + 1])[0]
    return typical


def _medians(windows: Series) -> Series:
    """The median of the known values of each row; NaN for a row without known values."""
    rising = np.sort(windows, axis=1)  # NaN sorts last
    known, rows = np.count_nonzero(~np.isnan(rising), axis=1), np.arange(len(rising))
    medians: Series = (rising[rows, np.maximum(known - 1, 0) // 2] + rising[rows, known // 2]) / 2
    return medians


# ---- signals ---------------------------------------------------------------------------------------------------------


def draw_signal(panel: Any, run: RecordedRun, *, name: str) -> None:
    """Draws a signal over the steps, with marks at the values that rules used for a requested size or a setting."""
    panel.set_ylabel(_escaped(label(name)))
    if name == FRACTIONS:
        _draw_fractions(panel, run)
        return
    curve = run.curve(name)
    draw_curve(panel, run.steps, curve, color=_PURPLE, line=line_of(curve), linewidth=1.5, label=curve.note)
    marked = [
        *_mark(panel, run.happened("setting"), name, marker="o", colour=GREY),
        *_mark(panel, run.happened("decision"), name, marker="D", colour=RED),
    ]
    if marked or curve.note:
        panel.legend(loc="upper left", frameon=False, fontsize=9)
    fit_axis(panel, np.concatenate([curve.low, curve.high, marked]))
    if not np.isfinite(curve.values).any():
        panel.text(0.5, 0.5, "no number in any step", transform=panel.transAxes, ha="center", color=GREY)


def _mark(panel: Any, events: Sequence[RuleEvent], name: str, *, marker: str, colour: str) -> list[float]:
    """Marks the values of a signal that rules used, as recorded in the rules' events; returns these values."""
    seen = [(event, finite_number(event.saw.get(name))) for event in events]
    points = [(event.step, value) for event, value in seen if value is not None]
    if not points:
        return []
    rules = list(dict.fromkeys(event.rule for event, value in seen if value is not None))
    named = ", ".join([*rules[:2], "..."] if len(rules) > 2 else rules)
    panel.scatter(
        *zip(*points, strict=True), marker=marker, s=_MARK_SIZES[marker], facecolor="white", edgecolor=colour,
        linewidth=1.5, zorder=3, label=_escaped(f"{_MEANINGS[marker]} {named}"),
    )  # fmt: skip
    return [value for _, value in points]


def _draw_fractions(panel: Any, run: RecordedRun) -> None:
    """Draws the speeds of the peers, as fractions of the median speed, with one line per peer."""
    of_peers = run.fractions
    for nth, (peer, curve) in enumerate(of_peers.items()):
        draw = partial(draw_curve, color=_PEERS[nth % len(_PEERS)], line=line_of(curve))
        draw(panel, run.steps, curve, linewidth=1.3, label=_escaped(f"peer {peer}"))
    panel.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    if len(of_peers) <= _MOST_NAMED:
        panel.legend(loc="lower left", frameon=False, fontsize=8, ncols=4)
    fit_axis(panel, np.concatenate([*(one.high for one in of_peers.values()), [0.0, 1.2]]))


def _escaped(text: str) -> str:
    """Escapes text so that matplotlib never reads a signal's name as a formula."""
    return text.replace("$", r"\$")
