"""Random well-typed policies: a list of instructions becomes a graph over every kind of node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.control import Rule
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
from kungfu.signal import VECTOR, Signal, TrainingSignals
from tests.compiler.small import ignore

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

    def early(self, index: int) -> Signal:
        """A number that is known before the gradients are reduced."""
        known = [one for one in self.numbers if one.known == "before"]
        return known[-1 - index % len(known)]

    def flag(self, index: int) -> Signal:
        return self.flags[-1 - index % len(self.flags)]

    def agreed_flag(self) -> Signal:
        return next(one for one in reversed(self.flags) if one.placement == "agreed")

    def vector(self, index: int) -> Signal:
        return self.vectors[-1 - index % len(self.vectors)]


# On small multiples of a power of two all of these are exact, in whatever order they are computed.
EXACT: dict[str, Callable[[Pools, int, int, int], Signal]] = {
    "add": lambda pools, a, b, c: pools.number(a) + pools.number(b),
    "subtract": lambda pools, a, b, c: pools.number(a) - pools.number(b),
    "scale": lambda pools, a, b, c: pools.number(a) * ((b % 5 - 2) / 2),
    "minimum": lambda pools, a, b, c: ops.minimum(pools.number(a), pools.number(b)),
    "maximum": lambda pools, a, b, c: ops.maximum(pools.number(a), pools.number(b)),
    "clip": lambda pools, a, b, c: ops.clip(pools.number(a), -(b % 8), c % 8),
    "round": lambda pools, a, b, c: ops.round(pools.number(a)),
    "floor": lambda pools, a, b, c: ops.floor(pools.number(a)),
    "ceil": lambda pools, a, b, c: ops.ceil(pools.number(a)),
    "negate": lambda pools, a, b, c: abs(-pools.number(a)),
    "where": lambda pools, a, b, c: ops.where(pools.flag(a), pools.number(b), pools.number(c)),
    "less": lambda pools, a, b, c: pools.number(a) < pools.number(b),
    "equal": lambda pools, a, b, c: ops.round(pools.number(a)) == ops.round(pools.number(b)),
    "both": lambda pools, a, b, c: pools.flag(a) & ~pools.flag(b),
    "either": lambda pools, a, b, c: pools.flag(a) | pools.flag(b),
    "finite": lambda pools, a, b, c: ops.is_finite(pools.number(a)),
    "modulo": lambda pools, a, b, c: pools.whole[a % len(pools.whole)] % pools.whole[b % len(pools.whole)],
    "whole_part": lambda pools, a, b, c: pools.whole[a % len(pools.whole)] // pools.whole[b % len(pools.whole)],
    "rest": lambda pools, a, b, c: pools.number(a) % (b % 5 - 2.5),
    "whole_quotient": lambda pools, a, b, c: pools.number(a) // 2.0 ** (b % 3),
    "cast_flag": lambda pools, a, b, c: ops.cast(pools.flag(a), "float32"),
    "cast_number": lambda pools, a, b, c: ops.cast(ops.clip(pools.number(a), -9, 9), "int64"),
    "norm": lambda pools, a, b, c: ops.norm_squared(_nest(pools, a)),
    "dot": lambda pools, a, b, c: ops.dot(_nest(pools, a), _nest(pools, b)),
    "max_abs": lambda pools, a, b, c: ops.max_abs(_nest(pools, a)),
    "all_finite": lambda pools, a, b, c: ops.all_finite(_nest(pools, a)),
    # vectors and messages
    "all_reduce": lambda pools, a, b, c: ops.all_reduce(pools.number(a), "sum"),
    "all_gather": lambda pools, a, b, c: ops.all_gather(pools.number(a)),
    "sum_vectors": lambda pools, a, b, c: ops.all_reduce(pools.vector(a), "sum"),
    "spread": lambda pools, a, b, c: pools.vector(a) - pools.number(b),
    "largest": lambda pools, a, b, c: ops.max(pools.vector(a)),
    "median": lambda pools, a, b, c: ops.median(pools.vector(a)),
    "argmin": lambda pools, a, b, c: ops.argmin(pools.vector(a)),
    "argmax": lambda pools, a, b, c: ops.argmax(pools.vector(a)),
    "entry": lambda pools, a, b, c: pools.vector(a)[b % 5 - 2],
    "count": lambda pools, a, b, c: ops.count(pools.vector(a) > pools.number(b)),
    "any": lambda pools, a, b, c: ops.any(pools.vector(a) > pools.number(b)),
    "all": lambda pools, a, b, c: ops.all(pools.vector(a) > pools.number(b)),
    "places": lambda pools, a, b, c: ops.places(pools.vector(a)) * pools.number(b),
    "scatter": lambda pools, a, b, c: ops.one_hot(b % 3, pools.number(a), fill=0.5),
    # memory
    "previous": lambda pools, a, b, c: pools.number(a).previous(on_rescale="reset" if b % 2 else "keep"),
    "delta": lambda pools, a, b, c: pools.number(a).delta(),
    "cumulative": lambda pools, a, b, c: ops.round(ops.clip(pools.number(a), -1, 1)).cumulative(),
    "hold": lambda pools, a, b, c: pools.number(a).hold(when=pools.flag(b)),
    "hold_every": lambda pools, a, b, c: pools.number(a).hold(b % 3 + 1),
    "window_median": lambda pools, a, b, c: pools.number(a).window(b % 4 + 1).median(),
    "window_max": lambda pools, a, b, c: pools.number(a).window(b % 4 + 1, on_rescale="reset").sampled(2).max(),
    "by_size": lambda pools, a, b, c: pools.number(a).by_size(3)[pools.whole[1] - b % 2],
    "samples_by_size": lambda pools, a, b, c: (
        pools.number(a)
        .statistics_by_size(3, forget_after=b % 4 + 1, strike_all=pools.flag(c))
        .count[pools.whole[1] - b % 2]
    ),
    "age_by_size": lambda pools, a, b, c: pools.number(a).statistics_by_size(3).age[pools.whole[1] - b % 2],
    "rising": lambda pools, a, b, c: pools.flag(a).rising(),
    "count_steps": lambda pools, a, b, c: pools.flag(a).count(on_rescale="reset" if b % 2 else "keep"),
    "streak": lambda pools, a, b, c: pools.flag(a).streak(),
    "convert": lambda pools, a, b, c: _converted(pools.number(a)),
    "synchronized": lambda pools, a, b, c: ops.synchronized(pools.agreed_flag()),
}
# These are the same to float tolerance only; what is in front of a predicate is kept within a few powers of ten.
ROUGH: dict[str, Callable[[Pools, int, int, int], Signal]] = {
    **{name: make for name, make in EXACT.items() if name not in ("rest", "whole_quotient")},
    "multiply": lambda pools, a, b, c: _tame(pools.number(a)) * _tame(pools.number(b)),
    "divide": lambda pools, a, b, c: _tame(pools.number(a)) / (abs(pools.number(b)) + 1),
    "power": lambda pools, a, b, c: (abs(_tame(pools.number(a))) + 1) ** _tame(pools.number(b)),
    "exp": lambda pools, a, b, c: ops.exp(_tame(pools.number(a))),
    "log": lambda pools, a, b, c: ops.log(abs(pools.number(a)) + 1),
    "sqrt": lambda pools, a, b, c: ops.sqrt(abs(pools.number(a)) + 1),
    "all_reduce_mean": lambda pools, a, b, c: ops.all_reduce(pools.number(a), "mean"),
    "sum": lambda pools, a, b, c: ops.sum(pools.vector(a)),
    "mean": lambda pools, a, b, c: ops.mean(pools.vector(a)),
    "ema": lambda pools, a, b, c: pools.number(a).ema(0.3, on_rescale="reset" if b % 2 else "keep"),
    "sampled": lambda pools, a, b, c: pools.number(a).ema(0.2).sampled(b % 3 + 1),
    "window_std": lambda pools, a, b, c: _tame(pools.number(a)).window(b % 4 + 1).std(),
    "window_sum": lambda pools, a, b, c: _tame(pools.number(a)).window(b % 4 + 1).sum(),
    "window_mean": lambda pools, a, b, c: pools.number(a).window(b % 4 + 1).mean(),
    "mean_by_size": lambda pools, a, b, c: pools.number(a).statistics_by_size(3).mean[pools.whole[1] - b % 2],
    "variance_by_size": lambda pools, a, b, c: _tame(pools.number(a)).statistics_by_size(3).variance[pools.whole[1]],
    "smoothed_by_size": lambda pools, a, b, c: pools.number(a).by_size(3, decay=0.3)[pools.whole[1]],
}
# All of them, with collectives only where they ride on the gradients.
RIDING: dict[str, Callable[[Pools, int, int, int], Signal]] = {
    **{name: make for name, make in ROUGH.items() if name not in ("sum_vectors", "synchronized")},
    "all_reduce": lambda pools, a, b, c: ops.all_reduce(pools.early(a), "sum"),
    "all_reduce_mean": lambda pools, a, b, c: ops.all_reduce(pools.early(a), "mean"),
    "all_gather": lambda pools, a, b, c: ops.all_gather(pools.early(a)),
}


def _nest(pools: Pools, index: int) -> Signal:
    training = TrainingSignals()
    return training.mean_grads if index % 2 else training.grads


def _tame(number: Signal) -> Signal:
    return ops.clip(number, -3.0, 3.0)


def _converted(number: Signal) -> Signal:
    """The sum of the signs, halved when the cluster grows and doubled when it shrinks."""
    sign = ops.clip(ops.round(number), -1.0, 1.0)
    return ops.fold(
        lambda total, x: ops.clip(total + x, -16.0, 16.0),
        0.0,
        sign,
        on_rescale=lambda total, before, after: total * ops.where(after > before, 0.5, 2.0),
    )


def instructions(
    *, at_least: int, at_most: int, makers: Mapping[str, Any] = ROUGH
) -> st.SearchStrategy[list[Instruction]]:
    """So many instructions, each an operation out of these and which of the latest signals it takes."""
    index = st.integers(0, 15)
    one = st.tuples(st.sampled_from(sorted(makers)), index, index, index)
    return st.lists(one, min_size=max(3, at_least), max_size=at_most)


def random_plan(program: Sequence[Instruction], *, makers: Mapping[str, Any] = ROUGH) -> CompiledPolicies:
    """The plan of the policy that these instructions make: rules that rescale, call and move the rate, and some names.

    One that has a rule which can never fire is refused, and is no example.
    """

    def body(training: TrainingSignals) -> tuple[Rule, ...]:
        pools = _seeded(training)
        for operation, a, b, c in program:
            _put(makers[operation](pools, a, b, c), pools)
        return _rules(pools, program)

    try:
        return compile_policies([Policy("random", body)])
    except PolicyError as error:
        if "can never fire" not in str(error):
            raise
        reject()


def _rules(pools: Pools, program: Sequence[Instruction]) -> tuple[Rule, ...]:
    numbers = [one for one in pools.numbers if one.placement == "agreed"]
    flags = [one for one in pools.flags if one.placement == "agreed"]
    vectors = [one for one in pools.vectors if one.placement == "agreed"]
    periods = [program[0][1] % 3 + 1, program[1][1] % 4 + 1]
    seen = numbers[program[2][1] % len(numbers)].named("seen")
    return (
        control.every(periods[0]).when(flags[-1]).rescale(numbers[-1]),
        control.every(periods[1]).call(ignore, *numbers[-6:], seen),
        control.every(periods[1]).evict(vectors[-1] > 0.25),
        control.always().when(flags[program[2][2] % len(flags)]).set_learning_rate(abs(numbers[-1]) + 0.25),
        control.learning_rate(numbers[program[2][3] % len(numbers)]),
    )


def _seeded(training: Any) -> Pools:
    whole = [getattr(training, name) for name in WHOLE_SOURCES]
    numbers = (
        whole
        + [getattr(training, name) for name in FLOAT_SOURCES]
        + [training.published("score"), training.fed("price")]
    )
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
