"""Handles output without a reader: a broken pipe, as in ``| head``, or a stream closed before the start (``>&-``)."""

from __future__ import annotations

import os
import sys


def discard_output(stream: object) -> None:
    """Redirects `stream` and its unwritten output to /dev/null; leaves a stream in memory unchanged."""
    try:
        number = stream.fileno()  # type: ignore[attr-defined]  # a stream in memory has none, see the except below
    except (AttributeError, OSError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def open_closed_streams() -> list[str]:
    """Opens /dev/null in place of standard streams that were closed before the start; returns their names."""
    # Python sets a closed stream to None. The next opened file would get the stream's descriptor, and its output.
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
    return closed
