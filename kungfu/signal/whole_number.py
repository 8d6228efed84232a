"""The definition of a whole number for policies and models."""

from __future__ import annotations

import math


def is_whole_number(value: object, *, least: int, most: float = math.inf) -> bool:
    """True if this is a whole number, and not a truth value, from ``least`` to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
