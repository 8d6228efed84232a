"""How a trial speeds up with GPUs: measured points, and what is assumed between and beyond them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kungfu.errors import UsageError
from kungfu.tune.model.latency import Latency

__all__ = ["Scaling", "amdahl", "scaling"]


@dataclass(frozen=True)
class Scaling:
    """Seconds per iteration of one trial on p GPUs: build it with `scaling`.

    Throughput 1/t is linear between measured points, flat after the last and proportional to p below the first.
    ``sigma_s`` is the standard deviation of one iteration (before truncation at 0), the same on any number of GPUs.
    """

    gpus: tuple[int, ...]
    seconds: tuple[float, ...]
    sigma_s: float = 0.0

    @property
    def widest(self) -> int:
        """The largest measured number of GPUs; more than so many are never faster."""
        return self.gpus[-1]

    def iteration(self, gpus: int) -> Latency:
        """The law of one iteration on ``gpus`` >= 1 GPUs."""
        if gpus < self.gpus[0]:
            return Latency(self.seconds[0] * self.gpus[0] / gpus, self.sigma_s)
        rate = np.interp(gpus, self.gpus, [1.0 / seconds for seconds in self.seconds])
        return Latency(float(1.0 / rate), self.sigma_s)


def scaling(seconds_by_gpus: Mapping[int, float], *, sigma_s: float = 0.0) -> Scaling:
    """A scaling profile from measured seconds per iteration, ``{GPUs of the trial: seconds}``.

    Args: ``seconds_by_gpus``: GPUs >= 1, seconds > 0 and finite; ``sigma_s`` >= 0 seconds, spread of an iteration.
    Gives: a Scaling. Raises: UsageError when there is no point, or one is a hole (None, NaN), zero or negative.

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
    return Scaling(measured, tuple(float(seconds_by_gpus[gpus]) for gpus in measured), sigma_s)


def amdahl(seconds: float, *, serial: float, widest: int, sigma_s: float = 0.0) -> Scaling:
    """A curve by Amdahl's law, ``t(p) = seconds * (serial + (1 - serial) / p)``, for a first look before measuring.

    Args: ``seconds`` > 0 of an iteration on 1 GPU; ``serial`` share that GPUs do not shorten, from 0 to 1; ``widest``
    >= 1, GPUs beyond which nothing is gained; ``sigma_s`` >= 0. Gives: a Scaling with a point at every number of GPUs.
    Raises: UsageError for a value out of range.

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
