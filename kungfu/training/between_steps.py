"""Between two steps, after a barrier: registered values are synchronised, hooks called, checkpoints taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
from msgspec import structs

from kungfu.compiler import Plan
from kungfu.event_log.events import LoggedEvent, RoundedEvent, RoundedVariable
from kungfu.runtime.api import BarrierResult, CheckpointSettings, Description, Manifest, VariableGap
from kungfu.training.checkpoint.manager import CheckpointManager, TrainedObjects
from kungfu.training.program_description import describe
from kungfu.training.registered.registered_sync import PeerGroup, PendingSync, sync_registered
from kungfu.training.registered.registry import Registry
from kungfu.training.registered.rescale_hooks import Rescaled, RescaleHooks, change_of
from kungfu.training.tracing.random_streams import RandomStreams


class BetweenSteps:
    """Registered values, hooks and checkpoints of one peer, which all wait for the program to be between two steps.

    A barrier lies inside a step, where the programs of the peers are at different places; so it leaves what
    is ``pending``, and the call of the next step does it.

    Args:
        trained: What trains.
        settings: Where checkpoints go, and which one to resume.
        record: Takes the stream and the event.
    """

    def __init__(
        self, trained: TrainedObjects, settings: CheckpointSettings, *, record: Callable[[str, LoggedEvent], None]
    ) -> None:
        self.registry, self.hooks = Registry(), RescaleHooks()
        self.checkpoints = CheckpointManager(trained, self.registry, settings, record=record)
        self.data: Mapping[str, int] = {}  # what the loader walks
        self.told: Sequence[str] = ()  # what else has to be the same on all peers, in words
        self.remembered: Sequence[str] = ()  # what is said of variables of layers, in words
        self.steps_before = 0  # done in the phases before
        self._trained, self._record = trained, record
        self._founds = settings.founders > 0
        self.is_in_job = False  # then a step may carry a request
        self.pending: PendingSync | None = None
        # A loop of kungfu's has more that goes along than what is registered, and says when it is there.
        self.has_more = False
        self._set_values: dict[str, Any] = {}  # by hooks, since the last step

    # ---- the first step --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the step is traced: everything is registered, and what was to be resumed is loaded."""
        self.checkpoints.begin(self.data)

    def shared(self) -> list[tf.Variable]:
        """What is equal on all peers, registered variables too."""
        return list(self.checkpoints.state().classes.shared.values())

    def variables(self) -> list[tf.Variable]:
        """All that goes along with training."""
        return list(self.checkpoints.state().classes.all().values())

    def random_streams(self) -> RandomStreams:
        """The random numbers of this peer's steps; in a resumed job other ones than before."""
        trained, after = self._trained, self.checkpoints.resumed_step or self.steps_before
        # Peer 0 has restored what is registered as its own from the checkpoint; other peers draw states of their own.
        goes_on = self.checkpoints.resumed_step > 0 and trained.peer == 0
        planted = () if goes_on else tuple(self.registry.of("own").values())
        own = self.checkpoints.state().classes.own.values()
        untouched = [*self.shared(), *(one for one in own if not any(one is other for other in planted))]
        return RandomStreams([trained.seed, trained.peer, after], untouched=untouched, planted=planted)

    def described(self, plan: Plan) -> Description:
        """What this peer runs, once everything is registered."""
        trained = self._trained
        more = {"told": self.told, "remembered": self.remembered}
        return describe(plan, trained.model, trained.optimizers, self.registry, self.data, **more)

    # ---- after a barrier -------------------------------------------------------------------------------------------

    def entered(self, result: BarrierResult, *, step: int) -> None:
        """A barrier is over: what it left to do is pending until the next step."""
        self.is_in_job = True
        before, recovery = result.before, result.recovery
        # Rank 0 was lost, and with it a checkpoint that it may not have written.
        if before is not None and recovery is not None and before.view.peers[0].id in recovery.lost:
            self.checkpoints.take_over()
        self.pending = _pending_sync(result, step=step, founds=self._founds)

    def set_value(self, name: str, value: Any, *, by: str) -> None:
        """A hook wants another value before the next step; ``UsageError`` where there is none, or this does not fit."""
        self._set_values[name] = self.registry.accepted_value(name, value, by=by)

    def complete_pending(
        self, peers: PeerGroup, manifest: Manifest, *, on_synced: Callable[[], None] = lambda: None
    ) -> None:
        """Before a step: does what the last barrier left, if there was one since the step before.

        Args:
            peers: The peers of the view, which all do this now.
            manifest: What a checkpoint of this moment says of itself.
            on_synced: Called when this peer has the registered values of the view, before any hook of the program's;
                not where a loop has more to give in a new view.

        Raises:
            UsageError: A shared value differs between the peers, or a hook raised.
            PeerFailure: A peer was lost over it; everything is pending still.
        """
        pending = self.pending
        if pending is None:
            return
        rounded = sync_registered(self.registry, replace(pending, set_values=self._set_values), peers)
        self._set_values = {}
        is_whole = not self.has_more or pending.source is None
        if is_whole:
            on_synced()
        if rounded:
            self._record("events", _rounded(rounded, rank=peers.rank))
        self.pending = None
        if pending.rescaled is not None:
            self.hooks.call(pending.rescaled)
        # Else it would hold this peer's part of what a loop keeps, beside the values of another one.
        if is_whole:
            self.take_checkpoints(manifest, rank=peers.rank)

    def take_checkpoints(self, manifest: Manifest, *, rank: int) -> None:
        """Takes the checkpoints that were asked for: all that goes along is there, and the same on all peers."""
        self.checkpoints.start_wanted(structs.replace(manifest, data=self.data), rank=rank)


def _pending_sync(result: BarrierResult, *, step: int, founds: bool) -> PendingSync:
    before, after, recovery, sources = result.before, result.after, result.recovery, result.sources
    # This peer leaves, or the view stays: the peers only compare what they hold.
    if result.rank is None or (before is not None and before.view.version == after.view.version):
        return PendingSync()
    # This peer has just come in and takes the shared values. The averaged ones are the mean over those who held the
    # state before: in the first view of a job that is everybody.
    if before is None:
        joined = None if founds else Rescaled("joined", 0, after.view.size, result.rank, step)
        return PendingSync(sources[0], True, None if after.view.begins else sources, joined)
    # The membership changed around this peer. After a loss it takes the shared values too: it may have done a step more
    # than the peer whose state all go on from.
    sizes = before.view.size, after.view.size
    change = change_of(*sizes, recovered=recovery is not None)
    return PendingSync(sources[0], recovery is not None, sources, Rescaled(change, *sizes, result.rank, step))


def _rounded(gaps: Mapping[str, VariableGap], *, rank: int) -> RoundedEvent:
    """The event of registered values that differed from rank 0's by rounding."""
    widest = tuple(
        RoundedVariable(name=name, difference=gap.difference, largest=gap.largest) for name, gap in gaps.items()
    )
    return RoundedEvent(ranks=(rank,), variables=len(gaps), widest=widest[:3])
