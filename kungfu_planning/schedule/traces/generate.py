"""Generated traces, seeded, with the distributions that the papers describe.

Arrivals are a Poisson process with a rate that may follow the day; run times are log-normal, so that most jobs are
small and a few large jobs do most of the work; sizes are powers of two. The arrival rate is chosen such that the jobs
request, on average, the wanted share of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kungfu.errors import UsageError
from kungfu_planning.schedule.curve import Curve, ring_curve
from kungfu_planning.schedule.job import ClusterJob
from kungfu_planning.schedule.state import Floats, Ints

_DAY_S = 86_400.0
_MOST_JOBS = 10_000_000
_MODELS = (0.0, 0.01, 0.03, 0.06, 0.12)
"""The communication of five stand-in models, from perfect scaling to an optimum at a few GPUs."""


@dataclass(frozen=True)
class TraceShape:
    """The distributions from which the jobs of a trace are drawn.

    Args:
        sizes: the weights of requests for 1, 2, 4, ... GPUs; they need not sum to 1.
        median_s: median run time, in seconds.
        spread: standard deviation of the logarithm of the run time.
        longest_s: the longest run time, in seconds; longer times are cut to it.
        daily: the relative amplitude of the arrival rate over a day, from 0 (none) to below 1.
    """

    sizes: tuple[float, ...]
    median_s: float
    spread: float
    longest_s: float
    daily: float


SHAPES: dict[str, TraceShape] = {
    "philly": TraceShape((0.93, 0.022, 0.023, 0.02, 0.0025, 0.001), 1_500.0, 2.3, 30 * _DAY_S, 0.3),
    "itp": TraceShape((0.45, 0.02, 0.06, 0.4, 0.03, 0.02, 0.01), 4_500.0, 1.6, 10 * _DAY_S, 0.3),
    "elan": TraceShape((0.35, 0.1, 0.2, 0.25, 0.08, 0.02), 1_200.0, 0.9, 3.0 * 3600, 0.6),
}
"""Philly and ITP: mostly 1-GPU or 8-GPU jobs with a long tail. Elan: two days compressed into ten hours."""


def generated(shape: str, *, jobs: int, gpus: int, load: float = 0.8, seed: int = 0) -> tuple[ClusterJob, ...]:
    """A seeded trace: the same arguments always give the same jobs.

    Args:
        shape: a name in ``SHAPES``.
        jobs: the number of jobs, 1 to ten million.
        gpus: the GPUs of the cluster; no job requests more.
        load: the requested GPU seconds divided by the product of GPUs and the span of the arrivals, 0.001 to 1000.
        seed: any whole number of at least 0.

    Raises:
        UsageError: The shape is unknown, or a value is outside its range.

    >>> trace = generated("philly", jobs=100, gpus=64, seed=1)
    >>> len(trace), trace == generated("philly", jobs=100, gpus=64, seed=1)
    (100, True)
    """
    if shape not in SHAPES:
        raise UsageError(f"no shape {shape!r}; there are {', '.join(SHAPES)}")
    if not 1 <= jobs <= _MOST_JOBS or gpus < 1 or not 0.001 <= load <= 1000 or seed < 0:
        raise UsageError(
            f"{jobs} jobs, {gpus} GPUs, load {load}, seed {seed}: expected 1 to {_MOST_JOBS:,} jobs, at least 1 GPU, "
            f"a load from 0.001 to 1000, a seed of at least 0"
        )
    random = np.random.default_rng(seed)
    form = SHAPES[shape]
    sizes = _sizes(form, jobs=jobs, gpus=gpus, random=random)
    # Log-normal run times, cut at both ends.
    runs_s = np.clip(np.exp(random.normal(np.log(form.median_s), form.spread, jobs)), 10.0, form.longest_s).round()
    # The time over which the requested work is the wanted share of the cluster.
    span_s = float((sizes * runs_s).sum()) / (gpus * load)
    arrivals = _arrivals(form, jobs=jobs, span_s=span_s, random=random)
    models = [ring_curve(communication, up_to=256) for communication in _MODELS]
    curves = [models[index] for index in random.integers(len(models), size=jobs)]
    return _jobs(arrivals, sizes=sizes, runs_s=runs_s, curves=curves)


def _jobs(arrivals: Floats, *, sizes: Ints, runs_s: Floats, curves: list[Curve]) -> tuple[ClusterJob, ...]:
    rows = zip(arrivals.tolist(), sizes.tolist(), runs_s.tolist(), curves, strict=True)
    return tuple(ClusterJob(str(index), at, size, runs, curve) for index, (at, size, runs, curve) in enumerate(rows))


def _sizes(form: TraceShape, *, jobs: int, gpus: int, random: np.random.Generator) -> Ints:
    # Sizes beyond the cluster are never drawn.
    powers = 2 ** np.arange(len(form.sizes))
    weights = np.where(powers <= gpus, form.sizes, 0.0)
    drawn: Ints = random.choice(powers, size=jobs, p=weights / weights.sum())
    return drawn


def _arrivals(form: TraceShape, *, jobs: int, span_s: float, random: np.random.Generator) -> Floats:
    """The sorted arrival times in whole seconds, drawn from a rate that follows a sine wave over each day."""
    kept = np.empty(0)
    while len(kept) < jobs:
        drawn = random.uniform(0.0, span_s, jobs)
        # Rejection sampling: a time is kept with a probability proportional to the rate of its hour.
        likely = 1.0 + form.daily * np.sin(2 * np.pi * drawn / _DAY_S)
        kept = np.concatenate((kept, drawn[random.uniform(0.0, 1.0 + form.daily, jobs) < likely]))
    return np.sort(kept[:jobs]).round()
