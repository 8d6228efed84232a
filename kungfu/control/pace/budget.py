"""Rescales: how many a job may have, so that policies cannot make a cluster flap, and what one of them costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kungfu.errors import PolicyError
from kungfu.ops import all_reduce, is_finite, maximum, minimum, where
from kungfu.signal import Signal, Source, fold

__all__ = ["Budget", "rescale_cost", "rescales_left"]


@dataclass(frozen=True)
class Budget:
    """At most `rescales` changes of the size at once, and one more for every ``per_steps / rescales`` steps.

    A token bucket: it starts full with `rescales` tokens, gains them back evenly over `per_steps` steps, and every
    change of the size costs one, whoever asked for it. While less than one is left, no rule may rescale. Over any run
    of n steps, policies thus change the size at most ``rescales * (1 + n / per_steps)`` times.
    """

    rescales: int
    per_steps: int

    def __post_init__(self) -> None:
        for name, value in (("rescales", self.rescales), ("per_steps", self.per_steps)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 20:
                raise PolicyError(f"Budget({name}={value!r}): takes a whole number from 1 to {(1 << 20) - 1}")


def rescales_left(budget: Budget) -> Signal:
    """How many rescales the budget still has: float32, agreed. Cost: two int64 of state, no message."""
    full, price, gain = budget.rescales * budget.per_steps, budget.per_steps, budget.rescales

    def update(state: tuple[Signal, ...], size: Signal) -> tuple[Signal, ...]:
        credit, before = state
        changed = (before != 0) & (size != before)
        # In whole numbers: what a float lost in the last bit could be the rescale that makes peers disagree.
        return minimum(maximum(where(changed, credit - price, credit), 0) + gain, full), size

    credit = fold(update, (full, 0), Source("size"), output=lambda state: state[0])
    return (credit / price).named("rescales_left")


def rescale_cost(*, at_first_s: float) -> Signal:
    """Seconds for which the last rescale stopped a peer, as the mean over those that went through it.

    Before the first rescale, `at_first_s`. Gives: float32 scalar, seconds, agreed. Cost: two floats on the gradient
    all-reduce, no message.
    """
    if not 0 <= at_first_s < math.inf:
        raise PolicyError(f".payback(at_first_s={at_first_s!r}): takes a finite number of seconds, at least 0")
    own = Source("rescale_seconds")
    total = all_reduce(where(is_finite(own), own, 0.0), "sum")
    peers = all_reduce(where(is_finite(own), 1.0, 0.0), "sum")
    return where(peers > 0, total / peers, at_first_s)
