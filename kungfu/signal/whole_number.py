"""The check for whole numbers in policies and models."""

from __future__ import annotations

import math


def is_whole_number(value: object, *, least: int, most: float = math.inf) -> bool:
    """True if `value` is a whole number from `least` to `most`, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
