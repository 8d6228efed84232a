"""The throughput of a job on p GPUs: measured points, and assumptions between and beyond them.

Throughput is linear between two points, flat after the last, and proportional to p below the first. The papers print
plots and no formula, so this project chose a rule that never extrapolates upwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kungfu.errors import UsageError

_SLOWEST, _FASTEST = 1e-12, 1e18  # beyond these limits, a gain could be infinite or 0


@dataclass(frozen=True)
class Curve:
    """Measured throughput: work per second ``rates[i]`` on ``gpus[i]`` GPUs.

    The unit of work is the caller's (samples, iterations); a schedule depends on ratios of rates only.

    Args:
        gpus: GPU counts, at least 1, strictly increasing.
        rates: one rate for each count, 1e-12 to 1e18.

    Raises:
        UsageError: The curve is empty, has a hole (a missing or non-finite rate) or a zero, or counts do not rise.

    >>> rate_at(Curve((2, 4), (10.0, 16.0)), gpus=3)
    13.0
    """

    gpus: tuple[int, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.gpus or len(self.gpus) != len(self.rates):
            raise UsageError(
                f"a throughput curve needs one rate for each GPU count, got {len(self.gpus)} counts and "
                f"{len(self.rates)} rates: give at least one (gpus, rate) point"
            )
        if self.gpus[0] < 1 or any(a >= b for a, b in pairwise(self.gpus)):
            raise UsageError(
                f"GPU counts of a curve must rise from at least 1, got {self.gpus}: sort them, drop doubles"
            )
        for gpus, rate in zip(self.gpus, self.rates, strict=True):
            _check_rate(rate, gpus=gpus)


def _check_rate(rate: float, *, gpus: int) -> None:
    if rate is None or not math.isfinite(rate):
        raise UsageError(
            f"the throughput curve has a hole: its rate on {gpus} GPUs is {rate}; measure it or leave the point out"
        )
    if rate <= 0:
        raise UsageError(f"the rate on {gpus} GPUs is {rate}; a rate must be above 0: leave out sizes that cannot run")

    if not _SLOWEST <= rate <= _FASTEST:
        raise UsageError(
            f"the rate on {gpus} GPUs is {rate}; must be {_SLOWEST:g} to {_FASTEST:g}: choose another unit of work"
        )


MOST_GPUS = 2**20
"""The largest simulated cluster, and the end of the curve of perfect scaling."""

LINEAR = Curve((1, MOST_GPUS), (1.0, float(MOST_GPUS)))
"""Perfect scaling, one unit of work per second on each GPU: the curve of a job without a measured curve."""


def rate_at(curve: Curve, *, gpus: int) -> float:
    """The rate of ``curve`` on ``gpus`` GPUs; 0 on 0 GPUs.

    Args:
        curve: The measured points.
        gpus: Number of GPUs, at least 0.

    Returns:
        The rate, in the curve's unit of work per second.

    >>> rate_at(Curve((2, 4), (10.0, 16.0)), gpus=1), rate_at(Curve((2, 4), (10.0, 16.0)), gpus=9)
    (5.0, 16.0)
    """
    if gpus < curve.gpus[0]:
        return curve.rates[0] * gpus / curve.gpus[0]
    return float(np.interp(gpus, curve.gpus, curve.rates))


@lru_cache(maxsize=4096)
def rates_up_to(curve: Curve, *, gpus: int) -> npt.NDArray[np.float64]:
    """The rates on 0, 1, ..., ``gpus`` GPUs as one read-only float64 vector of length ``gpus + 1``."""
    counts = np.arange(gpus + 1, dtype=np.float64)
    rates = np.interp(counts, curve.gpus, curve.rates)
    below = counts < curve.gpus[0]
    rates[below] = counts[below] * (curve.rates[0] / curve.gpus[0])
    rates.flags.writeable = False
    return rates


def best_gpus(curve: Curve) -> int:
    """The measured GPU count with the highest rate, the smallest in a tie: N_opt of a strong-scaling curve.

    Returns:
        One of ``curve.gpus``.

    >>> best_gpus(Curve((1, 2, 4, 8), (5.0, 8.0, 9.0, 8.5)))
    4
    """
    return curve.gpus[curve.rates.index(max(curve.rates))]


def ring_curve(communication: float, *, up_to: int = 64) -> Curve:
    """Strong scaling of a fixed batch, relative to one GPU: ``T(p) = 1 / (1/p + c (p - 1)/p + c (p - 1)/16)``.

    Compute shrinks with p; a ring all-reduce moves ``2 (p - 1)/p`` of the gradients and takes ``p - 1`` hops. Each
    hop here takes one sixteenth of a transfer. So the curve rises, flattens and falls like measured curves. The curve
    is a stand-in for experiments, not a measurement.

    Args:
        communication: c, the time of one exchange as a fraction of one GPU's compute, at least 0.
        up_to: the largest number of GPUs of the curve, at least 1.

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
