"""How long one thing takes: a constant, or a normal law truncated at zero."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kungfu.errors import UsageError

__all__ = ["Latency", "Seconds", "expected_s", "quantile", "total"]

Seconds = NDArray[np.float64]

_EXACT_DRAWS = 64
"""Up to so many summands each is drawn by itself; beyond, the sum is normal for every practical purpose."""

_LOGIT_BOUND, _PER_LOGIT = 36, 100


@dataclass(frozen=True)
class Latency:
    """A duration of N(``mean_s``, ``sigma_s``) seconds, conditional on not being negative.

    ``mean_s`` >= 0 is the mean of the normal law *before* truncation; with sigma_s = 0 it is the duration itself.
    Raises UsageError for a value that is negative or not finite.
    """

    mean_s: float
    sigma_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("mean_s", self.mean_s), ("sigma_s", self.sigma_s)):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of a latency is {value}; give a finite number of seconds, 0 or more")


def expected_s(latency: Latency) -> float:
    """The mean of the truncated law: ``mu + sigma * lambda``, ``lambda = phi(mu/sigma) / Phi(mu/sigma)``.

    >>> round(expected_s(Latency(4.0, 10.0)), 3)
    9.619
    """
    return _moments(latency)[0]


def quantile(latency: Latency, *, uniform: Seconds) -> Seconds:
    """The duration below which a share ``uniform`` (in [0, 1)) of the law lies, in seconds, in uniform's shape.

    Drawing by quantiles means that the same random number gives a longer time under a slower law, so two plans are
    compared under the same luck. Accurate to 1e-5 sigma.
    """
    if latency.sigma_s == 0:
        return np.full_like(uniform, latency.mean_s)
    below_zero = _normal_cdf(-latency.mean_s / latency.sigma_s)
    share = below_zero + uniform * (1.0 - below_zero)
    return np.maximum(latency.mean_s + latency.sigma_s * _normal_quantile(share), 0.0)


def total(latency: Latency, *, count: int, samples: int, generator: np.random.Generator) -> Seconds:
    """The sum of ``count`` independent durations, ``samples`` times: shape (samples,), seconds.

    Beyond 64 summands the sum is drawn from the normal law with the exact mean and variance.
    """
    if latency.sigma_s == 0:
        return np.full(samples, count * latency.mean_s)
    if count <= _EXACT_DRAWS:
        return np.asarray(quantile(latency, uniform=generator.random((samples, count))).sum(axis=1))
    mean_s, deviation_s = _moments(latency)
    summed = Latency(count * mean_s, math.sqrt(count) * deviation_s)
    return quantile(summed, uniform=generator.random(samples))


def _moments(latency: Latency) -> tuple[float, float]:
    """Mean and standard deviation of the truncated law."""
    if latency.sigma_s == 0:
        return latency.mean_s, 0.0
    ratio = latency.mean_s / latency.sigma_s
    hazard = math.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi) / _normal_cdf(ratio)
    variance = 1 - ratio * hazard - hazard * hazard
    return latency.mean_s + latency.sigma_s * hazard, latency.sigma_s * math.sqrt(variance)


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _normal_quantile(share: Seconds) -> Seconds:
    """The inverse of the normal distribution function, by chords of a table that is even in log(share / (1 - share)).

    There it is nearly straight, and an even table needs no search: a plan asks for millions of these.
    """
    inside = np.clip(share, 1e-15, 1 - 1e-15)
    place = (np.log(inside / (1.0 - inside)) + _LOGIT_BOUND) * _PER_LOGIT
    index = place.astype(np.intp)
    scores, slopes = _quantile_table()
    return np.asarray(scores[index] + (place - index) * slopes[index])


@functools.cache
def _quantile_table() -> tuple[Seconds, Seconds]:
    """Scores at every hundredth of a logit, and the steps between them."""
    logits = np.arange(-_LOGIT_BOUND * _PER_LOGIT, _LOGIT_BOUND * _PER_LOGIT + 1) / _PER_LOGIT
    low = np.exp(-np.abs(logits)) / (1.0 + np.exp(-np.abs(logits)))
    scores = np.sign(logits) * -np.array([NormalDist().inv_cdf(share) for share in low])
    return scores, np.diff(scores, append=scores[-1])
