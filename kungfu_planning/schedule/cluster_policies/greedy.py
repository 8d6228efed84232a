"""The greedy allocation of GPUs, one by one to the job with the largest gain, for both elastic schedulers.

The greedy rule gives one GPU at a time to the job with the largest next gain (ties: the first job in order), and stops
when no GPU is left or no gain is above zero. A step is one more GPU. A job takes its steps in turn, so the position of
a step in the order depends on the smallest gain up to that step. With *ladders* of these running minima, the greedy
result is the set of the best steps. Any guess can therefore be corrected step by step: take the GPU of the worst taken
step, and give it to the best free step. From the previous event's allocation, few corrections are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kungfu_planning.schedule.state import Floats, Ints

Gain = Callable[[Floats], Floats]


def relative_gain(rates: Floats) -> Floats:
    """``(t(p+1) - t(p)) / t(p)`` along the last axis, where ``rates[..., p]`` is t(p); 0 at p = 0."""
    below = rates[..., :-1]
    return np.divide(np.diff(rates), below, out=np.zeros_like(below), where=below > 0)


def saved_time(rates: Floats) -> Floats:
    """``1/T(n) - 1/T(n+1)`` along the last axis: seconds that one more GPU saves a unit of work; 0 at n = 0."""
    with np.errstate(divide="ignore"):
        per_unit = np.where(rates > 0, 1.0 / rates, 0.0)
    saved = -np.diff(per_unit)
    saved[..., 0] = 0.0
    return saved


@dataclass(frozen=True)
class Ladders:
    """The gains of further GPUs: ``steps[row, p]`` is the least gain of any GPU after a job's fewest, up to GPU p + 1.

    -inf marks GPUs without gain, or above the job's most; +inf marks the job's fewest, which are never taken away.
    """

    steps: Floats
    row: Ints


@dataclass(frozen=True)
class Climbers:
    """Competing jobs, in the order that breaks ties: each has a row of ``steps``, and a weight of its gains (> 0)."""

    steps: Floats
    row: Ints
    weight: Floats


def build_ladders(rates: Floats, *, kind: Ints, fewest: Ints, most: Ints, gain: Gain) -> Ladders:
    """The `Ladders` of jobs; jobs with the same curve, ``fewest`` and ``most`` share a row.

    Args:
        rates: throughput, one row per curve, column p for p GPUs.
        kind: for each job, the row of its curve in ``rates``.
        fewest: the minimum number of GPUs of each job, at least 1.
        most: the maximum number of GPUs of each job.
        gain: returns the gain of each further GPU from rows of rates: `relative_gain` or `saved_time`.
    """
    unique, row = np.unique(np.stack((kind, fewest, most), axis=1), axis=0, return_inverse=True)
    steps = np.full((len(unique), rates.shape[1]), -np.inf)
    for index, (curve, first, last) in enumerate(unique.tolist()):
        gains = np.minimum.accumulate(gain(rates[curve])[first:last])
        steps[index, first:last] = np.where(gains > 0, gains, -np.inf)
        steps[index, :first] = np.inf
    return Ladders(steps, row.reshape(-1))


@dataclass
class _Hand:
    """The GPUs given so far, and for each job the gain of its next step (up) and of its last step (down)."""

    climbers: Climbers
    held: Ints

    def __post_init__(self) -> None:
        self._weight, self._row, self._steps = self.climbers.weight, self.climbers.row, self.climbers.steps
        self.up: Floats = self._weight * self._steps[self._row, self.held]
        self.down: Floats = self._weight * self._steps[self._row, self.held - 1]
        self._backwards = self.down[::-1]

    def best(self) -> int:
        return int(self.up.argmax())

    def worst(self) -> int:
        return len(self.down) - 1 - int(self._backwards.argmin())  # the last of equals

    def goes_before(self, best: int, worst: int) -> bool:
        up, down = self.up.item(best), self.down.item(worst)
        return up > down or (up == down and best < worst)

    def give(self, index: int) -> None:
        held = self.held.item(index) + 1
        self.held[index], self.down[index] = held, self.up.item(index)
        self.up[index] = self._weight.item(index) * self._steps.item(self._row.item(index), held)

    def take(self, index: int) -> None:
        held = self.held.item(index) - 1
        self.held[index], self.up[index] = held, self.down.item(index)
        self.down[index] = self._weight.item(index) * self._steps.item(self._row.item(index), held - 1)

    def give_back_useless(self) -> int:
        """Takes back GPUs that bring no gain, and returns their number."""
        count = 0
        while self.down.item(worst := self.worst()) < 0:
            self.take(worst)
            count += 1
        return count


def fill_gpus(climbers: Climbers, *, start: Ints, total: int) -> Ints:
    """The GPUs of each job after a greedy allocation of ``total`` GPUs, at least its fewest; independent of ``start``.

    Args:
        climbers: the jobs; the sum of their fewest GPUs is at most ``total``.
        start: a guess at the result, for each job between its fewest and most GPUs.
        total: the number of GPUs.

    Cost:
        One pass over the jobs for each GPU by which the guess is wrong.
    """
    if not len(start):
        return start
    hand = _Hand(climbers, start.copy())
    free = total - int(start.sum())
    free += hand.give_back_useless()
    while free < 0:  # the guess has more GPUs than the cluster
        hand.take(hand.worst())
        free += 1
    # GPUs are left: give them while there is a gain.
    while free > 0 and hand.up.item(best := hand.best()) > 0:
        hand.give(best)
        free -= 1
    # All are given: move single GPUs from the worst taken step to the best free step.
    while free == 0 and hand.goes_before(best := hand.best(), worst := hand.worst()):
        hand.take(worst)
        hand.give(best)
    return hand.held
