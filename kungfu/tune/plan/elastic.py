"""The planner: greedy descents from several feasible plans, judged by the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kungfu.errors import UsageError
from kungfu.tune.plan.naive import best_naive
from kungfu.tune.plan.search import Search, cheaper, meets, most_gpus
from kungfu.tune.plan.static import best_static, fastest
from kungfu.tune.plan.steps import neighbours
from kungfu.tune.simulate import Estimate, Plan, Simulator, estimate

__all__ = ["descend", "plan_deadlines", "plan_elastic", "warm_starts"]

_DEFAULT = Search()


def plan_elastic(
    simulator: Simulator, *, deadline_s: float, search: Search = _DEFAULT, known: Iterable[Plan] = ()
) -> Estimate:
    """A cheap plan that meets the deadline, with its own number of GPUs for each stage.

    From each warm start (the best static size and its multiples, the best naive plan, and ``known`` plans) descend
    greedily; the cheapest end wins. It meets the deadline and is never dearer than the best static or naive plan
    under the same simulator. It need not be the optimum, and a looser deadline may give a dearer plan: see
    `plan_deadlines`. Raises: UsageError when nothing meets the deadline; it names the fastest time there is.

    >>> from kungfu.tune import Cloud, Instance, Simulator, scaling, successive_halving
    >>> job = successive_halving(4, least=1, most=7, eta=2)
    >>> curve = scaling({1: 10.0, 2: 6.0, 3: 4.8, 4: 4.5})
    >>> simulator = Simulator(job, curve, Cloud(Instance(gpus=1, dollars_per_s=0.001, minimum_s=0)))
    >>> plan_elastic(simulator, deadline_s=60).gpus
    (4, 2, 2)

    Misra et al., 2021, algorithm 2.
    """
    starts = warm_starts(simulator, deadline_s=deadline_s, search=search, known=known)
    return min((descend(simulator, start=start, deadline_s=deadline_s, search=search) for start in starts), key=cheaper)


def plan_deadlines(
    simulator: Simulator, *, deadlines_s: Iterable[float], search: Search = _DEFAULT
) -> dict[float, Estimate]:
    """A plan for each deadline, from the tightest on, each also started from the plan before it.

    So the cost never rises with the deadline. Raises: UsageError when the tightest deadline cannot be met.
    """
    found: dict[float, Estimate] = {}
    known: tuple[Plan, ...] = ()
    for deadline_s in sorted(deadlines_s):
        found[deadline_s] = plan_elastic(simulator, deadline_s=deadline_s, search=search, known=known)
        known = (found[deadline_s].gpus,)
    return found


def warm_starts(
    simulator: Simulator, *, deadline_s: float, search: Search, known: Iterable[Plan] = ()
) -> list[Estimate]:
    """The feasible plans that descents begin from, each once; the fastest plan where no static one is feasible.

    Raises: UsageError when nothing meets the deadline.
    """
    static = best_static(simulator, deadline_s=deadline_s, search=search)
    naive = best_naive(simulator, deadline_s=deadline_s, search=search)
    plans = [*_multiples(simulator, static=static, search=search), *known, *([naive.gpus] if naive else [])]
    starts = [estimate(simulator, plan=plan) for plan in dict.fromkeys(plans)]
    met = [start for start in starts if meets(start, deadline_s=deadline_s)]
    return met if met else [_fastest_or_refuse(simulator, deadline_s=deadline_s, search=search)]


def descend(simulator: Simulator, *, start: Estimate, deadline_s: float, search: Search) -> Estimate:
    """Step down from ``start`` while a step saves money and the deadline holds.

    Each time the neighbour with the largest ``(C - C') / (T' - T)`` is taken, dollars saved per second lost; one that
    saves without losing time comes first. Neighbours that miss the deadline are left out before choosing, where the
    paper chooses first and then gives up.
    """
    best = start
    while True:
        found = [estimate(simulator, plan=plan) for plan in neighbours(simulator, plan=best.gpus, steps=search.steps)]
        allowed = [each for each in found if meets(each, deadline_s=deadline_s)]
        saving = [each for each in allowed if each.dollars < best.dollars - search.least_saving]
        if not saving:
            return best
        best = max(saving, key=lambda each: _benefit(each, than=best))


def _benefit(found: Estimate, *, than: Estimate) -> tuple[float, float]:
    saved, lost = than.dollars - found.dollars, found.seconds - than.seconds
    return (math.inf if lost <= 0 else saved / lost), saved


def _multiples(simulator: Simulator, *, static: Estimate | None, search: Search) -> list[Plan]:
    """The best static plan and its multiples, none above the limit."""
    if static is None:
        return []
    limit = most_gpus(simulator, search=search)
    size, stages = static.gpus[0], len(static.gpus)
    return [static.gpus, *((min(size * times, limit),) * stages for times in search.multiples)]


def _fastest_or_refuse(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate:
    found = fastest(simulator, search=search)
    if meets(found, deadline_s=deadline_s):
        return found
    raise UsageError(
        f"no plan meets a deadline of {deadline_s:.1f} s: the fastest takes {found.seconds:.1f} s, with at most"
        f" {most_gpus(simulator, search=search)} GPUs; give a deadline of at least that, more GPUs, or a smaller search"
    )
