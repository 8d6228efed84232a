"""Durations: the distribution of a latency, and the time of an iteration by its number of GPUs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kungfu.errors import UsageError

Seconds = NDArray[np.float64]

_EXACT_DRAWS = 64
"""The most summands that are drawn one by one; with more summands, the sum is practically normal."""

_LOGIT_BOUND, _PER_LOGIT = 36, 100


@dataclass(frozen=True)
class Latency:
    """A duration of N(``mean_s``, ``sigma_s``) seconds, truncated at 0.

    Args:
        mean_s: the mean of the normal law *before* truncation, in seconds; the duration itself if sigma_s = 0.
        sigma_s: the standard deviation of the normal law *before* truncation, in seconds.

    Raises:
        UsageError: A value is negative or not finite.
    """

    mean_s: float
    sigma_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("mean_s", self.mean_s), ("sigma_s", self.sigma_s)):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} of a latency is {value}; give a finite number of seconds, 0 or more")


def expected_s(latency: Latency) -> float:
    """The mean of the truncated law: ``mu + sigma * lambda``, ``lambda = phi(mu/sigma) / Phi(mu/sigma)``.

    Returns:
        Seconds.

    >>> round(expected_s(Latency(4.0, 10.0)), 3)
    9.619
    """
    return _moments(latency)[0]


def quantile(latency: Latency, *, uniform: Seconds) -> Seconds:
    """The quantiles of a latency at the shares ``uniform``, accurate to 1e-5 sigma.

    If draws are quantiles, the same random number gives a longer time under a slower law. So two plans are compared
    with the same draws.

    Args:
        latency: the mean and standard deviation of the law, before truncation.
        uniform: shares in [0, 1), of any shape.

    Returns:
        Seconds, in the shape of ``uniform``.
    """
    if latency.sigma_s == 0:
        return np.full_like(uniform, latency.mean_s)
    # The law is truncated at 0: shares are of the part above 0.
    below_zero = _normal_cdf(-latency.mean_s / latency.sigma_s)
    share = below_zero + uniform * (1.0 - below_zero)
    return np.maximum(latency.mean_s + latency.sigma_s * _normal_quantile(share), 0.0)


def total(latency: Latency, *, count: int, samples: int, generator: np.random.Generator) -> Seconds:
    """The sum of ``count`` independent durations, drawn ``samples`` times: (samples,) seconds.

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
    """The mean and the standard deviation of a latency, in seconds, after the truncation at 0."""
    if latency.sigma_s == 0:
        return latency.mean_s, 0.0
    ratio = latency.mean_s / latency.sigma_s
    hazard = math.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi) / _normal_cdf(ratio)
    variance = 1 - ratio * hazard - hazard * hazard
    return latency.mean_s + latency.sigma_s * hazard, latency.sigma_s * math.sqrt(variance)


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _normal_quantile(share: Seconds) -> Seconds:
    """The inverse of the normal distribution function, by linear interpolation in log(share / (1 - share)).

    In this variable the inverse is nearly linear, and an even table needs no search: a plan needs millions of values.
    """
    inside = np.clip(share, 1e-15, 1 - 1e-15)
    place = (np.log(inside / (1.0 - inside)) + _LOGIT_BOUND) * _PER_LOGIT
    index = place.astype(np.intp)
    scores, slopes = _quantile_table()
    return np.asarray(scores[index] + (place - index) * slopes[index])


@functools.cache
def _quantile_table() -> tuple[Seconds, Seconds]:
    """The table of normal scores at every hundredth of a logit, and the table of the steps between the scores."""
    logits = np.arange(-_LOGIT_BOUND * _PER_LOGIT, _LOGIT_BOUND * _PER_LOGIT + 1) / _PER_LOGIT
    low = np.exp(-np.abs(logits)) / (1.0 + np.exp(-np.abs(logits)))
    scores = np.sign(logits) * -np.array([NormalDist().inv_cdf(share) for share in low])
    return scores, np.diff(scores, append=scores[-1])


