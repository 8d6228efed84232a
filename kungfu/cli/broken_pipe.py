"""Handles output without a reader: a broken pipe, as in ``| head``, or a stream closed before the start (``>&-``)."""

from __future__ import annotations

import os
import sys


def discard_output(stream: object) -> None:
    """Redirects `stream` to /dev/null, with its unwritten output; does nothing to a stream in memory."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]  # a stream in memory has none, see the except below
    except (AttributeError, OSError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def open_closed_streams() -> list[str]:
    """Connects standard streams that were closed before this process started to /dev/null; returns their names."""
    # Python sets a closed stream to None; the next opened file would get its descriptor, and the output of others.
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
    return closed
