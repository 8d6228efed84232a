"""Baselines of a plan: one static cluster, rigid trials, and the fastest plan.

The module also has the parts shared by all searches: the settings, the limit of GPUs, and the test of a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kungfu.errors import UsageError
from kungfu_planning.tune.estimation import Estimate, completion_s, estimate
from kungfu_planning.tune.simulator import Simulator, stage_training

Steps = Literal["instance", "literal"]
"""The size of a greedy step: also until an instance less is needed, or only to the next fair share as printed."""

SLACK = 1e-9
"""Relative: a plan of exactly the deadline meets it, whatever the rounding of its sum."""

_JUDGED_BY = (400, 2500)
"""Runs by which a confidence is judged, the larger number only of plans that the smaller does not settle."""


@dataclass(frozen=True)
class Search:
    """Settings of the planners.

    Args:
        max_gpus: the most GPUs of any stage, at least 1; None means as many as every trial of the largest stage can
            use.
        multiples: multiples of the best static size that a greedy descent starts from, each at least 1.
        steps: how far one greedy step goes.
        least_saving: dollars that a step has to save, above 0.
        confidence: the share of runs that have to meet the deadline, above 0 and below 1; None asks only that the mean
            completion time does.

    Raises:
        UsageError: for a value out of range.
    """

    max_gpus: int | None = None
    multiples: tuple[int, ...] = (1, 2, 3)
    steps: Steps = "instance"
    least_saving: float = 1e-9
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.max_gpus is not None and self.max_gpus < 1:
            raise UsageError(f"at most {self.max_gpus} GPUs cannot train anything; give max_gpus of at least 1")
        if not self.multiples or min(self.multiples) < 1:
            raise UsageError(f"warm starts at {self.multiples} times the static size; give multiples of at least 1")
        if not self.least_saving > 0:
            raise UsageError(f"a step has to save more than {self.least_saving} $; give an amount above 0")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise UsageError(f"a confidence of {self.confidence:g} cannot be planned for; give a share such as 0.95")


def most_gpus(simulator: Simulator, *, search: Search) -> int:
    """The most GPUs that a stage may hold."""
    if search.max_gpus is not None:
        return search.max_gpus
    return max(stage.trials for stage in simulator.experiment.stages) * simulator.scaling.widest


def meets(simulator: Simulator, *, found: Estimate, deadline_s: float, search: Search) -> bool:
    """True if a plan meets the deadline: its mean completion time, or the share of its runs that the search requests.

    A share is judged by 400 runs where they settle it, and near the limit by 2,500: it holds where the share of late
    runs is below ``1 - confidence`` by 2 standard errors, since the cheapest of many plans that just hold in the drawn
    runs would be late more often in others.
    """
    limit_s = deadline_s * (1 + SLACK)
    if search.confidence is None or not simulator.is_random:
        return found.seconds <= limit_s
    allowed = 1 - search.confidence
    for runs in _JUDGED_BY:
        drawn = completion_s(simulator, plan=found.gpus, runs=runs)
        late = float((drawn > limit_s).mean())
        error = math.sqrt(allowed * (1 - allowed) / len(drawn))
        if late <= allowed - 2 * error:
            return True
        if late > allowed + 3 * error:
            return False
    return False


def judged_s(simulator: Simulator, *, found: Estimate, search: Search) -> float:
    """The completion time by which a plan is judged, in seconds: the mean, or the quantile of the confidence."""
    if search.confidence is None or not simulator.is_random:
        return found.seconds
    return float(np.quantile(completion_s(simulator, plan=found.gpus, runs=_JUDGED_BY[0]), search.confidence))


def cheaper(found: Estimate) -> tuple[float, float]:
    """Sorts estimates by cost, then by time."""
    return found.dollars, found.seconds


_MOST_SIZES = 200_000


def best_static(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate | None:
    """The cheapest plan with the same number of GPUs in every stage that meets the deadline; ties: the faster.

    Returns:
        The plan with its estimate; None when no size up to the limit meets the deadline.
    """
    met = [
        found
        for found in _statics(simulator, search=search)
        if meets(simulator, found=found, deadline_s=deadline_s, search=search)
    ]
    return min(met, key=cheaper, default=None)


def fastest(simulator: Simulator, *, search: Search) -> Estimate:
    """The fastest plan: each stage at its fastest size, or the fastest static plan if growing costs more time.

    While an iteration never gets slower with GPUs, nothing can be faster, apart from chance in the set-ups.
    """
    sizes = static_sizes(simulator, search=search)
    stages = range(len(simulator.experiment.stages))
    eager = tuple(_fastest_size(simulator, stage=stage, sizes=sizes) for stage in stages)
    plans = [estimate(simulator, plan=eager), *_statics(simulator, search=search)]
    return min(plans, key=lambda found: judged_s(simulator, found=found, search=search))


def static_sizes(simulator: Simulator, *, search: Search) -> list[int]:
    """The sizes worth judging: all at which some stage's share changes.

    Any other size runs exactly like the next smaller one of these, with GPUs that idle, so it cannot be cheaper: the
    list stands for all sizes from 1 to the limit.

    Raises:
        UsageError: when there are more than 200,000, or none gives a trial as many GPUs as it needs.
    """
    limit, widest = most_gpus(simulator, search=search), simulator.scaling.widest
    trials = {stage.trials for stage in simulator.experiment.stages}
    # Where trials are placed on instances, GPUs that a trial cannot use decide too how many instances a stage holds,
    # and so whether the next one has to wait for others.
    useful = widest if simulator.cloud.packing == "counted" else limit
    shares = [range(1, min(limit, max(trials)) + 1), *(range(n, min(limit, n * useful) + 1, n) for n in trials)]
    count = sum(map(len, shares))
    if count > _MOST_SIZES:
        raise UsageError(
            f"up to {limit:,} GPUs there are {count:,} cluster sizes to judge, more than {_MOST_SIZES:,}: give a"
            " smaller max_gpus, fewer trials, or a scaling curve that ends earlier"
        )
    # Trials of the largest stage have the fewest GPUs each.
    needed = simulator.scaling.least * max(trials) if simulator.scaling.least > 1 else 1
    if limit < needed:
        raise UsageError(
            f"a trial needs {simulator.scaling.least} GPUs, the fewest measured, so {max(trials)} trials need {needed},"
            f" and a stage may hold {limit}: measure fewer GPUs, give more max_gpus, or allow interpolation"
        )
    return sorted({size for share in shares for size in share if size >= needed})


def _statics(simulator: Simulator, *, search: Search) -> Iterator[Estimate]:
    stages = len(simulator.experiment.stages)
    return (estimate(simulator, plan=(size,) * stages) for size in static_sizes(simulator, search=search))


def _fastest_size(simulator: Simulator, *, stage: int, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: float(stage_training(simulator, stage=stage, gpus=size).seconds.mean()))


def best_naive(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate | None:
    """The cheapest plan of k GPUs for every trial in every stage (k = 1, 2, ...) that meets the deadline.

    The cluster shrinks with the number of trials, but no trial ever grows, so that a long last stage takes long or
    forces a huge first one.

    Returns:
        The plan with its estimate; None when no k up to the limit meets the deadline.

    Reference:
        Misra et al., 2021, section 6.3.1.
    """
    trials = [stage.trials for stage in simulator.experiment.stages]
    limit = min(most_gpus(simulator, search=search) // max(trials), simulator.scaling.widest)
    plans = (tuple(each * count for count in trials) for each in range(simulator.scaling.least, limit + 1))
    found = (estimate(simulator, plan=plan) for plan in plans)
    met = (each for each in found if meets(simulator, found=each, deadline_s=deadline_s, search=search))
    return min(met, key=cheaper, default=None)
