"""Formats the values of a record for people; unknown values are shown as ``-``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from kungfu.event_log.numbers import as_float, as_json

UNKNOWN = "-"
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def finite_number(value: object) -> float | None:
    """A finite number, or ``None`` for anything else.

    >>> finite_number(3), finite_number(float("nan")), finite_number("3"), finite_number(True)
    (3.0, None, None, None)
    """
    # The usual case, in records of millions of steps.
    if type(value) is float:
        return value if math.isfinite(value) else None
    given = as_float(value)
    return given if given is not None and math.isfinite(given) else None


def number_or_nan(value: object) -> float | None:
    """A finite number, NaN for NaN and infinities, or ``None`` for anything else.

    >>> number_or_nan(3), number_or_nan("Infinity"), number_or_nan(None)
    (3.0, nan, None)
    """
    number = as_float(value)
    return number if number is None or math.isfinite(number) else math.nan


def undefined_words(share: float) -> str:
    """Describes a figure that is NaN in a share of its steps; empty for a share below 1 %.

    >>> undefined_words(0.4812), undefined_words(0.001)
    ('no number in 48 % of the steps', '')
    """
    return f"no number in {100 * share:.0f} % of the steps" if share >= 0.01 else ""


def not_finite(value: object) -> str:
    """The name of NaN or of an infinity; empty for any other value."""
    name = as_json(as_float(value))
    return name if isinstance(name, str) else ""


def figure(value: object) -> str:
    """A number with three or four significant digits; whole numbers are shown in full.

    >>> figure(50.65517), figure(12345), figure(16.0), figure(0.012345), figure(None), figure(1234567.8)
    ('50.7', '12,345', '16', '0.0123', '-', '1,234,568')
    >>> figure("NaN"), figure(float("-inf"))
    ('NaN', '-Infinity')
    """
    given = finite_number(value)
    if given is None:
        return not_finite(value) or UNKNOWN
    if abs(given) >= 1e15:
        return f"{given:.3g}"
    if given == int(given) or abs(given) >= 99.95:
        return f"{given:,.0f}"
    return f"{given:#.3g}" if abs(given) >= 1e-3 else f"{given:.2e}"


def size_in_bytes(value: object) -> str:
    """A number of bytes, in the unit that a person would use.

    >>> size_in_bytes(412_345_678), size_in_bytes(800), size_in_bytes(None)
    ('412.3 MB', '800 bytes', 'unknown size')
    """
    size = finite_number(value)
    if size is None:
        return "unknown size"
    return next((f"{size / least:.1f} {unit}" for least, unit in _UNITS if size >= least), f"{size:.0f} bytes")


def duration(value: object) -> str:
    """A duration in seconds, written in the units that a person would use.

    >>> duration(0.0346), duration(0.00057), duration(4.64), duration(75.2), duration(4000), duration(None)
    ('35 ms', '0.57 ms', '4.6 s', '1 min 15 s', '1 h 6 min', '-')
    """
    seconds = finite_number(value)
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 0.9995:
        thousandths = seconds * 1000
        return f"{thousandths:.0f} ms" if abs(thousandths) >= 9.95 else f"{thousandths:.2g} ms"
    if abs(seconds) < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def rough_duration(seconds: float) -> str:
    """An estimated duration in seconds as text, rounded coarsely because it is only an estimate.

    >>> [rough_duration(seconds) for seconds in (0.3, 42, 89, 700, 8000, 100_000, 1e6)]
    ['1 s', '40 s', '90 s', '12 min', '2 h 15 min', '28 h', '12 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s" if seconds < 10 else f"{5 * round(seconds / 5)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 600:
        hours, rest = divmod(5 * round(minutes / 5), 60)
        return f"{hours} h {rest} min"
    hours = round(seconds / 3600)
    return f"{hours} h" if hours < 72 else f"{round(hours / 24):,} days"


def counted(value: object, noun: str) -> str:
    """A number and its noun, in the plural unless the number is 1.

    >>> counted(1, "peer"), counted(3, "peer"), counted(None, "peer")
    ('1 peer', '3 peers', '- peers')
    """
    return f"{figure(value)} {noun}" + ("" if finite_number(value) == 1 else "s")


def held_words(size: int, until: float | None, *, now: float | None) -> str:
    """A person's hold on the size, with the time of day at which it ends.

    Args:
        until: The end of the hold, in seconds since 1970; ``None`` for a hold until it is released.
        now: The present time, in seconds since 1970; a hold that ends on another day is shown with its date.

    >>> held_words(2, None, now=None)
    'held at 2 by a person until it is released'
    """
    if until is None:
        return f"held at {figure(size)} by a person until it is released"
    end, today = time.localtime(until), time.localtime(until if now is None else now)
    day = "" if end[:3] == today[:3] else time.strftime("%Y-%m-%d ", end)
    return f"held at {figure(size)} by a person until {day}{time.strftime('%H:%M', end)}"


def sizes_passed(sizes: Sequence[int]) -> str:
    """The sizes in order, joined by arrows; if there are more than nine, the middle is left out.

    >>> sizes_passed([2, 4]), sizes_passed(range(1, 12))
    ('2 -> 4', '1 -> 2 -> 3 -> 4 -> 5 -> ... -> 9 -> 10 -> 11')
    """
    shown = [str(one) for one in sizes]
    return " -> ".join(shown if len(shown) <= 9 else [*shown[:5], "...", *shown[-3:]]) or UNKNOWN


def label(name: str) -> str:
    """The name of a field as separate words.

    >>> label("local_batch_size")
    'local batch size'
    """
    return name.replace("_", " ")


def peers_named(peers: Sequence[object]) -> str:
    """The ids of peers as text.

    >>> peers_named([2]), peers_named([1000, 1001]), peers_named([])
    ('peer 2', 'peers 1000 and 1001', 'nobody')
    """
    names = [str(peer) for peer in peers]
    if not names:
        return "nobody"
    if len(names) == 1:
        return f"peer {names[0]}"
    return f"peers {', '.join(names[:-1])} and {names[-1]}"
