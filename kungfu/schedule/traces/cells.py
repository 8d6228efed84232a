"""From the text of a cell to a value, or an error that says where the cell stands and what was expected."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from kungfu.errors import UsageError

__all__ = ["instant_s", "positive_s", "whole", "word"]


def instant_s(cell: str, *, where: str) -> float:
    """A time in seconds: a number of at least 0, or a date and time (UTC) in seconds since 1970.

    >>> instant_s("12.5", where=""), instant_s("1970-01-01 00:01:00", where="")
    (12.5, 60.0)
    """
    value = _number(cell)
    if value is None:
        value = _timestamp(cell)
    if value is None or value < 0:
        raise UsageError(f"{where}: expected seconds of at least 0 or a date like 2017-10-09 07:01:55, got {cell!r}")
    return value


def positive_s(cell: str, *, where: str) -> float:
    """A duration in seconds, above 0."""
    value = _number(cell)
    if value is None or value <= 0:
        raise UsageError(f"{where}: expected seconds above 0, got {cell!r}")
    return value


def whole(cell: str, *, where: str) -> int:
    """A whole number of at least 1."""
    value = _number(cell)
    if value is None or value < 1 or value != int(value):
        raise UsageError(f"{where}: expected a whole number of at least 1, got {cell!r}")
    return int(value)


def word(cell: str, *, where: str) -> str:
    """Any text but none.

    >>> word(" job-7 ", where="")
    'job-7'
    """
    if not cell.strip():
        raise UsageError(f"{where}: expected a name, got {cell!r}")
    return cell.strip()


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _timestamp(cell: str) -> float | None:
    try:
        moment = datetime.fromisoformat(cell.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
