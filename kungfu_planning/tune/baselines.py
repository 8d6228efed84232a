"""The baselines of a plan: a static cluster, rigid trials, and the fastest plan.

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
"""The size of a greedy step: "literal": the next fair share, as in the paper; "instance": also fewer instances."""

SLACK = 1e-9
"""Relative tolerance for the rounding of sums, so that a plan of exactly the deadline meets it."""

_JUDGED_BY = (400, 2500)
"""Numbers of runs for judging a confidence; the larger number is for plans that the smaller number does not settle."""


@dataclass(frozen=True)
class Search:
    """The settings of the planners.

    Args:
        max_gpus: the maximum GPUs of any stage, at least 1; None for as many as all trials of the largest stage can
            use.
        multiples: the multiples of the best static size from which greedy descents start, each at least 1.
        steps: the size of a greedy step, as in `neighbours`.
        least_saving: the minimum dollars that a step must save, above 0.
        confidence: the share of runs that must meet the deadline, above 0 and below 1; None requires
            only that the mean completion time meets the deadline.

    Raises:
        UsageError: A value is out of range.
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
    """The maximum number of GPUs of a stage: the limit of ``search``, or all GPUs that the trials can use."""
    if search.max_gpus is not None:
        return search.max_gpus
    return max(stage.trials for stage in simulator.experiment.stages) * simulator.scaling.widest


def meets(simulator: Simulator, *, found: Estimate, deadline_s: float, search: Search) -> bool:
    """True if a plan meets the deadline: by its mean completion time, or by the share of runs that the search requires.

    The share of late runs must be below ``1 - confidence`` by 2 standard errors, since the cheapest of many plans that
    barely meet the deadline in the drawn runs would be late more often in other runs. The share is taken from 400 runs,
    or from 2,500 if the share is too near the limit.
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
    """The completion time by which a plan is judged, in seconds: the mean, or the quantile at the confidence."""
    if search.confidence is None or not simulator.is_random:
        return found.seconds
    return float(np.quantile(completion_s(simulator, plan=found.gpus, runs=_JUDGED_BY[0]), search.confidence))


def cheaper(found: Estimate) -> tuple[float, float]:
    """The sort key of an estimate: cost, then time."""
    return found.dollars, found.seconds


_MOST_SIZES = 200_000


def best_static(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate | None:
    """The cheapest plan with equal GPUs in all stages that meets the deadline; in a tie, the faster plan.

    Returns:
        The plan with its estimate; None if no size up to the limit meets the deadline.
    """
    met = [
        found
        for found in _statics(simulator, search=search)
        if meets(simulator, found=found, deadline_s=deadline_s, search=search)
    ]
    return min(met, key=cheaper, default=None)


def fastest(simulator: Simulator, *, search: Search) -> Estimate:
    """The faster of two plans: each stage at its fastest size, or the fastest plan with equal GPUs in all stages.

    Growth between stages can cost more time than it saves. If more GPUs never slow an iteration, no plan is faster than
    the result, except through random set-up times.
    """
    sizes = static_sizes(simulator, search=search)
    stages = range(len(simulator.experiment.stages))
    eager = tuple(_fastest_size(simulator, stage=stage, sizes=sizes) for stage in stages)
    plans = [estimate(simulator, plan=eager), *_statics(simulator, search=search)]
    return min(plans, key=lambda found: judged_s(simulator, found=found, search=search))


def static_sizes(simulator: Simulator, *, search: Search) -> list[int]:
    """The cluster sizes to compare: all sizes at which some stage trains more trials at once, or with more GPUs each.

    Any other size runs exactly like the next smaller size in the list, with more idle GPUs, so it cannot be cheaper.
    Therefore the list represents all sizes from 1 to the limit.

    Raises:
        UsageError: There are more than 200,000 sizes, or no size gives a trial as many GPUs as it needs.
    """
    limit, widest = most_gpus(simulator, search=search), simulator.scaling.widest
    trials = {stage.trials for stage in simulator.experiment.stages}
    # If trials are placed on instances, GPUs that a trial cannot use also affect the number of a stage's instances,
    # and so the next stage's wait for new instances.
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
    """The cheapest plan that meets the deadline and gives every trial the same number of GPUs, k, in every stage.

    The cluster shrinks with the number of trials, but trials never grow, so that a long last stage is slow or requires
    a huge first stage.

    Returns:
        The plan with its estimate; None if no k up to the limit meets the deadline.

    Reference:
        Misra et al., 2021, section 6.3.1.
    """
    trials = [stage.trials for stage in simulator.experiment.stages]
    limit = min(most_gpus(simulator, search=search) // max(trials), simulator.scaling.widest)
    plans = (tuple(each * count for count in trials) for each in range(simulator.scaling.least, limit + 1))
    found = (estimate(simulator, plan=plan) for plan in plans)
    met = (each for each in found if meets(simulator, found=each, deadline_s=deadline_s, search=search))
    return min(met, key=cheaper, default=None)
