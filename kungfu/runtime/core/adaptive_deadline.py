"""The adaptive deadline: the maximum time that peers wait for a running peer, computed from past step times.

A process that has ended or is frozen is detected without this deadline, at once or within the heartbeat's limit. The
deadline is for a program that runs but does not join the message of the other peers: the program may hang, validate,
write a checkpoint or wait for a disk. Giving up a healthy job costs far more than waiting for a minute. So the floor is
generous, and a long pause that ended well lengthens the deadline for later pauses.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# With fewer known steps in a view, the deadline is the ceiling. Only the last ``WINDOW_STEPS`` steps are remembered.
KNOWN_STEPS = 16
WINDOW_STEPS = 256

_TYPICAL, _SPREAD, _LONGEST = 5.0, 30.0, 2.0


def plausible_wait_s(steps_s: Sequence[float], *, longest_s: float, floor_s: float, ceiling_s: float) -> float:
    """The deadline, in seconds, of a wait for a running peer.

    The deadline is ``max(5 median + 30 mad, 2 longest)`` of the times between the ends of recent steps, clipped to the
    floor and the ceiling; ``mad`` is the median absolute deviation. With fewer than 16 steps, the deadline is the
    ceiling. If floor and ceiling are equal, the deadline is fixed.

    Args:
        steps_s: The seconds between the ends of consecutive steps of this view, including user code; at most 256.
        longest_s: The longest of these times since the view began, even if it is no longer in ``steps_s``.
        floor_s: The smallest deadline.
        ceiling_s: The largest deadline; it applies while fewer than 16 steps are known.

    >>> plausible_wait_s([0.02] * 100, longest_s=0.5, floor_s=60.0, ceiling_s=300.0)
    60.0
    >>> plausible_wait_s([20.0, 21.0, 19.0, 20.0] * 8, longest_s=25.0, floor_s=60.0, ceiling_s=300.0)
    115.0
    >>> plausible_wait_s([0.02] * 100, longest_s=70.0, floor_s=60.0, ceiling_s=300.0)  # it validates now and then
    140.0
    """
    ceiling_s = max(floor_s, ceiling_s)
    if len(steps_s) < KNOWN_STEPS:
        # The view is new: its first steps may trace the graph, or fill caches.
        return ceiling_s
    typical = median(steps_s)
    spread = median(abs(step - typical) for step in steps_s)
    return min(max(_TYPICAL * typical + _SPREAD * spread, _LONGEST * longest_s, floor_s), ceiling_s)


def noted_after_s(deadline_s: float) -> float:
    """The seconds after which a wait is reported to the user: a quarter of its deadline, clipped to 2 to 15 s.

    The local attachment repeats these constants in C++ (``group_barrier.cc``).

    >>> noted_after_s(60.0), noted_after_s(20.0), noted_after_s(1.0)
    (15.0, 5.0, 2.0)
    """
    return min(max(deadline_s / 4, 2.0), 15.0)
