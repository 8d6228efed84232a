"""Random well-typed policies: a list of instructions becomes a graph over every kind of node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.control import Rule
from kungfu.policy import Policy
from kungfu.signal import VECTOR, Signal, TrainingSignals

Instruction = tuple[str, int, int, int]

FLOAT_SOURCES = ["loss", "mean_loss", "samples", "total_samples", "local_batch_size", "busy_seconds", "learning_rate"]
WHOLE_SOURCES = ["step", "size", "rank", "global_batch_size", "max_size"]


@dataclass
class Pools:
    """The signals made so far, by what can be done with them."""

    numbers: list[Signal] = field(default_factory=list)
    whole: list[Signal] = field(default_factory=list)
    flags: list[Signal] = field(default_factory=list)
    vectors: list[Signal] = field(default_factory=list)

    def number(self, index: int) -> Signal:
        return self.numbers[-1 - index % len(self.numbers)]

    def flag(self, index: int) -> Signal:
        return self.flags[-1 - index % len(self.flags)]

    def vector(self, index: int) -> Signal:
        return self.vectors[-1 - index % len(self.vectors)]


# Sums, differences and products of small multiples of a quarter, so that both interpreters are exact on them.
MAKERS: dict[str, Callable[[Pools, int, int, int], Signal]] = {
    "add": lambda pools, a, b, c: pools.number(a) + pools.number(b),
    "subtract": lambda pools, a, b, c: pools.number(a) - pools.number(b),
    "scale": lambda pools, a, b, c: pools.number(a) * ((b % 9 - 4) / 4),
    "divide": lambda pools, a, b, c: pools.number(a) / pools.number(b),
    "minimum": lambda pools, a, b, c: ops.minimum(pools.number(a), pools.number(b)),
    "clip": lambda pools, a, b, c: ops.clip(pools.number(a), -(b % 8), c % 8),
    "round": lambda pools, a, b, c: ops.round(pools.number(a)),
    "negate": lambda pools, a, b, c: abs(-pools.number(a)),
    "where": lambda pools, a, b, c: ops.where(pools.flag(a), pools.number(b), pools.number(c)),
    "less": lambda pools, a, b, c: pools.number(a) < pools.number(b),
    "equal": lambda pools, a, b, c: ops.round(pools.number(a)) == ops.round(pools.number(b)),
    "both": lambda pools, a, b, c: pools.flag(a) & ~pools.flag(b),
    "finite": lambda pools, a, b, c: ops.is_finite(pools.number(a)),
    "modulo": lambda pools, a, b, c: pools.whole[a % len(pools.whole)] % pools.whole[b % len(pools.whole)],
    "all_reduce": lambda pools, a, b, c: ops.all_reduce(pools.number(a), "mean" if b % 2 else "sum"),
    "all_gather": lambda pools, a, b, c: ops.all_gather(pools.number(a)),
    "largest": lambda pools, a, b, c: ops.max(pools.vector(a)),
    "median": lambda pools, a, b, c: ops.median(pools.vector(a)),
    "spread": lambda pools, a, b, c: pools.vector(a) - pools.number(b),
    "sum_vectors": lambda pools, a, b, c: ops.all_reduce(pools.vector(a), "sum"),
    "norm": lambda pools, a, b, c: ops.norm_squared(TrainingSignals().mean_grads if a % 2 else TrainingSignals().grads),
    "ema": lambda pools, a, b, c: pools.number(a).ema(0.5, on_rescale="reset" if b % 2 else "keep"),
    "previous": lambda pools, a, b, c: pools.number(a).previous(on_rescale="reset" if b % 2 else "keep"),
    "sampled": lambda pools, a, b, c: pools.number(a).ema(0.25).sampled(b % 3 + 1),
    "hold": lambda pools, a, b, c: pools.number(a).hold(when=pools.flag(b)),
}


def instructions(*, at_least: int, at_most: int) -> st.SearchStrategy[list[Instruction]]:
    """So many instructions, each an operation and which of the latest signals it takes."""
    index = st.integers(0, 15)
    one = st.tuples(st.sampled_from(sorted(MAKERS)), index, index, index)
    return st.lists(one, min_size=max(3, at_least), max_size=at_most)


def random_policy(program: Sequence[Instruction]) -> Policy:
    """The policy that these instructions make: one rule that rescales, one that calls, and some names."""

    def body(training: TrainingSignals) -> tuple[Rule, ...]:
        pools = _seeded(training)
        for operation, a, b, c in program:
            _put(MAKERS[operation](pools, a, b, c), pools)
        numbers = [one for one in pools.numbers if one.placement == "agreed"]
        flags = [one for one in pools.flags if one.placement == "agreed"]
        periods = [program[0][1] % 3 + 1, program[1][1] % 4 + 1]
        return (
            control.every(periods[0]).when(flags[-1]).rescale(numbers[-1]),
            control.every(periods[1]).call(_ignore, *numbers[-6:], numbers[program[2][1] % len(numbers)].named("seen")),
        )

    return Policy("random", body)


def _seeded(training: Any) -> Pools:
    whole = [getattr(training, name) for name in WHOLE_SOURCES]
    numbers = whole + [getattr(training, name) for name in FLOAT_SOURCES]
    vectors = [ops.all_gather(training.busy_seconds)]
    return Pools(numbers, whole, [training.step % 2 == 0, training.loss > 0, training.mean_loss > 0], vectors)


def _put(made: Signal, pools: Pools) -> None:
    if made.type.shape == VECTOR:
        pools.vectors.append(made)
    elif made.type.dtype == "bool":
        pools.flags.append(made)
    else:
        pools.numbers.append(made)
        if made.type.dtype == "int64":
            pools.whole.append(made)


def _ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""
