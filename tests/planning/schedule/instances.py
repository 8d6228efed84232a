"""Small random traces for the invariants: whole seconds, a handful of jobs, curves of every temper."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from hypothesis import strategies as st

from kungfu_planning.schedule import LINEAR, ClusterJob, Curve
from kungfu_planning.schedule.curve import rate_at
from tests.planning.tune.instances import digits_of

CURVES = (
    LINEAR,
    Curve((1, 2, 4, 8), (1.0, 1.75, 2.5, 3.0)),
    Curve((1, 2, 4, 8), (6.8, 11.8, 18.2, 17.5)),
    Curve((2, 3, 6), (2.0, 2.0, 4.5)),
    Curve((1,), (3.0,)),
)
"""Perfect, concave, with a peak, with a dip in its gains and no point at 1, flat."""


@dataclass(frozen=True)
class Instance:
    """A cluster and a trace for it."""

    gpus: int
    jobs: tuple[ClusterJob, ...]


rate_of = cache(rate_at)
"""The rate of a curve on so many GPUs, remembered: there are few curves, and the slow oracles ask again and again."""


_CODES = st.integers(0, 16 * 8 * 20 * len(CURVES) * 4 * 9 - 1)
"""A job as one number: drawing six costs more than simulating them."""


@st.composite
def instances(draw: st.DrawFn, *, most_jobs: int = 5, last_s: int = 15) -> Instance:
    """A cluster of up to 8 GPUs, up to ``most_jobs`` jobs with any limits, arriving from 0 to ``last_s`` <= 15."""
    gpus = draw(st.integers(1, 8))
    codes = draw(st.lists(_CODES, min_size=1, max_size=most_jobs))
    rows = sorted(
        (digits_of(code, bases=(16, 8, 20, len(CURVES), 4, 9)) for code in codes), key=lambda d: d[0] % (last_s + 1)
    )
    return Instance(gpus, tuple(_job(index, digits, gpus=gpus, last_s=last_s) for index, digits in enumerate(rows)))


def _job(index: int, digits: list[int], *, gpus: int, last_s: int) -> ClusterJob:
    submit, size, runs, curve, fewest, more = digits
    asked = 1 + size % gpus
    return ClusterJob(
        str(index), submit % (last_s + 1), asked, runs + 1.0, CURVES[curve], min(fewest + 1, asked), asked + more
    )


def untied(seed: int) -> Instance:
    """A cluster of up to 10 GPUs and up to 8 jobs whose times are no round numbers, so that no two events coincide.

    Where they do, the rounding of two different ways to sum decides who comes first.
    """
    chance = Random(seed)
    gpus = chance.randint(1, 10)
    arrivals = sorted(chance.uniform(0, 30) for _ in range(chance.randint(1, 8)))
    jobs = []
    for index, submit_s in enumerate(arrivals):
        asked, curve = chance.randint(1, gpus), chance.choice(CURVES)
        fewest, most = chance.choice([(1, 16), (chance.randint(1, asked), asked + 3), (asked, asked)])
        jobs.append(
            ClusterJob(str(index), submit_s, asked, chance.uniform(1, 30), curve, min(fewest, asked), max(most, asked))
        )
    return Instance(gpus, tuple(jobs))


def rows(*cells: tuple[float, int, float]) -> tuple[ClusterJob, ...]:
    """Jobs 0, 1, ... from (submit, gpus, duration) triples."""
    return tuple(ClusterJob(str(index), *cell) for index, cell in enumerate(cells))
