"""A plan beside its baselines."""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.tune.plan import Search, best_naive, best_static, plan_elastic
from kungfu.tune.simulate import Estimate, Simulator

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True)
class Comparison:
    """What was found for one experiment; a baseline is None where none of its kind meets the deadline."""

    simulator: Simulator
    deadline_s: float
    planned: Estimate
    static: Estimate | None
    naive: Estimate | None


def compare(simulator: Simulator, *, deadline_s: float, search: Search) -> Comparison:
    """Plan one experiment, and find its static and naive baselines. Raises: UsageError when nothing meets it."""
    return Comparison(
        simulator,
        deadline_s,
        plan_elastic(simulator, deadline_s=deadline_s, search=search),
        best_static(simulator, deadline_s=deadline_s, search=search),
        best_naive(simulator, deadline_s=deadline_s, search=search),
    )
