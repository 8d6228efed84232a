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

    peer.step = tf.function(step, autograph=False) if is_traced else step
    return peer


def run(peer: Peer, sources: Mapping[str, Any]) -> Outcome:
    """One step of one peer."""
    peer.sent.clear()
    return outcome_of(peer.step(sources))