@dataclass(frozen=True)
class ScalingCurve:
    """The seconds per iteration of a trial on p GPUs; built by `scaling`.

    Throughput 1/t is linear between measured points, flat after the last and proportional to p below the first.

    Attributes:
        gpus: The measured numbers of GPUs, increasing.
        seconds: The seconds per iteration on each of these numbers of GPUs.
        sigma_s: The standard deviation of an iteration (before truncation at 0), the same on any number of GPUs.
        measured_only: True if a trial uses the next smaller measured number of GPUs instead of an interpolation.
    """

    gpus: tuple[int, ...]
    seconds: tuple[float, ...]
    sigma_s: float = 0.0
    measured_only: bool = False

    @property
    def widest(self) -> int:
        """The largest measured number of GPUs; more GPUs are not faster."""
        return self.gpus[-1]

    @property
    def least(self) -> int:
        """The minimum GPUs of a trial: 1, or the smallest measured number if ``measured_only``."""
        return self.gpus[0] if self.measured_only else 1

    def iteration(self, gpus: int) -> Latency:
        """The duration of an iteration on ``gpus`` >= 1 GPUs, as a distribution."""
        if self.measured_only:
            if gpus < self.gpus[0]:
                raise UsageError(
                    f"a trial on {gpus} GPUs was not measured, the fewest are {self.gpus[0]}; measure that, or allow"
                    " interpolation"
                )
            gpus = max(measured for measured in self.gpus if measured <= gpus)
        # Below the first measured point, time is inversely proportional to GPUs.
        if gpus < self.gpus[0]:
            return Latency(self.seconds[0] * self.gpus[0] / gpus, self.sigma_s)
        rate = np.interp(gpus, self.gpus, [1.0 / seconds for seconds in self.seconds])
        return Latency(float(1.0 / rate), self.sigma_s)


def scaling(seconds_by_gpus: Mapping[int, float], *, sigma_s: float = 0.0) -> ScalingCurve:
    """A scaling curve from measured seconds per iteration, ``{GPUs of the trial: seconds}``.

    Args:
        seconds_by_gpus: finite seconds above 0, by GPUs of at least 1.
        sigma_s: standard deviation of one iteration in seconds, at least 0.

    Raises:
        UsageError: There is no point, or a point is a hole (None, NaN), zero or negative.

    >>> curve = scaling({1: 10.0, 4: 4.0})
    >>> [round(curve.iteration(gpus).mean_s, 3) for gpus in (1, 2, 4, 9)]
    [10.0, 6.667, 4.0, 4.0]
    """
    if not seconds_by_gpus:
        raise UsageError("a scaling curve has no point; measure at least seconds per iteration on 1 GPU")
    for gpus, seconds in seconds_by_gpus.items():
        _check_point(gpus, seconds=seconds)
    Latency(0.0, sigma_s)
    measured = tuple(sorted(seconds_by_gpus))
    return ScalingCurve(measured, tuple(float(seconds_by_gpus[gpus]) for gpus in measured), sigma_s)


def amdahl(seconds: float, *, serial: float, widest: int, sigma_s: float = 0.0) -> ScalingCurve:
    """A curve by Amdahl's law, ``t(p) = seconds * (serial + (1 - serial) / p)``, for use before a measurement.

    Args:
        seconds: time of an iteration on 1 GPU, above 0.
        serial: the share of ``seconds`` that GPUs do not shorten, from 0 to 1.
        widest: the number of GPUs beyond which there is no gain, at least 1.
        sigma_s: standard deviation of one iteration in seconds, at least 0.

    Returns:
        A scaling curve with a point at every number of GPUs.

    Raises:
        UsageError: A value is out of range.

    >>> round(amdahl(12.0, serial=0.08, widest=64).iteration(8).mean_s, 3)
    2.34
    """
    if not 0 <= serial <= 1:
        raise UsageError(f"the serial share is {serial}; give a number from 0 to 1")
    if widest < 1:
        raise UsageError(f"the widest trial has {widest} GPUs; give at least 1")
    points = {gpus: seconds * (serial + (1 - serial) / gpus) for gpus in range(1, widest + 1)}
    return scaling(points, sigma_s=sigma_s)


def _check_point(gpus: int, *, seconds: float | None) -> None:
    if gpus < 1:
        raise UsageError(f"a scaling curve has a point at {gpus} GPUs; give whole numbers of at least 1")
    if seconds is None or math.isnan(seconds):
        raise UsageError(f"the scaling curve has a hole at {gpus} GPUs; leave the point out, it is interpolated")
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"the scaling curve says {seconds} s per iteration at {gpus} GPUs; give seconds above 0")
