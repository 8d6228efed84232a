"""Output without a reader: a broken pipe, as in ``| head``, or a stream that was closed before the start (``>&-``)."""

from __future__ import annotations

import os
import sys


def discard_output(stream: object) -> None:
    """Sends to /dev/null what is left in `stream` and what will be written to it; does nothing to one in memory."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]  # one in memory has none, which is asked here
    except (AttributeError, OSError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def open_closed_streams() -> list[str]:
    """Connects the standard streams that this process was started without to /dev/null; returns their names."""
    # Python has none for them, and the next file that is opened would get the descriptor, and the output of others.
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
    return closed
