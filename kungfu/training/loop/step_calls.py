"""The calls of a step in a loop: what is remembered between two of them, and what is done around each.

The first call begins the run (`warm_up`), the last is followed by its end. A peer dies: see `recovery`. A barrier is
held: see `barrier`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import tensorflow as tf

from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError
from kungfu.training.data import Stamps, is_stale
from kungfu.training.data.catch_up import DataCursor
from kungfu.training.graph.accumulate import ACCUMULATED
from kungfu.training.graph.step import BARRIER_FAILED, BARRIER_HELD, CompiledStep, as_tensors
from kungfu.training.graph.step_report import StepPosition, StepReport, read_position
from kungfu.training.graph.tracing.trace import refuse_xla
from kungfu.training.graph.variable_io import write_variable
from kungfu.training.loop import barrier, recovery
from kungfu.training.loop.between_steps import complete_pending, forget_message_time, peer_group
from kungfu.training.loop.step_log import StepLog
from kungfu.training.loop.warm_up import prepare_step
from kungfu.training.run import AFTER_STEP, IN_BARRIER, Run
from kungfu.training.state.registered_sync import PeerGroup


class Skipped(Enum):
    """The type of ``SKIPPED``: what a step returns for a batch that was cut for another view or position."""

    SKIPPED = "skipped"

    def __repr__(self) -> str:
        return "training.SKIPPED"


SKIPPED: Final = Skipped.SKIPPED

# A stale batch is re-cut and the next one fits; this many in a row mean that the program feeds old batches.
_STALE_IN_A_ROW = 1000


class StepCalls:
    """The calls of a run's step.

    Args:
        run: What the step is of.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.stamps, self.step_log = run, Stamps(), StepLog(run)
        self.data_cursor, self._notes = DataCursor(run.membership, run.graph_state), _HostNotes(run)
        self.count, self._shadows, self._exits = 0, run.pending.shadows, run.settings.exits
        self._micro_done = run.graph_state.metrics.micro.done
        self._compiled: CompiledStep | None = None
        self._position: StepPosition | None = None  # of the last step, if nothing else can have changed it since
        self._stale, self.is_finished, self._looped = 0, False, False

    @property
    def is_over(self) -> bool:
        """True once training has come to its end on this peer, or a decision removed it."""
        return self.is_finished or self.run.left

    def position(self) -> StepPosition:
        """The position of the run; costs nothing after a step that came to its end."""
        # Before the first step, after one that failed, and where a loop in the graph does steps unseen.
        if self._position is None or self._looped:
            return read_position(self.run.graph_state)
        return self._position

    @property
    def has_view(self) -> bool:
        """True if this peer is in a view: from its first call of the step on, which only joins; alone, always."""
        return self.run.is_alone or self.position().version > 0

    def mark(self, name: str, *, averages: int) -> None:
        """The function of this name is the step; see ``Training.step``."""
        declared = self.run.declared
        if declared.step is not None:
            raise UsageError(
                f"@training.step marks {name!r} after {declared.step!r}: a run has one step, since every call of it "
                "counts and may end in a barrier; put both into one function"
            )
        declared.step, self.run.trace.declared_averages = name, averages

    def traces(self) -> int:
        """The number of times that the step was traced."""
        return 0 if self._compiled is None else self._compiled.traces()

    # ---- a call ------------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the step, with everything around it; see ``Training.step``."""
        if not tf.executing_eagerly():  # a tf.function of the program's is being traced
            return self._call_inside(function, args, kwargs)
        run = self.run
        self.count += 1
        if self.is_finished or run.left or run.stopped:
            raise UsageError(
                "a training step was called after this peer's training was over; see training.left, training.stopped"
            )
        tensors = as_tensors(args, kwargs)
        if self._compiled is None:  # the first call: this peer joins by it
            self._compiled = self._begin(function, tensors, (args, kwargs))
        # A peer of the view is gone, and the step would wait for it.
        if (lost := recovery.lasting_failure(run)) is not None:
            self._recover(lost)
            return SKIPPED
        # The batch was cut for another view or position, or a barrier within a loop in the graph has failed.
        stamp, here = self.stamps.of(tensors), self.position()
        if run.standing.barrier_failure is not None or is_stale(stamp, here):
            return self._skipped()
        self._position = None  # until the step has come to its end
        try:
            complete_pending(run)
            self._notes.before_step(here, looped=self._looped)
            returned, report = self._compiled((stamp.micro, stamp.micros, int(stamp.empty)), tensors)
        except TypeError:  # as TensorFlow says, with the whole tensors, that they are not what was traced
            self._compiled.refuse_unlike(tensors)
            raise
        except tf.errors.OpError as error:  # peers were lost, or an op of the user's own failed
            self._recover(error, where=f"in step {run.steps() + 1}")
            return SKIPPED
        self._conclude(report)
        if report.code == BARRIER_FAILED:  # after a step that is done, on all peers
            recovery.after_barrier(run)
            self.step_log.record_view()
        else:
            self._position = report.position
            self.data_cursor.reached(report.position)
        return returned

    def _begin(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """Traces, warms up on a copy of the state where there is a job, and enters it."""
        run = self.run
        compiled = prepare_step(run, function, tensors, structure, hold=self.hold_barrier)
        self.data_cursor.catch_up(phase=run.settings.phase)
        barrier.join(run)
        self.step_log.record_view()
        return compiled

    def _skipped(self) -> Any:
        """The batch is not trained on, and what was accumulated of its step is dropped."""
        self._stale += 1
        if self._stale > _STALE_IN_A_ROW:  # no loader that follows the position gives this many
            raise UsageError(f"{self._stale} batches in a row were stale: pass on those of training.batches()")
        self._micro_done.assign(0)
        self._position = None
        return SKIPPED

    def _conclude(self, report: StepReport) -> None:
        run, self._stale = self.run, 0
        # The last micro-batch of the share, or the only one.
        if report.code != ACCUMULATED:
            run.timer.stepped()
            # Nothing was exchanged after the step, whose barrier may have failed on this peer alone.
            run.standing.stage = IN_BARRIER if report.code == BARRIER_FAILED else AFTER_STEP
            self._shadows.extend(self.step_log.log(report))

    def hold_barrier(self) -> int:
        """Called inside the graph: whatever goes wrong is kept, and raised or recovered from outside of it."""
        run = self.run
        try:
            barrier.hold(run)
            if self._looped:  # nothing of the program's comes before the next step
                complete_pending(run)
                self._notes.note_joiners(looped=True)
        except BaseException as error:  # noqa: BLE001 - raised again outside the graph, where it keeps its type
            recovery.keep(run, error)
            return BARRIER_FAILED
        return BARRIER_HELD

    def _call_inside(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The step as a part of a function of the user's, a loop say; its batches are the user's own."""
        refuse_xla(f"the step {function.__name__!r}")
        if self._compiled is None:
            raise UsageError(
                f"{function.__name__!r} was called inside a tf.function before it was ever called outside: its first "
                "call traces it, warms it up and waits for the other peers, so make that one from plain Python"
            )
        if (averages := self.run.trace.declared_averages) > 1:
            raise UsageError(
                f"{function.__name__!r} averages {averages} times per step, and was called inside a tf.function: there "
                "a step in which peers are lost cannot be undone; call it from plain Python"
            )
        self._looped = True
        return self._compiled.inside(
            as_tensors(args, kwargs),
            failed=lambda: recovery.raise_barrier_failure(self.run),
            offer=lambda: self._notes.offer_checksum(self.position()),
            offer_every=self.run.settings.compare_every,
        )

    # ---- between two calls -------------------------------------------------------------------------------------------

    def exchange(self, values: Callable[[PeerGroup], None]) -> bool:
        """Exchanges values between two steps with all peers of the view, which call this at the same position.

        Args:
            values: Exchanges them. It is called anew if a peer was lost over it.

        Returns:
            False if peers were lost: this peer has recovered, and is in another view.

        Raises:
            KungfuError: Too few peers live, or ``values`` raised it.
        """
        run = self.run
        recovery.advance_stage(run)
        # A peer of the view is gone, and the others would wait for it.
        if (lost := recovery.lasting_failure(run)) is not None:
            self._recover(lost)
            return False
        try:
            complete_pending(run)
            values(peer_group(run))
        except tf.errors.OpError as error:  # peers were lost in a message
            self._recover(error, where=f"between steps {run.steps()} and {run.steps() + 1}")
            return False
        recovery.advance_stage(run)
        forget_message_time(run)
        return True

    def exchange_after_training(self, values: Callable[[PeerGroup], None], *, what: str) -> str:
        """Exchanges values after training is over, when peers may end their programs at any time: nothing is recovered.

        Args:
            values: Exchanges them.
            what: The object of the wait, for the message about a late peer.

        Returns:
            The reason for which it could not be done; "" if it was.
        """
        try:
            values(peer_group(self.run, tag=what))
        except tf.errors.OpError as error:
            failure = self.run.attachment.failure_of(error)
            # An op of the program's own failed, not a message.
            if failure is None:
                raise
            return str(failure)
        return ""

    def _recover(self, error: BaseException, *, where: str = "") -> None:
        """Goes on without the peers that were lost; whatever else went wrong is raised."""
        self._position = None
        recovery.recover(self.run, error, where=where)
        self.step_log.record_view()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The program leaves its loop before training is over: the others may wait for it."""
        if self._exits is not None and self._compiled is not None and not self.is_over:
            self._exits.left_loop()

    def finish(self, between_steps: Callable[[], object] = lambda: None) -> None:
        """Training is over on this peer; idempotent.

        Args:
            between_steps: Does the last exchanges of a loop of kungfu's, in each view that comes to the last barrier.
        """
        if self.is_finished:
            return
        self.is_finished, run = True, self.run
        if self._compiled is None:  # no step was ever called: this peer is in no view
            between_steps()
            return
        # Peers may be lost over the last barrier too: the survivors hold another one.
        while not run.left:
            between_steps()  # another peer may have been lost before it came to the last barrier
            try:
                barrier.finish(run)
                break
            except (PeerFailure, DeadlineExceeded, tf.errors.OpError) as error:
                self._recover(error, where="in the last barrier")
        run.checkpoints.wait()
        run.journal.ended()
        summary = {"steps": run.steps(), "traces": self.traces(), **run.timer.summary()}
        run.membership.finish(summary, leaving=run.left, phase=0 if run.left else run.settings.phase)


class _HostNotes:
    """The notes of the host to the graph before a step, written only where they have changed.

    Args:
        run: Of the step.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._every, self._view = run, run.settings.compare_every, run.graph_state.view
        self._checksum = run.graph_state.posts.checksum
        self._joiners = 0  # on this host, as the graph has it
        self._compares = False  # in the step at hand

    def before_step(self, here: StepPosition, *, looped: bool) -> None:
        """Notes of the step that begins at this position; ``looped`` where a loop in the graph calls it too."""
        barrier.read_registered(self._run, compared=self._is_compared(here))
        self.offer_checksum(here)
        self.note_joiners(looped=looped)

    def note_joiners(self, *, looped: bool) -> None:
        """Notes the number of joiners that are getting ready on this host."""
        run = self._run
        # A loop in the graph does steps unseen, so there it is notified at barriers only.
        known = None if looped else run.membership.host_joiners()
        # Where it is not known, they may be anywhere as long as a change of the size is under way.
        joiners = int(run.terms.target_size > 0) if known is None else known
        if joiners != self._joiners:
            self._joiners = joiners
            write_variable(self._view.host_joiners, joiners)

    def offer_checksum(self, here: StepPosition) -> None:
        """Every this many steps a checksum of what all peers must hold alike rides on the message."""
        # Of a share in micro-batches only the last one sends the message: what the first one offered is still there.
        if here.micro:
            return
        if compares := self._is_compared(here):
            barrier.offer_checksum(self._run)
        elif self._compares:
            self._checksum.offer(None)
        self._compares = compares

    def _is_compared(self, here: StepPosition) -> bool:
        """True if a checksum is to be put on the message of the step that begins here."""
        return self._every > 0 and here.size > 1 and not here.micro and here.step % self._every == 0
