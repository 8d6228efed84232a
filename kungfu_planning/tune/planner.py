"""The planner: greedy descents from several feasible plans, evaluated by the simulator."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

from kungfu.errors import UsageError
from kungfu_planning.tune.baselines import (
    Search,
    Steps,
    best_naive,
    best_static,
    cheaper,
    fastest,
    judged_s,
    meets,
    most_gpus,
)
from kungfu_planning.tune.estimation import AllocationPlan, Estimate, estimate
from kungfu_planning.tune.simulator import Simulator, stage_instances

_DEFAULT = Search()


def plan_elastic(
    simulator: Simulator, *, deadline_s: float, search: Search = _DEFAULT, known: Iterable[AllocationPlan] = ()
) -> Estimate:
    """A cheap plan that meets the deadline, with a separate number of GPUs for each stage.

    A greedy descent runs from each warm start (the best static size and its multiples, the best naive plan, and
    ``known`` plans), and the cheapest result is returned. This plan meets the deadline, in the mean or with
    ``search.confidence``, and is never more expensive than the best static or naive plan under the same simulator. The
    plan may not be optimal, and a looser deadline may give a more expensive plan: see `plan_deadlines`.

    Args:
        simulator: the job and the cloud.
        deadline_s: the deadline of the search, in seconds from its start.
        search: the settings of the planner.
        known: further plans to descend from, if they meet the deadline.

    Raises:
        UsageError: No plan meets the deadline; the message has the fastest possible time.

    >>> from kungfu_planning.tune import Cloud, Instance, Simulator, scaling, successive_halving
    >>> job = successive_halving(4, least=1, most=7, eta=2)
    >>> curve = scaling({1: 10.0, 2: 6.0, 3: 4.8, 4: 4.5})
    >>> simulator = Simulator(job, curve, Cloud(Instance(gpus=1, dollars_per_s=0.001, minimum_s=0)))
    >>> plan_elastic(simulator, deadline_s=60).gpus
    (4, 2, 2)

    Reference:
        Misra et al., 2021, algorithm 2.
    """
    starts = warm_starts(simulator, deadline_s=deadline_s, search=search, known=known)
    return min((descend(simulator, start=start, deadline_s=deadline_s, search=search) for start in starts), key=cheaper)


def plan_deadlines(
    simulator: Simulator, *, deadlines_s: Iterable[float], search: Search = _DEFAULT
) -> dict[float, Estimate]:
    """A plan for each deadline, in increasing order; each search also starts from the plan of the deadline before.

    The cost therefore never increases with the deadline.

    Raises:
        UsageError: The tightest deadline cannot be met.
    """
    found: dict[float, Estimate] = {}
    known: tuple[AllocationPlan, ...] = ()
    for deadline_s in sorted(deadlines_s):
        found[deadline_s] = plan_elastic(simulator, deadline_s=deadline_s, search=search, known=known)
        known = (found[deadline_s].gpus,)
    return found


def warm_starts(
    simulator: Simulator, *, deadline_s: float, search: Search, known: Iterable[AllocationPlan] = ()
) -> list[Estimate]:
    """The plans that meet the deadline and that descents start from, each once; the fastest plan if there is no other.

    Raises:
        UsageError: No plan meets the deadline.
    """
    static = best_static(simulator, deadline_s=deadline_s, search=search)
    naive = best_naive(simulator, deadline_s=deadline_s, search=search)
    plans = [*_multiples(simulator, static=static, search=search), *known, *([naive.gpus] if naive else [])]
    starts = [estimate(simulator, plan=plan) for plan in dict.fromkeys(plans)]
    met = [start for start in starts if meets(simulator, found=start, deadline_s=deadline_s, search=search)]
    return met if met else [_fastest_or_refuse(simulator, deadline_s=deadline_s, search=search)]


def descend(simulator: Simulator, *, start: Estimate, deadline_s: float, search: Search) -> Estimate:
    """Descends from a plan while a step saves money and the deadline holds, and returns the last plan.

    Each step chooses the neighbour with the largest ``(C - C') / (T' - T)``, dollars saved per second lost; a neighbour
    that saves without losing time is preferred. Neighbours that miss the deadline are excluded before the choice, while
    the paper chooses first and stops if the chosen plan misses the deadline.

    Args:
        simulator: the job and the cloud.
        start: a plan that meets the deadline.
        deadline_s: the deadline of the search, in seconds from its start.
        search: settings of the planner.

    Cost:
        One estimate for each neighbour of each plan on the way.
    """
    best = start
    while True:
        found = [estimate(simulator, plan=plan) for plan in neighbours(simulator, plan=best.gpus, steps=search.steps)]
        cheap = [each for each in found if each.dollars < best.dollars - search.least_saving]
        saving = [each for each in cheap if meets(simulator, found=each, deadline_s=deadline_s, search=search)]
        # A local optimum.
        if not saving:
            return best
        best = max(saving, key=lambda each: _benefit(each, than=best))


def _benefit(found: Estimate, *, than: Estimate) -> tuple[float, float]:
    saved, lost = than.dollars - found.dollars, found.seconds - than.seconds
    return (math.inf if lost <= 0 else saved / lost), saved


def _multiples(simulator: Simulator, *, static: Estimate | None, search: Search) -> list[AllocationPlan]:
    """The best static plan, and the static plans with multiples of its GPUs, each cut to the limit of a stage."""
    if static is None:
        return []
    limit = most_gpus(simulator, search=search)
    size, stages = static.gpus[0], len(static.gpus)
    return [static.gpus, *((min(size * times, limit),) * stages for times in search.multiples)]


def _fastest_or_refuse(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate:
    found = fastest(simulator, search=search)
    if meets(simulator, found=found, deadline_s=deadline_s, search=search):
        return found
    share = "" if search.confidence is None else f" in {search.confidence:.4g} of its runs"
    raise UsageError(
        f"no plan meets a deadline of {deadline_s:.1f} s{share}: the fastest takes"
        f" {judged_s(simulator, found=found, search=search):.1f} s{share and ' in that share'}, with at most"
        f" {most_gpus(simulator, search=search)} GPUs; give a deadline of at least that, more GPUs, or a smaller search"
    )


@functools.cache
def next_fair(trials: int, *, gpus: int) -> int | None:
    """The largest number of GPUs below ``gpus`` that is a multiple or a divisor of ``trials``; None if there is none.

    Args:
        trials: The trials of the stage.
        gpus: The present number of GPUs.

    >>> [next_fair(10, gpus=24), next_fair(10, gpus=20), next_fair(10, gpus=10), next_fair(10, gpus=1)]
    [20, 10, 5, None]
    """
    # With more GPUs than trials, each trial gets the same number. Else each GPU gets the same number of trials.
    if gpus > trials:
        return (gpus - 1) // trials * trials
    return next((smaller for smaller in range(gpus - 1, 0, -1) if trials % smaller == 0), None)


def neighbours(simulator: Simulator, *, plan: AllocationPlan, steps: Steps) -> Iterator[AllocationPlan]:
    """The plans that differ from ``plan`` in one stage, by one step down.

    Args:
        simulator: the job and the cloud.
        plan: the GPUs of each stage.
        steps: ``literal`` steps to the next smaller fair share; ``instance`` also to the first fair share that needs
            fewer instances. For example, if whole instances of four GPUs are billed, 23 GPUs cost as much as 24 and
            are only slower: a descent by literal steps ends on this plateau.
    """
    for stage, gpus in enumerate(plan):
        smaller = next_fair(simulator.experiment.stages[stage].trials, gpus=gpus)
        # No step down: one GPU for all trials of the stage, or the fewest GPUs of a trial.
        if smaller is None or not _is_enough(simulator, stage=stage, gpus=smaller):
            continue
        yield _with(plan, stage=stage, gpus=smaller)
        if steps == "instance":
            fewer = _fewer_instances(simulator, stage=stage, gpus=gpus)
            if fewer is not None and fewer != smaller and _is_enough(simulator, stage=stage, gpus=fewer):
                yield _with(plan, stage=stage, gpus=fewer)


def _is_enough(simulator: Simulator, *, stage: int, gpus: int) -> bool:
    """True if each trial of a stage has at least its minimum number of GPUs."""
    least = simulator.scaling.least
    return least == 1 or gpus >= least * simulator.experiment.stages[stage].trials


def _with(plan: AllocationPlan, *, stage: int, gpus: int) -> AllocationPlan:
    return (*plan[:stage], gpus, *plan[stage + 1 :])


def _fewer_instances(simulator: Simulator, *, stage: int, gpus: int) -> int | None:
    trials = simulator.experiment.stages[stage].trials
    held = stage_instances(simulator, stage=stage, gpus=gpus)
    smaller = next_fair(trials, gpus=gpus)
    while smaller is not None and stage_instances(simulator, stage=stage, gpus=smaller) >= held:
        smaller = next_fair(trials, gpus=smaller)
    return smaller
