"""Several peers in one process: each has an attachment of its own, and all are plugged into one another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import tensorflow as tf

from kungfu.compiler import compile_policies
from kungfu.compiler.lower import Program, lower
from kungfu.policy_definition import Policy
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.settings import Limits
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.graph_state import GraphState

_DEADLINE_S = 180.0
_views = count(1)
_groups = count(500)


def on_peers(size: int, function: Callable[[int, LocalAttachment], Any]) -> list[Any]:
    """What a function gives of rank and attachment of each peer, which call it at once, each in a thread."""
    view, peers = next(_views), [LocalAttachment(group=next(_groups)) for _ in range(size)]

    def enter(rank: int, peer: LocalAttachment) -> None:
        me = Credentials(f"training-{os.getpid()}-{view}", view, rank, size, b"tests")
        peer.open(me, deadline_s=_DEADLINE_S, addresses=[""] * size)

    with ThreadPoolExecutor(size) as pool:

        def run(act: Callable[[int, LocalAttachment], Any]) -> list[Any]:
            running = [pool.submit(act, rank, peer) for rank, peer in enumerate(peers)]
            return [one.result(_DEADLINE_S) for one in running]

        run(enter)
        try:
            return run(function)
        finally:
            run(lambda rank, peer: peer.close())


def averaging_of(
    policies: Sequence[Policy],
    rank: int,
    attachment: LocalAttachment,
    *,
    size: int,
    samples: float = 1.0,
    batch: float,
    made: Callable[[Program], Program] = lambda program: program,
) -> Averaging:
    """What a peer that was given so many samples of a step's batch averages with."""
    plan = compile_policies(policies)
    graph_state = GraphState.of(plan)
    graph_state.view.assign(version=1, size=size, rank=rank)
    graph_state.view.assign_limits(Limits(1, 8))
    graph_state.view.global_batch_size.assign(int(batch))
    graph_state.metrics.samples.assign(samples)
    return Averaging(graph_state, made(lower(plan)), attachment, lambda: tf.constant(0.1))


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def total_of(attachment: LocalAttachment) -> Callable[..., list[Any]]:
    """The sums of tensors over the peers, multiplied by ``scale``, as values are exchanged between two steps."""
    order = tf.Variable(0, dtype=tf.int64)

    def total(tensors: Sequence[Any], *, scale: float = 1.0) -> list[Any]:
        prescale, last = tf.constant(scale, tf.float64), tf.zeros([0])
        return attachment.all_reduce([*tensors, last], prescale=prescale, order=order, tag="registered")[:-1]

    return total
