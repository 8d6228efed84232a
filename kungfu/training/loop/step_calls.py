"""The calls of a step in a loop: the state kept between two calls, the work around each call, and the log of the steps.

The first call begins the run (`warm_up`), and the end of training follows the last call. See `recovery` for the loss of
a peer, and `barrier` for barriers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, final

import tensorflow as tf

from kungfu.compiler.fired import fired_rules
from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError
from kungfu.runtime.api import ShadowAsk, Stamp, View
from kungfu.training.data.catch_up import DataCursor
from kungfu.training.graph.accumulate import ACCUMULATED
from kungfu.training.graph.hyperparameters import refusal, refuse_unread, setting_rules
from kungfu.training.graph.step import (
    BARRIER_FAILED,
    BARRIER_HELD,
    DONE,
    UNSYNCHRONISED,
    CompiledStep,
    as_tensors,
)
from kungfu.training.graph.step_report import PlannedEpochs, StepPosition, StepReport, read_position
from kungfu.training.graph.tracing.trace import refuse_xla
from kungfu.training.graph.variable_io import read_variable
from kungfu.training.loop import barrier, recovery
from kungfu.training.loop.between_steps import HostNotes, complete_pending, forget_message_time, peer_group
from kungfu.training.loop.warm_up import prepare_step
from kungfu.training.run import AFTER_STEP, IN_BARRIER, Run
from kungfu.training.state.registered_sync import PeerGroup
from kungfu.training.telemetry.event_log_writer import metrics_line
from kungfu.training.telemetry.trace_recorder import SNAPSHOT_EVERY


class Skipped(Enum):
    """The type of ``SKIPPED``, the result of a step for a batch that was cut for another view or position."""

    SKIPPED = "skipped"

    def __repr__(self) -> str:
        return "training.SKIPPED"


SKIPPED: Final = Skipped.SKIPPED

# A stale batch is cut again, and the next batch fits; this many stale batches in a row mean that the program passes
# old batches.
_STALE_IN_A_ROW = 1000


# A batch that does not come from training.batches is never stale, and is its peer's whole share of the step.
_UNSTAMPED = Stamp(-1, -1, -1)
_UNMARKED = (None, _UNSTAMPED)


class Stamps:
    """The stamps of one run: the position for which each batch was cut. Tensors without a stamp have the last one."""

    def __init__(self) -> None:
        self._last: Stamp | None = None

    def put(self, tensors: Sequence[Any], stamp: Stamp) -> None:
        """Attaches ``stamp``, the position for which a batch was cut, to the batch's tensors as long as they exist."""
        mark = (self, stamp)
        for tensor in tensors:
            tensor._kungfu_stamp = mark
        self._last = stamp

    def of(self, tensors: Sequence[Any]) -> Stamp:
        """The stamp of a batch's tensors; if they have no stamp, the last stamp that `put` attached to any batch."""
        for tensor in tensors:
            run, stamp = getattr(tensor, "_kungfu_stamp", _UNMARKED)
            if run is self:
                return stamp
        return _UNSTAMPED if self._last is None else self._last


def is_stale(stamp: Stamp, here: StepPosition) -> bool:
    """True for a batch that was cut for an epoch, position or view other than the current one.

    A micro-batch must be the first of its step, or follow the last finished micro-batch.
    """
    in_force = (here.epoch, here.offset, here.version)
    elsewhere = stamp.epoch >= 0 and (stamp.epoch, stamp.offset, stamp.version) != in_force
    return elsewhere or (stamp.micro > 0 and stamp.micro != here.micro)


