"""Curves for those who have measured nothing: ideal compute plus the cost of a ring all-reduce."""

from __future__ import annotations

from kungfu.errors import UsageError
from kungfu.schedule.curves.curve import Curve

__all__ = ["ring_curve"]


def ring_curve(communication: float, *, up_to: int = 64) -> Curve:
    """Strong scaling of a fixed batch, relative to one GPU: ``T(p) = 1 / (1/p + c (p - 1)/p + c (p - 1)/16)``.

    Compute shrinks with p; a ring all-reduce moves ``2 (p - 1)/p`` of the gradients and takes ``p - 1`` hops, here
    one sixteenth of a transfer each. So the curve rises, flattens and falls, as measured ones do. It is a stand-in
    for trying things out, not a measurement.

    Args:
        communication: c, the time of one exchange as a fraction of one GPU's compute, at least 0.
        up_to: the largest number of GPUs for which the curve is stated, at least 1.

    >>> [round(rate, 2) for rate in ring_curve(0.05, up_to=4).rates]
    [1.0, 1.89, 3.37]
    """
    if communication < 0 or up_to < 1:
        raise UsageError(f"communication {communication} must be at least 0 and up_to {up_to} at least 1")
    sizes = [1]
    while sizes[-1] * 2 <= up_to:
        sizes.append(sizes[-1] * 2)
    times = [1 / p + communication * (p - 1) * (1 / p + 1 / 16) for p in sizes]
    return Curve(tuple(sizes), tuple(1 / time for time in times))
