"""The luck of a simulation: every random duration, keyed by what it is for and never by when it is asked for."""

from __future__ import annotations

from typing import Final

import numpy as np

from kungfu.tune.model.experiment import Stage
from kungfu.tune.model.latency import Latency, Seconds, quantile, total

__all__ = ["init_seconds", "scale_seconds", "sync_seconds", "train_seconds"]

_SCALE: Final = 0
_INIT: Final = 1
_TRAIN: Final = 2
_SYNC: Final = 3


def scale_seconds(latency: Latency, *, stage: int, samples: int, seed: int) -> Seconds:
    """The provider's queue before stage ``stage``: shape (samples,)."""
    return quantile(latency, uniform=_generator(seed, kind=_SCALE, stage=stage).random(samples))


def init_seconds(latency: Latency, *, stage: int, count: int, samples: int, seed: int) -> Seconds:
    """Set-up of each of ``count`` new instances: shape (count, samples); row k is the same for every count."""
    return quantile(latency, uniform=_generator(seed, kind=_INIT, stage=stage).random((count, samples)))


def sync_seconds(latency: Latency, *, stage: int, samples: int, seed: int) -> Seconds:
    """The meeting at the end of a stage: shape (samples,)."""
    return quantile(latency, uniform=_generator(seed, kind=_SYNC, stage=stage).random(samples))


def train_seconds(
    iteration: Latency, *, startup: Latency, stage: tuple[int, Stage], samples: int, seed: int
) -> Seconds:
    """Start-up and all iterations of each trial of a stage (its index and itself): shape (trials, samples)."""
    index, work = stage
    if iteration.sigma_s == 0 and startup.sigma_s == 0:
        return np.full((work.trials, samples), startup.mean_s + work.iterations * iteration.mean_s)
    generator = _generator(seed, kind=_TRAIN, stage=index)
    start = quantile(startup, uniform=generator.random((work.trials, samples)))
    trials = [total(iteration, count=work.iterations, samples=samples, generator=generator) for _ in range(work.trials)]
    return np.asarray(start + np.stack(trials))


def _generator(seed: int, *, kind: int, stage: int) -> np.random.Generator:
    return np.random.default_rng((seed, kind, stage))
