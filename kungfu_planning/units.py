"""Readers of numbers with units, such as "20m", "$12.24/h", "150 GB" or "$0.01/GB"."""

from __future__ import annotations

import math
import re
from typing import Final

from kungfu.errors import UsageError

_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_GIGABYTES: Final = {"kB": 1e-6, "MB": 1e-3, "GB": 1.0, "TB": 1e3}

DURATION: Final = rf"^\s*(?:{_NUMBER}\s*(?:ms|s|min|m|h|d)\s*)+$"
RATE: Final = rf"^\s*\$\s*({_NUMBER})\s*/\s*(s|min|m|h|d)\s*$"
SIZE: Final = rf"^\s*({_NUMBER})\s*(kB|MB|GB|TB)\s*$"
PER_GB: Final = rf"^\s*\$\s*({_NUMBER})\s*/\s*GB\s*$"


def duration_s(text: str) -> float:
    """The seconds of a duration such as "20m", "90 s", "1h30m" or "1.5 h"; a number without a unit is refused.

    Raises:
        UsageError: The text is not a duration, or has no unit.

    >>> duration_s("20m"), duration_s("1h 30m"), duration_s("250ms")
    (1200.0, 5400.0, 0.25)
    """
    if not re.match(DURATION, text):
        raise _refused(text, what="a duration", examples='"20m", "90 s" or "1h30m"')
    parts = re.findall(rf"({_NUMBER})\s*(ms|s|min|m|h|d)", text)
    return _finite(sum(float(number) * _SECONDS[unit] for number, unit in parts), text=text)


def rate_per_s(text: str) -> float:
    """The dollars per second of a price such as "$12.24/h".

    Raises:
        UsageError: The text is not a price per time.

    >>> rate_per_s("$7.2/h")
    0.002
    """
    found = re.match(RATE, text)
    if not found:
        raise _refused(text, what="a price of an instance", examples='"$12.24/h"')
    return _finite(float(found[1]) / _SECONDS[found[2]], text=text)


def size_gb(text: str) -> float:
    """The gigabytes (10^9 bytes) of a size such as "150 GB" or "150 MB".

    Raises:
        UsageError: The text is not a size.

    >>> size_gb("150 MB")
    0.15
    """
    found = re.match(SIZE, text)
    if not found:
        raise _refused(text, what="a size", examples='"150 GB" or "150 MB"')
    return _finite(float(found[1]) * _GIGABYTES[found[2]], text=text)


def per_gb(text: str) -> float:
    """The dollars per gigabyte of a price such as "$0.01/GB".

    Raises:
        UsageError: The text is not a price per amount of data.

    >>> per_gb("$0.01/GB")
    0.01
    """
    found = re.match(PER_GB, text)
    if not found:
        raise _refused(text, what="a price of data", examples='"$0.01/GB"')
    return _finite(float(found[1]), text=text)


def as_clock(seconds: float) -> str:
    """A duration as text: minutes and seconds, with hours if there are any.

    Args:
        seconds: A duration, at least 0; it is rounded to whole seconds.

    >>> as_clock(1164.4), as_clock(3725)
    ('19:24', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _finite(value: float, *, text: str) -> float:
    if value == math.inf:
        raise UsageError(f"{text!r} is larger than any number that is computed with; write a smaller one")
    return value


def _refused(text: str, *, what: str, examples: str) -> UsageError:
    return UsageError(f"{text!r} is not {what}; write {examples}")
