"""A broken pipe: the reader of our output has ended, as ``head`` does in ``| head``."""

from __future__ import annotations

import os

__all__ = ["discard_output"]


def discard_output(stream: object) -> None:
    """Sends to /dev/null what is left in `stream` and what will be written to it; does nothing to one in memory."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]  # one in memory has none, which is asked here
    except (AttributeError, OSError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
