"""Between two steps, after a barrier: registered values are synchronised, hooks called, checkpoints started.

A barrier lies inside a step, where the programs of the peers are at different places; so it leaves what is pending, and
the call of the next step does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.event_log.events import RoundedEvent, RoundedVariable
from kungfu.runtime.api import BarrierResult, Description, Manifest, VariableGap
from kungfu.training.graph.tracing.random_streams import RandomStreams
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.run import Run
from kungfu.training.state.program_description import describe
from kungfu.training.state.registered_sync import PeerGroup, PendingSync, sync_registered
from kungfu.training.state.rescale_hooks import Rescaled, change_of

# Names the messages that the peers exchange there, in reports of a late or a lost peer.
BETWEEN_STEPS = "the exchange of values"


def random_streams(run: Run) -> RandomStreams:
    """The random numbers of this peer's steps; in a resumed job other ones than before."""
    trained, classes, resumed = run.trained, run.checkpoints.state().classes, run.checkpoints.resumed_step
    # Peer 0 has restored what is registered as its own from the checkpoint; other peers draw states of their own.
    is_restored = resumed > 0 and trained.peer == 0
    planted = () if is_restored else tuple(run.registry.of("own").values())
    own = (one for one in classes.own.values() if not any(one is other for other in planted))
    seed = [trained.seed, trained.peer, resumed or run.settings.steps_before]
    return RandomStreams(seed, untouched=[*classes.shared.values(), *own], planted=planted)


def described(run: Run) -> Description:
    """The description of this peer's program, once everything is registered."""
    trained, declared = run.trained, run.declared
    more = {"facts": declared.described, "remembered": run.memory.described}
    return describe(run.plan, trained.model, trained.optimizers, run.registry, declared.data, **more)


def left_pending(run: Run, result: BarrierResult, *, step: int) -> None:
    """A barrier is over: what it left to do is pending until the next step."""
    run.standing.is_in_job = True
    before, recovery = result.before, result.recovery
    # Rank 0 was lost, and with it a checkpoint that it may not have written.
    if before is not None and recovery is not None and before.view.peers[0].id in recovery.lost:
        run.checkpoints.take_over()
    run.pending.sync = _pending_sync(result, step=step, founds=run.checkpoints.founds)


def set_value(run: Run, name: str, value: Any, *, by: str) -> None:
    """A hook wants another value before the next step; ``UsageError`` if there is none, or this does not fit."""
    run.pending.set_values[name] = run.registry.accepted_value(name, value, by=by)


def complete_pending(run: Run) -> None:
    """Before a step: does what the last barrier left, if there was one since the step before, with all peers.

    When this peer has the registered values of the view, it counts as one that holds the state, before any hook of the
    program's is called; not where a loop has more to give in a new view: see `complete_state`.

    Raises:
        UsageError: A shared value differs between the peers, or a hook raised.
        PeerFailure: A peer was lost over it; everything is pending still.
    """
    pending, sync = run.pending, run.pending.sync
    if sync is None or run.left:
        return
    peers = peer_group(run)
    rounded = sync_registered(run.registry, replace(sync, set_values=pending.set_values), peers)
    pending.set_values = {}
    is_whole = not run.declared.has_loop_state or sync.source is None
    if is_whole:
        run.membership.mark_state_complete()
    if rounded:
        run.membership.record("events", _rounded(rounded, rank=peers.rank))
    pending.sync = None
    if sync.rescaled is not None:
        run.hooks.call(sync.rescaled)
    # Else it would hold this peer's part of what a loop keeps, beside the values of another one.
    if is_whole:
        _start_checkpoints(run, rank=peers.rank)


def complete_state(run: Run) -> None:
    """In a new view: what a loop gives beside the registered values is here too; see `Declared.has_loop_state`."""
    run.membership.mark_state_complete()
    if run.rank is not None:
        _start_checkpoints(run, rank=run.rank)


def _start_checkpoints(run: Run, *, rank: int) -> None:
    """Starts the checkpoints that were requested: all that goes along is there, and the same on all peers."""
    batch = int(read_variable(run.graph_state.progress.batch))
    phase, data = max(1, run.settings.phase), run.declared.data
    run.checkpoints.start_wanted(Manifest(run.steps(), run.size, batch, run.terms, phase=phase, data=data), rank=rank)


def forget_message_time(run: Run) -> None:
    """The seconds since the last message are no step's: the next busy time and step time have no beginning."""
    write_variable(run.graph_state.times.synchronised, math.nan)


def peer_group(run: Run, *, tag: str = BETWEEN_STEPS) -> PeerGroup:
    """The peers of the view, of which this one is one; ``tag`` names their messages."""
    assert run.rank is not None, "a decision has removed this peer"
    return PeerGroup(run.rank, run.size, partial(total, run, tag=tag), run.standing.source)


def total(run: Run, tensors: Sequence[Any], *, scale: float = 1.0, tag: str = BETWEEN_STEPS) -> list[Any]:
    """The sums of tensors over the peers of the view, multiplied by ``scale``; a message, which ``tag`` names."""
    prescale, last = tf.constant(scale, tf.float64), tf.zeros([0], tf.float32)
    given = [*tensors, last]
    return run.attachment.all_reduce(given, prescale=prescale, order=run.graph_state.order, tag=tag)[:-1]


def _pending_sync(result: BarrierResult, *, step: int, founds: bool) -> PendingSync:
    before, after, recovery, sources = result.before, result.after, result.recovery, result.sources
    # This peer leaves, or the view stays: the peers only compare what they hold.
    if result.rank is None or (before is not None and before.view.version == after.view.version):
        return PendingSync()
    # This peer has just come in and takes the shared values. The averaged ones are the mean over those who held the
    # state before: in the first view of a job these are all peers.
    if before is None:
        joined = None if founds else Rescaled("joined", 0, after.view.size, result.rank, step)
        return PendingSync(sources[0], True, None if after.view.begins else sources, joined)
    # The membership changed around this peer. After a loss it takes the shared values too: it may have done a step more
    # than the peer from whose state all continue.
    sizes = before.view.size, after.view.size
    change = change_of(*sizes, recovered=recovery is not None)
    return PendingSync(sources[0], recovery is not None, sources, Rescaled(change, *sizes, result.rank, step))


def _rounded(gaps: Mapping[str, VariableGap], *, rank: int) -> RoundedEvent:
    """The event of registered values that differed from rank 0's by rounding."""
    widest = tuple(
        RoundedVariable(name=name, difference=gap.difference, largest=gap.largest) for name, gap in gaps.items()
    )
    return RoundedEvent(ranks=(rank,), variables=len(gaps), widest=widest[:3])
