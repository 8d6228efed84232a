"""What to do when nobody reads our output any more, as behind ``| head``."""

from __future__ import annotations

import os

__all__ = ["let_go"]


def let_go(stream: object) -> None:
    """From now on what is written to `stream`, and what is left in it, goes nowhere; does nothing to one in memory."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]  # one in memory has none, which is asked here
    except (AttributeError, OSError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
