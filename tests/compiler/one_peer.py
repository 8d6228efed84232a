"""One peer's TensorFlow program beside the replay of its whole cluster, which plays the other peers, under watch.

The program is traced once for a whole history of views: sizes, ranks and messages are values. A witness of the replay
notes its messages, and how near its numbers come to where two interpreters may part. Both compute in float32, but
TensorFlow may reorder a sum or merge two constants, and its transcendental functions differ from NumPy's in the last
bits. Where a comparison is decided by less than that, or a number has no exact form, they may rightly decide
differently; such a step is called fragile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from kungfu.compiler import CompiledPolicies, Outcome
from kungfu.compiler.lower import Program, lower
from kungfu.compiler.replay import NumpyBackend, Replay
from kungfu.signal import Operation
from kungfu.signal.operation import DType
from tests.compiler.cluster import outcome_of, replayed_states, restore

MARGIN = 1e-4
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
_KNOWN_AFTER = ("mean_grads", "mean_loss", "total_samples", "pending", "barrier_due", "change_due")
_COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
_STEPS = {"floor", "ceil", "to_int64"}
_JUMPING = _COMPARISONS | _STEPS | {"round", "argmin", "argmax"}

Grid = Literal["dyadic", "real"]


@dataclass
class Log:
    """What one step of a replay did: by tag, every peer's vector and their sum; and whether it is fragile."""

    grid: Grid
    messages: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    fragile: bool = False

    def begin(self) -> None:
        """Forgets the step before."""
        self.messages.clear()
        self.fragile = False


class Witness:
    """A NumPy backend that tells a log what it does; see `kungfu.compiler.evaluate.Backend`."""

    def __init__(self, log: Log, sources: Mapping[str, Any], size: int) -> None:
        self._log, self._cluster = log, NumpyBackend(sources, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def exchanged(self, message: Any, tag: str) -> Any:
        summed = self._cluster.exchanged(message, tag)
        self._log.messages[tag] = (message, summed[0])
        return summed

    def apply(self, operation: Operation, operands: Sequence[Any], dtypes: Sequence[DType]) -> Any:
        result = self._cluster.apply(operation, operands, dtypes)
        if self._log.grid == "dyadic":
            self._log.fragile |= not all(_is_dyadic(one) for one in result)
        elif operation.name in _JUMPING and dtypes[0] == "float32":
            given = zip(*operands, strict=True)
            self._log.fragile |= any(_margin(operation.name, [*map(np.asarray, one)]) < MARGIN for one in given)
        return result


def _is_dyadic(value: Any) -> bool:
    """Whether a number is a small multiple of 2**-9, so that sums and constants may be taken in any order."""
    value = np.asarray(value)
    if value.dtype != np.float32:
        return True
    return bool(np.all(_on_grid(value[np.isfinite(value)])))


def _on_grid(value: Any) -> Any:
    scaled = value.astype(np.float64) * 2**9
    return (scaled == np.rint(scaled)) & (np.abs(scaled) <= 2**23)


def _margin(name: str, operands: Sequence[Any]) -> float:
    """How far the operands of a map are from where it jumps, relative to their size where that is above 1."""
    first = operands[0]
    if name in _COMPARISONS:
        other = operands[1].astype(np.float32)
        # Equal numbers of few digits are equal for both interpreters: what rounded them has shown its own margin.
        return _least((first - other)[~((first == other) & _on_grid(first))], of=operands)
    if name == "round":
        return _least(first - np.floor(first) - np.float32(0.5), of=operands)
    if name in _STEPS:
        return _least((first - np.rint(first))[first != np.rint(first)], of=operands)
    return _least(np.diff(np.sort(first[np.isfinite(first)])), of=operands)


def _least(gaps: Any, *, of: Sequence[Any]) -> float:
    sizes = [np.max(np.abs(one[np.isfinite(one)]), initial=1.0) for one in map(np.atleast_1d, of)]
    gaps = np.atleast_1d(gaps)
    return float(np.min(np.abs(gaps[np.isfinite(gaps)]), initial=np.inf)) / float(max(sizes))


@dataclass
class Peer:
    """A program, the function that runs one step of it, and what it sent in the last one, by tag."""

    program: Program
    log: Log
    step: Callable[[Mapping[str, Any]], Any]
    sent: dict[str, Any]
    rank: int = 0

    def run(self, sources: Mapping[str, Any]) -> Outcome:
        """One step of this peer."""
        self.sent.clear()
        return outcome_of(self.step(sources))

    def become(self, replay: Replay, *, rank: int) -> None:
        """Becomes the peer of that rank in the replayed cluster, with its states."""
        self.rank = rank
        restore(self.program, replay, rank=rank)

    def assert_like(self, replay: Replay) -> None:
        """What it sent and what it holds is what the replay has for this peer."""
        for tag, vector in self.sent.items():
            np.testing.assert_allclose(vector, self.log.messages[tag][0][self.rank], err_msg=tag, **TOLERANCE)
        assert self.sent.keys() == self.log.messages.keys()
        for one, value in zip(self.program.variables, replayed_states(replay, rank=self.rank), strict=True):
            np.testing.assert_allclose(one.variable.numpy(), value, err_msg=one.name, **TOLERANCE)


def peer_of(
    plan: CompiledPolicies,
    log: Log,
    *,
    is_traced: bool,
    made: Callable[[Program], Program] = lambda one: one,
) -> Peer:
    """A peer whose step runs eagerly, or as one graph for all sizes of the cluster; `made` may fuse it."""
    program, sent = made(lower(plan)), dict[str, Any]()

    def exchange(vector: Any, tag: str) -> Any:
        def summed(own: Any) -> Any:
            sent[tag] = own
            # Off the common path, where a fragile step took another branch, nobody else has sent anything.
            return log.messages.get(tag, (None, own))[1]

        total = tf.numpy_function(summed, [vector], tf.float32)
        return tf.reshape(total, tf.shape(vector))

    def step(sources: Mapping[str, Any]) -> Any:
        before = {name: value for name, value in sources.items() if name not in _KNOWN_AFTER}
        before |= program.gradient_reductions(before)
        summed = exchange(program.piggybacked(before), "piggybacked")
        after = {**before, **{name: sources[name] for name in _KNOWN_AFTER}}
        after |= program.gradient_reductions(after)
        return program.conclude(after, summed, lambda vectors, tag: [exchange(one, tag) for one in vectors])

    return Peer(program, log, tf.function(step, autograph=False) if is_traced else step, sent)
