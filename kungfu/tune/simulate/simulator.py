"""A job on a cloud, ready to judge plans; and what it remembers of those that it judged."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kungfu.errors import UsageError
from kungfu.tune.model.cloud import Cloud
from kungfu.tune.model.experiment import Experiment
from kungfu.tune.model.scaling_curve import Scaling

__all__ = ["Simulator", "remember"]

T = TypeVar("T")
_MOST_DRAWN = 10_000_000


@dataclass(frozen=True)
class Simulator:
    """A job on a cloud; built once, asked often, since it remembers every part of a plan that it has simulated.

    Args: ``samples`` >= 1 drawn runs that an estimate is the mean of (ignored when nothing is random: one is exact);
    ``seed`` >= 0 of the draws. Two plans are judged under the same luck, and the same seed gives the same answer.
    Raises: UsageError for no sample, a negative seed, or more than ten million durations in one stage.
    """

    experiment: Experiment
    scaling: Scaling
    cloud: Cloud
    samples: int = 20
    seed: int = 0
    _memory: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"a simulation of {self.samples} samples says nothing; draw at least 1")
        trials = max(stage.trials for stage in self.experiment.stages)
        if trials * self.runs > _MOST_DRAWN:
            raise UsageError(
                f"{trials:,} trials in {self.runs:,} runs are {trials * self.runs:,} durations in one stage, more than"
                f" {_MOST_DRAWN:,}: give fewer trials or samples"
            )
        if self.seed < 0:
            raise UsageError(f"the seed is {self.seed}; give 0 or more")

    @property
    def runs(self) -> int:
        """How many runs are drawn: ``samples``, or 1 when nothing is random."""
        delays = self.cloud.delays
        latencies = (delays.scale, delays.init, delays.startup, delays.sync)
        random = self.scaling.sigma_s > 0 or any(latency.sigma_s > 0 for latency in latencies)
        return self.samples if random else 1


def remember(simulator: Simulator, *, key: Hashable, compute: Callable[[], T]) -> T:
    """What ``compute()`` gave the first time that ``key`` was asked for."""
    known: T | None = simulator._memory.get(key)
    if known is None:
        known = simulator._memory[key] = compute()
    return known
