"""What counts as a whole number where a policy or a model takes one."""

from __future__ import annotations

import math


def is_whole_number(value: object, *, least: int, most: float = math.inf) -> bool:
    """Whether this is a whole number, and not a truth value, from ``least`` to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
