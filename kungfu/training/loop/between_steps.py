"""Synchronises registered values, calls hooks, restores and starts checkpoints between two steps, after a barrier.

A barrier is inside a step, where the peers' programs are at different points. So the barrier only records its pending
work, and the next call of the step does this work. Before a step, `HostNotes` writes changes on the host to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.event_log.events import RoundedEvent, RoundedVariable
from kungfu.runtime.api import BarrierResult, Description, Manifest
from kungfu.training.graph.step_report import StepPosition
from kungfu.training.graph.tracing.random_streams import RandomStreams
from kungfu.training.graph.training_state import checksum_of
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.loop.restoring import refuse_other_model, restore_wanted
from kungfu.training.run import Run
from kungfu.training.state.program_description import describe
from kungfu.training.state.registered_sync import PeerGroup, PendingSync, sync_registered
from kungfu.training.state.registry import Rescaled, change_of

# The name of the messages exchanged between steps, in reports of a late or lost peer.
BETWEEN_STEPS = "the exchange of values"


def random_streams(run: Run) -> RandomStreams:
    """The random streams of this peer's steps; a resumed run has other streams than the run that saved its state."""
    trained, classes, resumed = run.trained, run.checkpoints.state().classes, run.checkpoints.resumed_step
    # Peer 0 has restored its local registered values from the checkpoint; other peers draw new states.
    is_restored = resumed > 0 and trained.number == 0
    planted = () if is_restored else tuple(run.registry.of("local").values())
    own = (one for one in classes.local.values() if not any(one is other for other in planted))
    seed = [trained.seed, trained.number, resumed or run.settings.steps_before]
    return RandomStreams(seed, untouched=[*classes.shared.values(), *own], planted=planted)


def described(run: Run) -> Description:
    """The description of this peer's program, after registration has ended."""
    trained, declared = run.trained, run.declared
    more = {"facts": declared.described, "remembered": run.memory.described}
    return describe(run.plan, trained.model, trained.optimizers, run.registry, declared.data, **more)


def left_pending(run: Run, result: BarrierResult, *, step: int) -> None:
    """Records the work that a barrier leaves pending until the next step."""
    run.standing.is_in_job = True
    before, recovery = result.before, result.recovery
    # Rank 0 was lost, perhaps before it wrote a checkpoint.
    if before is not None and recovery is not None and before.view.peers[0].id in recovery.lost:
        run.checkpoints.take_over(step=step, leads=result.rank == 0)
    run.pending.sync = _pending_sync(result, step=step, founds=run.checkpoints.founds)


def complete_pending(run: Run) -> None:
    """Does the pending work of the last barrier with all peers, before a step.

    This peer counts as a holder of the state once it has the registered values of the view, before any hook of the
    program is called. If a loop sends further values in a new view, the peer counts later (see `complete_state`).

    Raises:
        UsageError: A shared value differs between the peers, a hook raised, or training has ended without the model
            that should have been restored.
        PeerFailure: A peer was lost meanwhile; all work remains pending.
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
        widest = [
            RoundedVariable(name=one, difference=gap.difference, largest=gap.largest) for one, gap in rounded.items()
        ]
        event = RoundedEvent(ranks=(peers.rank,), variables=len(rounded), widest=tuple(widest[:3]))
        run.membership.record("events", event)
    pending.sync = None
    if sync.rescaled is not None:
        run.hooks.call(sync.rescaled)
    # Before a checkpoint, from which training would otherwise continue with the model that was given up.
    restore_wanted(run, peers, decided_by=sync.source or 0)
    # Otherwise a checkpoint would combine this peer's old loop state with the new values.
    if is_whole:
        _start_checkpoints(run, rank=peers.rank)


def complete_state(run: Run) -> None:
    """Marks the state complete in a new view, once the loop's values have arrived; see `Declared.has_loop_state`."""
    run.membership.mark_state_complete()
    if run.rank is not None:
        _start_checkpoints(run, rank=run.rank)


def _start_checkpoints(run: Run, *, rank: int) -> None:
    """Starts the requested checkpoints; called when all state is present, and equal on all peers."""
    batch = int(read_variable(run.graph_state.progress.batch))
    phase, data, signals = max(1, run.settings.phase), run.declared.data, _compared_signal(run)
    manifest = Manifest(run.steps(), run.size, batch, run.terms, data=data, phase=phase, signals=signals)
    run.checkpoints.start_wanted(manifest, rank=rank)
    refuse_other_model(run, peer_group(run))


