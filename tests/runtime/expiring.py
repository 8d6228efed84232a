"""Waits that are to expire, on a machine of any speed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kungfu.errors import DeadlineExceeded

_DEADLINES_S = (0.3, 1.2, 4.8, 19.2)


def expired_at(place: str, attempt: Callable[[float], object]) -> tuple[float, DeadlineExceeded]:
    """A deadline and the error with which ``attempt``, which takes the deadline in seconds, expired at this place.

    On a busy machine a short deadline expires on the way there: then a longer one is tried.

    Args:
        place: What the error says where the attempt has come as far as it can.
        attempt: Raises ``DeadlineExceeded``, whatever the deadline.
    """
    for deadline_s in _DEADLINES_S:
        with pytest.raises(DeadlineExceeded) as caught:
            attempt(deadline_s)
        if place in str(caught.value):
            return deadline_s, caught.value
    raise AssertionError(f"it never came as far as {place!r}: {caught.value}")
