"""What a search for a plan may do: how many GPUs, from where it starts, how far it steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kungfu.errors import UsageError
from kungfu.tune.simulate import Estimate, Simulator

__all__ = ["Search", "Steps", "cheaper", "meets", "most_gpus"]

Steps = Literal["instance", "literal"]
"""How far a greedy step goes: also until an instance less is needed, or only to the next fair share as printed."""

_SLACK = 1e-9
"""Relative: a plan of exactly the deadline meets it, whatever the rounding of its sum."""


@dataclass(frozen=True)
class Search:
    """Settings of the planners.

    ``max_gpus``: the most GPUs of any stage; None means as many as every trial of the largest stage can use.
    ``multiples`` of the best static size that the greedy descent starts from. ``least_saving``: dollars, > 0, that a
    step has to save. Raises: UsageError for a value out of range.
    """

    max_gpus: int | None = None
    multiples: tuple[int, ...] = (1, 2, 3)
    steps: Steps = "instance"
    least_saving: float = 1e-9

    def __post_init__(self) -> None:
        if self.max_gpus is not None and self.max_gpus < 1:
            raise UsageError(f"at most {self.max_gpus} GPUs cannot train anything; give max_gpus of at least 1")
        if not self.multiples or min(self.multiples) < 1:
            raise UsageError(f"warm starts at {self.multiples} times the static size; give multiples of at least 1")
        if not self.least_saving > 0:
            raise UsageError(f"a step has to save more than {self.least_saving} $; give an amount above 0")


def most_gpus(simulator: Simulator, *, search: Search) -> int:
    """The most GPUs that a stage may hold."""
    if search.max_gpus is not None:
        return search.max_gpus
    return max(stage.trials for stage in simulator.experiment.stages) * simulator.scaling.widest


def meets(found: Estimate, *, deadline_s: float) -> bool:
    """Whether the predicted mean completion time is within the deadline."""
    return found.seconds <= deadline_s * (1 + _SLACK)


def cheaper(found: Estimate) -> tuple[float, float]:
    """Sorts estimates by cost, then by time."""
    return found.dollars, found.seconds
