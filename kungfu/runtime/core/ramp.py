"""The progressive linear rule for the learning rate (Xie et al., *Elan*, section IV, equation 3 and algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Ramp", "RampUnit"]

RampUnit = Literal["steps", "samples"]


@dataclass(frozen=True)
class Ramp:
    """From ``start`` to ``target``, beginning after ``since`` steps (or samples) and lasting ``over`` of them.

    ``lr_t = start + (t - since) / over * (target - start)`` for ``since <= t < since + over``, and ``target`` from
    there on. (The paper's algorithm ends the ramp at ``over``, its equation at ``since + over``, as here.)
    """

    start: float
    target: float
    since: int
    over: float
    unit: RampUnit = "steps"

    def at(self, done: int) -> float:
        """The rate of the step before which ``done`` steps (or samples) are done.

        >>> [Ramp(0.1, 0.2, since=40, over=4).at(t) for t in (40, 41, 42, 44, 99)]
        [0.1, 0.125, 0.15000000000000002, 0.2, 0.2]
        """
        if done >= self.since + self.over:
            return self.target
        return self.start + (done - self.since) / self.over * (self.target - self.start)
