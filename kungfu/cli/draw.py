"""``kungfu draw DIR``: a run in one picture, four panels over its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED, blank_figure, write_png
from kungfu.cli.report import read_events, read_metrics
from kungfu.cli.report.changes import changes, stopped_s
from kungfu.cli.report.values import counted, duration, figure, finite_number, not_finite
from kungfu.errors import UsageError
from kungfu.event_log.events import DecisionEvent, LoggedEvent, RecoveredEvent, RescaleEvent

__all__ = ["Series", "draw_run", "fit_axis", "smoothed"]

Series = NDArray[np.float64]
Drawn = TypeVar("Drawn", bound=DecisionEvent | RescaleEvent | RecoveredEvent)

# A monitor or a loss that spans more than this factor is drawn on a logarithmic axis.
_DECADES = 30.0
# Each is a line at its step: a size that was asked for, and the loss of peers.
_CHANGES: Mapping[type[RescaleEvent | RecoveredEvent], str] = {RescaleEvent: GREY, RecoveredEvent: RED}
_SMOOTH_STEPS = 25
# An epoch's last batch is smaller: one step among these is not typical.
_ODD_AMONG = 9
_MOST_NAMES = 12


@dataclass(frozen=True)
class _Run:
    """A run as it is drawn: a row of figures for each step, and the events."""

    steps: Series
    rows: tuple[Mapping[str, Any], ...]
    events: tuple[LoggedEvent, ...]

    def series(self, name: str) -> Series:
        """The values of one figure, NaN where it is not known."""
        return np.array([_known(row.get(name)) for row in self.rows])

    def happened(self, kind: type[Drawn]) -> list[Drawn]:
        """The events of a kind, of the steps that are drawn."""
        first, last = self.steps[0], self.steps[-1]
        return [event for event in self.events if isinstance(event, kind) and first <= event.step <= last]


def draw_run(folder: Path, target: Path) -> Path:
    """Draws the run that `folder` records as a PNG, and gives its path.

    Four panels share the axis of steps: the size with its decisions, the noise scale in samples beside the batch, the
    loss, and samples/s.

    Args:
        folder: The folder that kungfu-run wrote to.
        target: The file to write.

    Raises:
        UsageError: There is no record, no step in it, or `target` cannot be written.
    """
    run = _read(folder)
    canvas = blank_figure(9.0, 9.5)
    panels = canvas.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": (1.0, 1.15, 1.15, 1.0)})
    for panel, paint in zip(panels, (_draw_size, _draw_noise, _draw_loss, _draw_speed), strict=True):
        paint(panel, run)
        _draw_rescales(panel, run)
        panel.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("step")
    panels[-1].set_xlim(float(run.steps[0]), max(float(run.steps[-1]), float(run.steps[0]) + 1))
    canvas.suptitle(_title(run, folder), fontsize=12)
    return write_png(canvas, target)


def _read(folder: Path) -> _Run:
    rows = [row for row in read_metrics(folder).rows if finite_number(row.get("step")) is not None]
    if not rows:
        raise UsageError(f"{folder / 'metrics.jsonl'}: no step of the run was measured, so there is nothing to draw")
    rows.sort(key=lambda row: _known(row["step"]))
    return _Run(np.array([_known(row["step"]) for row in rows]), tuple(rows), read_events(folder).events)


def _known(value: object) -> float:
    given = finite_number(value)
    return math.nan if given is None else given


def _title(run: _Run, folder: Path) -> str:
    changed = any(isinstance(event, (*_CHANGES,)) for event in run.events)
    stood = f", for which training stood still for {duration(stopped_s(run.events))}" if changed else ""
    return f"{folder.name}: {counted(run.steps[-1], 'step')}, {changes(run.events)}{stood}"


# ---- the panels ----------------------------------------------------------------------------------------------------


def _draw_size(panel: Any, run: _Run) -> None:
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


def _draw_noise(panel: Any, run: _Run) -> None:
    noise, batch = run.series("noise_scale"), _typical(run.series("batch"), among=_ODD_AMONG)
    panel.plot(run.steps, noise, color=ORANGE, linewidth=1.8, label="noise scale")
    panel.step(run.steps, batch, where="post", color=GREY, linewidth=1.3, linestyle="--", label="batch")
    panel.set_ylabel("noise scale (samples)")
    fit_axis(panel, np.concatenate([noise, batch]))
    panel.legend(loc="lower right", frameon=False, fontsize=9)
    if not np.isfinite(noise).any():
        panel.text(0.5, 0.5, "no rule watched the noise scale", transform=panel.transAxes, ha="center", color=GREY)


def _draw_loss(panel: Any, run: _Run) -> None:
    loss = run.series("loss")
    smooth = smoothed(loss, np.zeros_like(loss))
    panel.plot(run.steps, loss, color=RED, linewidth=0.8, alpha=0.3)
    panel.plot(run.steps, smooth, color=RED, linewidth=1.8)
    panel.set_ylabel("loss")
    fit_axis(panel, smooth)
    _mark_lost(panel, run)


def _mark_lost(panel: Any, run: _Run) -> None:
    """A mark at the foot of each step whose loss is no number: a line that ends says nothing."""
    lost = [row for row in run.rows if not_finite(row.get("loss"))]
    if not lost:
        return
    which = f"{not_finite(lost[0]['loss'])}, first at step {figure(lost[0]['step'])}"
    steps = [_known(row["step"]) for row in lost]
    foot = panel.get_xaxis_transform()
    panel.scatter(steps, [0.03] * len(steps), transform=foot, marker="x", s=18, color=RED, label=which)
    panel.legend(loc="upper right", frameon=False, fontsize=9)


def _draw_speed(panel: Any, run: _Run) -> None:
    speed = run.series("samples_per_s")
    smooth = smoothed(speed, run.series("size"))
    panel.plot(run.steps, speed, color=GREEN, linewidth=0.8, alpha=0.3)
    panel.plot(run.steps, smooth, color=GREEN, linewidth=1.8)
    panel.set_ylabel("samples/s")
    if np.isfinite(smooth).any():
        # A lone step that was timed too short must not flatten all the others.
        highest = max(float(np.nanmax(smooth)), float(np.nanpercentile(speed, 99)))
        panel.set_ylim(0, highest * 1.15 or 1.0)


def _draw_rescales(panel: Any, run: _Run) -> None:
    for kind, colour in _CHANGES.items():
        for event in run.happened(kind):
            panel.axvline(event.step, color=colour, linewidth=1, linestyle=":", zorder=0)


def _name_rescales(panel: Any, run: _Run, *, height: float) -> None:
    """Beside each line, on the side where the size is larger and leaves room below."""
    rescales = [event for kind in _CHANGES for event in run.happened(kind)]
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
