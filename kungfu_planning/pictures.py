"""The writer of pictures, which leaves a complete file or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_picture"]


def write_picture(figure: Figure, *, path: Path) -> None:
    """Writes a figure to a temporary file in the folder of ``path`` and renames it, so no partial picture is left.

    Raises:
        OSError: The file cannot be written.
        ValueError: The file extension is not a supported image format.
    """
    unfinished = path.with_name(f".{path.name}.unfinished{path.suffix}")
    try:
        figure.savefig(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
