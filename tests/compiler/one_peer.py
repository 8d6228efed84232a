"""One peer's TensorFlow program beside the replay of its whole cluster, which plays the other peers.

The program is traced once for a whole history of views: sizes, ranks and messages are values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import CompiledPolicies, Outcome
from kungfu.compiler.lower import Program, lower
from kungfu.compiler.replay import Replay
from tests.compiler.cluster import outcome_of, replayed_states, restore
from tests.compiler.witness import Log

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
_KNOWN_AFTER = ("mean_grads", "mean_loss", "total_samples", "pending", "barrier_due", "change_due")


@dataclass
class Peer:
    """A program, the function that runs one step of it, and what it sent in the last one, by tag."""

    program: Program
    log: Log
    rank: int = 0
    sent: dict[str, Any] = field(default_factory=dict)
    step: Callable[[Mapping[str, Any]], Outcome] = lambda _: (_ for _ in ()).throw(AssertionError("not wrapped yet"))

    def take(self, replay: Replay, *, rank: int) -> None:
        """Becomes the peer of that rank in the replayed cluster, with its states."""
        self.rank = rank
        restore(self.program, replay, rank=rank)

    def assert_like(self, expected: Outcome, replay: Replay) -> None:
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
    wrapped: Callable[[Any], Any],
    made: Callable[[Program], Program] = lambda one: one,
) -> Peer:
    """A peer whose step runs as `wrapped` makes it, traced with `traced`, at once with `eager`; `made` may fuse it."""
    peer = Peer(made(lower(plan)), log)

    def exchange(vector: Any, tag: str) -> Any:
        def summed(own: Any) -> Any:
            peer.sent[tag] = own
            # Off the common path, where a fragile step took another branch, nobody else has sent anything.
            return log.messages.get(tag, (None, own))[1]

        total = tf.numpy_function(summed, [vector], tf.float32)
        return tf.reshape(total, tf.shape(vector))

    def step(sources: Mapping[str, Any]) -> Any:
        program = peer.program
        before = {name: value for name, value in sources.items() if name not in _KNOWN_AFTER}
        before |= program.gradient_reductions(before)
        summed = exchange(program.piggybacked(before), "piggybacked")
        after = {**before, **{name: sources[name] for name in _KNOWN_AFTER}}
        after |= program.gradient_reductions(after)
        return program.conclude(after, summed, lambda vectors, tag: [exchange(one, tag) for one in vectors])

    peer.step = wrapped(step)
    return peer


def eager(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, without a graph."""
    return step


def traced(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step as one graph, whatever the size of the cluster."""
    return tf.function(step, autograph=False)  # type: ignore[no-any-return]  # TensorFlow has no types


def run(peer: Peer, sources: Mapping[str, Any]) -> Outcome:
    """One step of one peer."""
    peer.sent.clear()
    return outcome_of(peer.step(sources))
