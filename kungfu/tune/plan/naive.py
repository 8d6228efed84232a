"""The baseline with elastic clusters but rigid trials: the same GPUs for every trial, in every stage."""

from __future__ import annotations

from kungfu.tune.plan.search import Search, cheaper, meets, most_gpus
from kungfu.tune.simulate import Estimate, Simulator, estimate

__all__ = ["best_naive"]


def best_naive(simulator: Simulator, *, deadline_s: float, search: Search) -> Estimate | None:
    """The cheapest plan of k GPUs for every trial in every stage (k = 1, 2, ...) that meets the deadline.

    The cluster shrinks with the number of trials, but no trial ever grows, so a long last stage drags along or forces
    a huge first one. Gives: None when no k up to the limit does. Misra et al., 2021, section 6.3.1.
    """
    trials = [stage.trials for stage in simulator.experiment.stages]
    limit = min(most_gpus(simulator, search=search) // max(trials), simulator.scaling.widest)
    plans = (tuple(each * count for count in trials) for each in range(1, limit + 1))
    found = (estimate(simulator, plan=plan) for plan in plans)
    return min((each for each in found if meets(each, deadline_s=deadline_s)), key=cheaper, default=None)
