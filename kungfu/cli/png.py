"""Helpers for pictures: colours, a figure without a display, and its PNG.

Only drawing loads matplotlib, which is in the extra `plots`.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kungfu.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GREY = "#1f6fb4", "#d9730d", "#2b8a3e", "#b3261e", "#8a8f98"


def blank_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure that is drawn in memory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def integer_ticks(axis: Any, *, most: int = 10) -> None:
    """Limits the ticks of an axis to whole numbers, and to about this many."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=most))


def png_of(figure: Figure) -> bytes:
    """Renders the figure as a PNG."""
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()


def write_png(figure: Figure, target: Path) -> Path:
    """Renders the figure, writes it as a PNG and returns the path; raises ``UsageError`` if writing fails."""
    content = png_of(figure)  # rendered before the file is opened
    try:
        target.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror}; give a file in a folder that can be written to") from error
    return target