class StepCalls:
    """Makes the calls of a run's step, and does the work around them."""

    def __init__(self, run: Run) -> None:
        self.run, self.stamps, self.step_log = run, Stamps(), StepLog(run)
        self.data_cursor, self._notes = DataCursor(run.membership, run.graph_state), HostNotes(run)
        self.count, self._shadows, self._exits = 0, run.pending.shadows, run.settings.exits
        self._micro_done = run.graph_state.metrics.micro.done
        self._compiled: CompiledStep | None = None
        self._position: StepPosition | None = None  # after the last step; None if it may have changed since
        self._stale, self.is_finished, self._looped = 0, False, False
        if run.models is not None:
            run.state.on_regrouped = partial(recovery.average_survivors, run)

    @property
    def is_over(self) -> bool:
        """True once training has ended on this peer, or a decision has removed this peer."""
        return self.is_finished or self.run.left

    @property
    def is_over_in_newest_view(self) -> bool:
        """True once training has ended on this peer, if this run is the newest, and the peer is still in the view."""
        run = self.run
        return self.is_finished and not run.left and self.has_view and run.settings.is_newest()

    def position(self) -> StepPosition:
        """The position of the run; costs nothing after a step that finished."""
        # Unknown before the first step, after a step that failed, and if a loop in the graph runs steps.
        if self._position is None or self._looped:
            return read_position(self.run.graph_state)
        return self._position

    @property
    def has_view(self) -> bool:
        """True once this peer is in a view, which it enters in the first call of the step; True without a job."""
        return self.run.trace.gate is None or self.position().version > 0

    def mark(self, name: str, *, averages: int) -> None:
        """Declares the function called ``name`` as the step; see ``Training.step``."""
        declared = self.run.declared
        if declared.step is not None:
            raise UsageError(
                f"@training.step marks {name!r} after {declared.step!r}: a run has one step, since every call of it "
                "counts and may end in a barrier; put both into one function"
            )
        if averages > 1 and self.run.models is not None:
            raise UsageError(
                f"@training.step(averages={averages}) beside attach(sync=kf.control.average_models(...)): every peer "
                "applies its own gradients, and the models are averaged after a step; average once, or attach with "
                'sync="gradients"'
            )
        declared.step, self.run.trace.declared_averages = name, averages

    def traces(self) -> int:
        """The number of times that the step was traced."""
        return 0 if self._compiled is None else self._compiled.traces()

    # ---- a call ------------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one call of the step, and the work around it; see ``Training.step``."""
        if not tf.executing_eagerly():  # the program traces a tf.function
            return self._call_inside(function, args, kwargs)
        run = self.run
        self.count += 1
        if self.is_finished or run.left or run.stopped:
            raise UsageError(
                "a training step was called after this peer's training was over; see training.left, training.stopped"
            )
        tensors = as_tensors(args, kwargs)
        if self._compiled is None:  # the first call, by which this peer joins
            self._compiled = self._begin(function, tensors, (args, kwargs))
        here, models = self.position(), run.models
        if models is not None:
            models.announce(here, run.declared.planned)
        # A peer of the view is lost, and the step would wait for it. A step that sends nothing does not: all survivors
        # notice the loss in the same synchronising step.
        waits = models is None or models.is_synchronising
        if waits and (lost := recovery.lasting_failure(run)) is not None:
            self._recover(lost)
            return SKIPPED
        # The batch was cut for another view or position, or a barrier in a loop of the graph has failed.
        stamp = self.stamps.of(tensors)
        if run.standing.barrier_failure is not None or is_stale(stamp, here):
            return self._skipped()
        self._position = None  # unknown until the step has finished
        try:
            complete_pending(run)
            self._notes.before_step(here, looped=self._looped)
            returned, report = self._compiled((stamp.micro, stamp.micros, int(stamp.empty)), tensors)
        except TypeError:  # its text shows whole tensors: if the types differ, a readable error is raised instead
            self._compiled.refuse_unlike(tensors)
            raise
        except tf.errors.OpError as error:  # peers were lost, or an op of the user failed
            self._recover(error, where=f"in step {run.steps() + 1}")
            return SKIPPED
        self._conclude(report)
        if report.code == BARRIER_FAILED:  # the step itself is done on all peers
            recovery.after_barrier(run)
            self.step_log.record_view()
        else:
            self._position = report.position
            self.data_cursor.reached(report.position)
        return returned

    def _begin(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """Traces the step, warms it up on a copy of the state if there is a job, and joins the job."""
        run = self.run
        compiled = prepare_step(run, function, tensors, structure, hold=self.hold_barrier)
        refuse_unread(run.plan, run.hyperparameters)
        if run.factor is not None:
            run.factor.refuse_unread(run.plan)
        for name, rule in setting_rules(run.plan).items():
            try:
                run.registry.number(name, 0.0)
            except UsageError as error:
                rate = "for the optimizer's, write set_learning_rate(), or kf.control.learning_rate() without a barrier"
                hint = f"; {rate}" if name == "learning_rate" else ""
                raise refusal(rule, f"{error}{hint}") from error
        self.data_cursor.catch_up(phase=run.settings.phase)
        barrier.join(run, meanwhile=partial(self.data_cursor.keep_up, phase=run.settings.phase))
        if run.models is not None:
            run.models.restart(at=run.steps())
        self.step_log.record_view()
        return compiled

    def _skipped(self) -> Any:
        """Skips a stale batch, and drops the accumulated gradients of its step."""
        self._stale += 1
        if self._stale > _STALE_IN_A_ROW:  # a loader that follows the position never yields this many
            raise UsageError(f"{self._stale} batches in a row were stale: pass on those of training.batches()")
        self._micro_done.assign(0)
        self._position = None
        return SKIPPED

    def _conclude(self, report: StepReport) -> None:
        run, self._stale = self.run, 0
        # The run averages models, and the peers have sent each other nothing: the numbers follow in a later step.
        if report.code == UNSYNCHRONISED:
            run.standing.stage = AFTER_STEP
            return
        # The last micro-batch of the share, or the only one.
        if report.code != ACCUMULATED:
            models = run.models
            run.timer.stepped(steps=1 if models is None else models.averaged(at=report.position.step))
            # No exchange has followed the step; its barrier may have failed on this peer alone.
            run.standing.stage = IN_BARRIER if report.code == BARRIER_FAILED else AFTER_STEP
            self._shadows.extend(self.step_log.log(report))

    def hold_barrier(self) -> int:
        """Runs the barrier inside the graph; stores any error, which is raised or handled outside the graph."""
        run = self.run
        try:
            barrier.hold(run)
            if self._looped:  # in a graph loop no Python of the program runs before the next step
                complete_pending(run)
                self._notes.note_joiners(looped=True)
        except BaseException as error:  # noqa: BLE001 - raised again outside the graph, where it keeps its type
            recovery.keep(run, error)
            return BARRIER_FAILED
        return BARRIER_HELD

    def _call_inside(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the step as a part of the user's function, such as a loop; its batches come from that function."""
        refuse_xla(f"the step {function.__name__!r}")
        if self.run.models is not None:
            raise UsageError(
                f"{function.__name__!r} was called inside a tf.function with sync=average_models(...): there a "
                "step in which peers are lost cannot be undone; call it from plain Python"
            )
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
        """Exchanges values between two steps with all peers of the view, which call this method at the same position.

        Args:
            values: Exchanges the values. It must allow repetition, as the caller repeats the exchange after a loss.

        Returns:
            False if peers were lost: this peer has recovered, and is in another view.

        Raises:
            KungfuError: Too few peers are alive, or ``values`` raised the error.
        """
        run = self.run
        # The program's work before the exchange may differ by peer; a peer that has done this work is more advanced.
        run.standing.stage += 1
        # A peer of the view is lost, and the other peers would wait for it.
        if (lost := recovery.lasting_failure(run)) is not None:
            self._recover(lost)
            return False
        try:
            complete_pending(run)
            values(peer_group(run))
        except tf.errors.OpError as error:  # peers were lost in a message
            self._recover(error, where=f"between steps {run.steps()} and {run.steps() + 1}")
            return False
        run.standing.stage += 1
        forget_message_time(run)
        return True

    def exchange_after_training(self, values: Callable[[PeerGroup], None], *, what: str) -> str:
        """Exchanges values after training, when peers may end at any time: losses are not recovered.

        Returns the reason why the exchange failed; "" if it succeeded."""
        try:
            values(peer_group(self.run, tag=what))
        except tf.errors.OpError as error:
            failure = self.run.attachment.failure_of(error)
            # An op of the program failed, not a message.
            if failure is None:
                raise
            return str(failure)
        return ""

    def _recover(self, error: BaseException, *, where: str = "") -> None:
        """Continues without the lost peers if ``error`` is a loss of peers; raises any other error."""
        self._position = None
        recovery.recover(self.run, error, where=where)
        self.step_log.record_view()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Records that the program leaves its loop before training is over: other peers may wait for this peer."""
        if self._exits is not None and self._compiled is not None and not self.is_over:
            self._exits.left_loop()

    def finish(self, between_steps: Callable[[], object] = lambda: None) -> None:
        """Ends training on this peer, once: runs ``between_steps`` and the last barrier; after a loss, both again."""
        if self.is_finished:
            return
        self.is_finished, run = True, self.run
        if self._compiled is None:  # the step was never called: this peer is in no view
            between_steps()
            return
        # Peers may be lost in the last barrier too: the survivors run another barrier.
        while not run.left:
            between_steps()  # repeated, since a peer may have been lost before its last barrier
            try:
                barrier.finish(run)
                break
            except (PeerFailure, DeadlineExceeded, tf.errors.OpError) as error:
                self._recover(error, where="in the last barrier")
        run.checkpoints.wait()
        run.journal.ended()
        summary = {"steps": run.steps(), "traces": self.traces(), **run.timer.summary()}
        run.membership.finish(summary, leaving=run.left, phase=0 if run.left else run.settings.phase)


@final
class StepLog:
    """Writes the steps of this peer to the job's journal."""

    def __init__(self, run: Run) -> None:
        self._run, self._standing, self._declared = run, run.standing, run.declared
        self._graph_state, self._membership = run.graph_state, run.membership
        self._step_record, self._shadows = run.graph_state.metrics.step_record, run.graph_state.rules.shadows
        self._journal, self._recorder = run.journal, run.recorder
        # The names of the shadow rules, and of those that report a rule that a budget holds back, or a factor.
        self._in_shadow = {rule.name for rule in run.plan.rules if rule.is_reported}

    def record_view(self) -> None:
        """Records the current view in the trace, if the view has changed."""
        run = self._run
        if self._recorder is not None:
            version = int(read_variable(self._graph_state.view.version))
            self._recorder.entered(version=version, rank=run.rank, after=run.steps())

    def log(self, report: StepReport) -> list[ShadowAsk]:
        """Logs a finished step, even if its view has ended; returns shadow rules' requests, to be compared by peers."""
        leads, packed, step_record = self._standing.rank == 0, report.packed, self._step_record
        step, loss = step_record.step(packed), step_record.loss(packed)
        shadows = self._in_shadow and step_record.fired(packed) & self._in_shadow
        # The usual case, a step with log lines only: another thread formats them.
        is_plain = report.code == DONE and step % SNAPSHOT_EVERY and not shadows
        if is_plain and self._journal.is_quiet and loss - loss == 0.0:
            if leads or self._recorder is not None:
                view = self._membership.view if leads else None
                self._membership.record("step", partial(self._lines, report, view, self._declared.planned, time.time()))
            return []
        if self._recorder is not None:
            self._recorder.stepped(packed)
            # A barrier may have changed the view.
            if report.code == BARRIER_HELD:
                self.record_view()
            else:
                self._recorder.step_ended(after=step)
        self._journal.measured(loss, step=step)
        # The coordinator logs each step. Other peers log the first step after a change, in case they take over.
        if leads or self._journal.has_news:
            view = self._membership.view if leads else None
            self._journal.stepped(partial(self._metrics, report, view, self._declared.planned))
        if not shadows:
            return []
        # The coordinator logs shadow rules that fired.
        fired = fired_rules(self._run.plan, self._shadows.fetched(), step=self._run.steps())
        self._journal.shadowed(fired if leads else [])
        return [ShadowAsk(one.rule, one.step, one.value) for one in fired]

    def _lines(
        self, report: StepReport, view: View | None, planned: PlannedEpochs | None, now: float
    ) -> dict[str, Any]:
        """The step's line in each enabled stream; another thread formats these lines later."""
        lines: dict[str, Any] = {}
        if self._recorder is not None:
            lines["trace"] = self._recorder.line(report.packed)
        if view is not None:
            lines["metrics"] = metrics_line(now, partial(self._metrics, report, view, planned))
        return lines

    def _metrics(self, report: StepReport, view: View | None, planned: PlannedEpochs | None) -> dict[str, Any]:
        """The step's line in the metrics; another thread formats this line later."""
        step_record, packed = self._step_record, report.packed
        # The ids of the peers are known only while the view of the step lasts.
        peers = view.ids if view is not None and view.version == step_record.view(packed) else ()
        line = step_record.metrics(packed, peers=peers)
        progress = {} if planned is None else planned.progress(report.position, epoch=line["epoch"])
        # A policy's signal may have the same name.
        line.setdefault("progress", {"samples": step_record.samples_trained(packed), **progress})
        return line