def _compared_signal(run: Run) -> dict[str, float]:
    """The value in the last step of the signal that finds the best checkpoint; empty if the model has no such value."""
    name, step_record = run.checkpoints.best_signal, run.graph_state.metrics.step_record
    packed = read_variable(step_record.packed).tolist() if name and run.checkpoints.is_wanted else []
    # This peer has joined, or the model was restored, after the last step.
    if not packed or math.isnan(packed[0]) or step_record.step(packed) != run.steps():
        return {}
    if run.pending.restoring.done_at == run.steps():
        return {}
    line = step_record.metrics(packed)
    return {name: float(line[name] if name in line else line["loss"])}


def forget_message_time(run: Run) -> None:
    """Forgets the time of the last message, so that the pause counts neither as busy time nor as step time."""
    write_variable(run.graph_state.times.synchronised, math.nan)


def peer_group(run: Run, *, tag: str = BETWEEN_STEPS) -> PeerGroup:
    """The peers of the view, including this peer; ``tag`` names the group's messages."""
    assert run.rank is not None, "a decision has removed this peer"
    return PeerGroup(run.rank, run.size, partial(total, run, tag=tag), run.standing.source)


def total(run: Run, tensors: Sequence[Any], *, scale: float = 1.0, tag: str = BETWEEN_STEPS) -> list[Any]:
    """The sums of tensors over the peers of the view, multiplied by ``scale``; ``tag`` names the message."""
    prescale, last = tf.constant(scale, tf.float64), tf.zeros([0], tf.float32)
    given = [*tensors, last]
    return run.attachment.all_reduce(given, prescale=prescale, order=run.graph_state.order, tag=tag)[:-1]


def _pending_sync(result: BarrierResult, *, step: int, founds: bool) -> PendingSync:
    before, after, recovery, sources = result.before, result.after, result.recovery, result.sources
    # This peer leaves, or the view does not change: the peers only compare their values.
    if result.rank is None or (before is not None and before.view.version == after.view.version):
        return PendingSync()
    # This peer has just joined and loads the shared values. The averaged values are the mean over the previous holders
    # of the state: in the first view of a job these are all peers.
    if before is None:
        joined = None if founds else Rescaled("joined", 0, after.view.size, result.rank, step)
        return PendingSync(sources[0], True, None if after.view.begins else sources, joined)
    # The view changed around this peer. After a loss this peer loads the shared values too: it may have done one step
    # more than the peer from whose state all continue.
    sizes = before.view.size, after.view.size
    change = change_of(*sizes, recovered=recovery is not None)
    return PendingSync(sources[0], recovery is not None, sources, Rescaled(change, *sizes, result.rank, step))


class HostNotes:
    """The values that the host writes to the graph before a step, if the values have changed."""

    def __init__(self, run: Run) -> None:
        self._run, self._every, self._view = run, run.settings.compare_every, run.graph_state.view
        self._checksum = run.graph_state.posts.checksum
        self._joiners = 0  # on this host, as last written to the graph
        self._compares = False  # True if the current step compares checksums

    def before_step(self, here: StepPosition, *, looped: bool) -> None:
        """Updates the graph for the step at this position; ``looped`` is True if a loop in the graph calls the step."""
        self._read_registered(compared=self._is_compared(here))
        self.offer_checksum(here)
        self.note_joiners(looped=looped)

    def _read_registered(self, *, compared: bool) -> None:
        """Reads the registered values once, for joiners that the next barrier may admit, or for a checksum.

        Called only between two steps from Python: during a loop in the graph, the loop may be writing the values.
        """
        run, registry, terms = self._run, self._run.registry, self._run.terms
        joins = registry.has_agreed_values and bool(terms.target_size or terms.leaving)
        if joins or compared:
            registry.collect()
        if joins:
            run.state.registered_read(step=run.steps() + 1)

    def note_joiners(self, *, looped: bool) -> None:
        """Writes to the graph the number of joiners that are getting ready on this host."""
        run = self._run
        # A loop in the graph runs steps without Python, so there the number is updated at barriers only.
        known = None if looped else run.membership.host_joiners()
        # If the host of the joiners is unknown, any host may have them while a change of the size is under way.
        joiners = int(run.terms.target_size > 0) if known is None else known
        if joiners != self._joiners:
            self._joiners = joiners
            write_variable(self._view.host_joiners, joiners)

    def offer_checksum(self, here: StepPosition) -> None:
        """Adds, at every ``compare_every``-th step, a checksum of the shared variables to the step's message."""
        # Only the last micro-batch of a share sends the message; the first micro-batch's offer remains valid.
        if here.micro:
            return
        if compares := self._is_compared(here):
            self._checksum.offer(checksum_of([*self._run.checkpoints.state().classes.shared.values()]))
        elif self._compares:
            self._checksum.offer(None)
        self._compares = compares

    def _is_compared(self, here: StepPosition) -> bool:
        """True if a step that begins at this position should send a checksum of the shared variables."""
        return self._every > 0 and here.size > 1 and not here.micro and here.step % self._every == 0
