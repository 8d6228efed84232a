"""A profile in one picture: throughput beside what it could be, and efficiency, over the size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

__all__ = ["drawn"]

_BLUE, _GREEN, _GREY = "#1f6fb4", "#2b8a3e", "#8a8f98"


def drawn(measures: Sequence[tuple[int, float, float]]) -> bytes:
    """A PNG of (peers, samples/s, efficiency); the dotted line is where all peers train as much as at the best size."""
    canvas = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    left: Any = canvas.subplots()
    right = left.twinx()
    sizes, speeds, shares = zip(*measures, strict=True)
    best = max(speed / size for size, speed in zip(sizes, speeds, strict=True))
    left.plot([0, *sizes], [0, *(best * size for size in sizes)], color=_GREY, linestyle=":", label="all at their best")
    left.plot(sizes, speeds, color=_BLUE, marker="o", label="throughput")
    right.plot(sizes, shares, color=_GREEN, marker="s", linestyle="--", label="efficiency")
    left.set_xlabel("size (peers)")
    left.set_ylabel("throughput (samples/s)", color=_BLUE)
    right.set_ylabel("efficiency", color=_GREEN)
    left.set_ylim(bottom=0)
    left.set_xlim(left=0)
    right.set_ylim(0, 1.05)
    right.spines["top"].set_visible(False)
    left.spines["top"].set_visible(False)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.legend(loc="outside upper center", ncols=3, frameon=False)
    image = io.BytesIO()
    canvas.savefig(image, format="png", dpi=120)
    return image.getvalue()
