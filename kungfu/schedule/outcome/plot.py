"""Utilisation and queue over time, one line a policy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kungfu.errors import UsageError
from kungfu.schedule.outcome.ledger import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["save_plot"]

_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0}


def save_plot(results: Sequence[Result], *, path: str | Path) -> Path:
    """Write a picture of busy GPUs and waiting jobs over time; the file appears whole or not at all.

    Args:
        results: simulations to compare, at least one.
        path: where to write; the ending (.png, .svg, .pdf) chooses the format.

    Raises:
        UsageError: if the file cannot be written, or the ending is unknown.
    """
    from matplotlib.figure import Figure  # takes half a second, and most simulations draw nothing

    figure = Figure(figsize=(9, 6), layout="constrained")
    busy, queue = figure.subplots(2, 1, sharex=True)
    unit = _unit(max(float(np.ptp(result.timeline.time_s)) for result in results))
    for result in results:
        elapsed = (result.timeline.time_s - result.timeline.time_s[0]) / _UNITS[unit]
        busy.step(elapsed, result.timeline.busy / result.gpus, where="post", label=result.policy, linewidth=0.8)
        queue.step(elapsed, result.timeline.pending, where="post", linewidth=0.8)
    busy.set(
        ylabel="busy GPUs (fraction)", ylim=(0, 1.05), title=f"{results[0].gpus} GPUs, {len(results[0].jobs)} jobs"
    )
    queue.set(ylabel="waiting jobs", xlabel=unit)
    busy.legend(loc="lower right")
    try:
        _save_whole(figure, path=Path(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot write the plot {path}: {error}; give a writable path ending in .png, .svg or .pdf"
        ) from error
    return Path(path)


def _unit(span_s: float) -> str:
    """The largest unit of which the span has at least two."""
    return next((name for name, seconds in reversed(_UNITS.items()) if span_s >= 2 * seconds), "seconds")


def _save_whole(figure: Figure, *, path: Path) -> None:
    """Write beside the target, then rename: nobody finds half a picture."""
    with tempfile.TemporaryDirectory(dir=path.absolute().parent) as folder:
        draft = Path(folder) / path.name
        figure.savefig(draft)
        os.replace(draft, path)
