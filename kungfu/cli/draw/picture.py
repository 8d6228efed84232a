"""The picture of a run: panels one below the other, with a common axis of steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kungfu.cli.draw import panels
from kungfu.cli.draw.recorded_run import (
    FRACTIONS,
    MOST_SIGNALS,
    RecordedRun,
    changing_signals,
    chosen_signals,
    read_run,
)
from kungfu.cli.png import blank_figure, write_png
from kungfu.cli.report.narrative import changes, stood_still
from kungfu.cli.report.step_groups import DrawnCurve
from kungfu.event_log.codec import event_to_json
from kungfu.event_log.job import fold
from kungfu.event_log.numbers import as_json
from kungfu.event_log.values import counted

Paint = Callable[[Any, RecordedRun], None]

# In inches: the width and the height of a picture without signals, and the height of each panel of a signal.
_WIDTH, _HEIGHT, _SIGNAL_HEIGHT = 9.0, 9.5, 1.9
# The figures of every picture, under the names of ``metrics.jsonl``.
_FIGURES = ("size", "batch", "noise_scale", "loss", "samples_per_s")


def draw_command(folder: Path, target: Path | None, *, signals: Sequence[str] | None) -> int:
    """Draws the run recorded in a folder, and prints the path of the picture and the signals left out.

    The panels share the axis of steps: the size with its decisions, the noise scale in samples with the batch, the
    loss, samples/s, and each signal.

    Args:
        target: The path of the PNG; by default ``run.png`` in the folder.
        signals: The names of the signals to draw; by default the first few that change.

    Raises:
        UsageError: The folder has no record, the record lacks steps or a given signal, or `target` cannot be written.
    """
    run = read_run(folder)
    chosen = chosen_signals(run, signals)
    print(_draw(run, chosen, folder, target or folder / "run.png"))
    left_out = [name for name in changing_signals(run) if name not in chosen]
    if not run.signals:
        print("note: no signal of a policy is in the record: the picture shows size, batch, loss and samples/s")
    elif signals is None and left_out:
        print(f"note: not drawn: {', '.join(left_out)} (--signals NAME,NAME draws up to {MOST_SIGNALS})")
    return 0


def _draw(run: RecordedRun, signals: Sequence[str], folder: Path, target: Path) -> Path:
    paints: list[Paint] = [panels.draw_size, panels.draw_noise, panels.draw_loss, panels.draw_speed]
    paints += [partial(panels.draw_signal, name=name) for name in signals]
    canvas = blank_figure(_WIDTH, _HEIGHT + _SIGNAL_HEIGHT * len(signals))
    heights = (1.0, 1.15, 1.15, 1.0, *[0.85] * len(signals))
    axes = canvas.subplots(len(paints), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    for panel, paint in zip(axes, paints, strict=True):
        paint(panel, run)
        panels.draw_changes(panel, run)
        panel.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("step")
    axes[-1].set_xlim(float(run.steps[0]), max(float(run.steps[-1]), float(run.steps[0]) + 1))
    canvas.suptitle(_title(run, folder), fontsize=12)
    return write_png(canvas, target)


def _title(run: RecordedRun, folder: Path) -> str:
    job = fold(run.events)
    return f"{folder.name}: {counted(run.steps[-1], 'step')}, {changes(job)}{stood_still(job)}"


def print_drawn_data(folder: Path, *, signals: Sequence[str] | None) -> int:
    """Prints the data of the picture of a run as JSON; the arguments and the errors are those of `draw_command`."""
    run = read_run(folder)
    chosen = chosen_signals(run, signals)
    document = {"folder": str(folder), **_document(run, chosen)}
    print(json.dumps(as_json(document, nan=None), allow_nan=False))
    return 0


def _document(run: RecordedRun, chosen: Sequence[str]) -> dict[str, Any]:
    """The drawn curves and events as plain values; an unknown value is NaN."""
    names = dict.fromkeys((*_FIGURES, *(name for name in chosen if name != FRACTIONS)))
    return {
        "steps": [*map(round, run.steps)],
        "curves": {name: _curve(run.curve(name)) for name in names},
        "peers": {peer: _curve(one) for peer, one in run.fractions.items()} if FRACTIONS in chosen else {},
        "not_finite": {"loss": run.lost_as, "steps": [*map(round, run.lost)]},
        "events": [event_to_json(event) for event in run.happened("decision", "setting", "rescale", "recovery")],
        "signals": [*run.signals],
        "not_drawn": [name for name in changing_signals(run) if name not in chosen],
    }


def _curve(curve: DrawnCurve) -> dict[str, list[float]]:
    return {
        "median": curve.values.tolist(),
        "low": curve.low.tolist(),
        "high": curve.high.tolist(),
        "not_finite_share": curve.undefined.tolist(),
    }
