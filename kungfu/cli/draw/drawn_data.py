"""``kungfu draw --json``: the data of the picture of a run, as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kungfu.cli.draw.recorded_run import FRACTIONS, RecordedRun, changing_signals, chosen_signals, read_run
from kungfu.cli.report.step_groups import DrawnCurve
from kungfu.event_log.codec import event_to_json
from kungfu.event_log.numbers import as_json

# The figures of every picture, under the names of ``metrics.jsonl``.
_FIGURES = ("size", "batch", "noise_scale", "loss", "samples_per_s")


def print_drawn_data(folder: Path, *, signals: Sequence[str] | None) -> int:
    """Prints the data of the picture of a run; the arguments and the errors are those of `draw_command`."""
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
