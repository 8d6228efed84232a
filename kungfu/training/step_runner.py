"""The life of a step in a loop: begun once, called for every batch, ended with the others."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, Final

import tensorflow as tf

from kungfu.compiler.fired import fired_rules
from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError
from kungfu.runtime.api import ExitReport, Membership, Position, ShadowAsk, StandaloneMembership, Terms
from kungfu.signal.source_location import location_of_caller
from kungfu.training.barrier import Barrier
from kungfu.training.data import BatchPlan, Stamps, is_stale
from kungfu.training.data.catch_up import catch_up
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.planned_epochs import PlannedEpochs
from kungfu.training.data.stream import Stream
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.step import (
    ACCUMULATED,
    BARRIER_FAILED,
    BARRIER_HELD,
    CompiledStep,
    StepParts,
    as_tensors,
    batched,
)
from kungfu.training.graph.step_report import StepPosition, StepReport, read_position
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.loop_metrics import LoopMetrics
from kungfu.training.recovery import Recovery
from kungfu.training.registered.sync import PeerGroup
from kungfu.training.telemetry.trace_recorder import TraceRecorder
from kungfu.training.tracing.effects import EffectGate, effects_of
from kungfu.training.tracing.rollback import BatchRollback
from kungfu.training.tracing.trace import StepTrace, order_after_average, refuse_xla
from kungfu.training.warm_up import warm_up

__all__ = ["SKIPPED", "Skipped", "StepRunner"]


class Skipped(Enum):
    """The type of ``SKIPPED``: what a step returns for a batch that was cut for another view or position."""

    SKIPPED = "skipped"

    def __repr__(self) -> str:
        return "training.SKIPPED"


SKIPPED: Final = Skipped.SKIPPED

# A stale batch is re-cut and the next one fits; so many in a row mean that the program feeds old batches.
_STALE_IN_A_ROW = 1000


class StepRunner:
    """The life of a run's step in Python: what is remembered between two calls, and what is done around each.

    A peer dies: see `kungfu.training.recovery`. A barrier is held: see `kungfu.training.barrier`.

    Args:
        barrier: Holds this peer's place in the job.
        recorder: Writes the trace, where it is asked for.
        exits: Reports how the program ends, where it has an agent.
    """

    def __init__(
        self, barrier: Barrier, recorder: TraceRecorder | None = None, exits: ExitReport | None = None
    ) -> None:
        self.barrier, self._recorder, self._exits = barrier, recorder, exits
        self.recovery = Recovery(barrier)
        self.stamps = Stamps()
        self.calls = 0
        # A program that runs alone is never waited for: nothing of its step comes before its time.
        alone = isinstance(barrier.context.membership, StandaloneMembership)
        self._gate = None if alone else EffectGate(lambda: self.graph_state.view.version.read_value() > 0)
        self.trace = StepTrace(self._gate)  # of the step
        self._batch: int | None = None  # as the loader says
        self._planned: PlannedEpochs | None = None  # likewise
        self.accumulation: Accumulation | None = None
        self.metrics: LoopMetrics | None = None  # of the program's loop
        self._compiled: CompiledStep | None = None
        self._position: StepPosition | None = None  # as the last step told, if nothing else can have changed it since
        self._stale, self._finished, self._looped = 0, False, False
        self._unused: set[str] = set()  # names that were fed for no policy
        self._stream: Stream | None = None  # data that every peer reads
        self._newest: Position | None = None  # in the data, as joiners may ask
        self._joiners = 0  # on this host, as the graph has it
        self.is_newest: Callable[[], bool] = lambda: True  # else another phase has begun, with another view

    @property
    def graph_state(self) -> GraphState:
        """The variables of the run."""
        return self.barrier.context.graph_state

    @property
    def left(self) -> bool:
        """True once a decision let this peer go."""
        return self.barrier.rank is None

    @property
    def stopped(self) -> bool:
        """True once a policy has ended training."""
        return self.barrier.terms.stopped

    @property
    def is_over(self) -> bool:
        """True once training has come to its end on this peer, or it was let go."""
        return self._finished or self.left

    def position(self) -> StepPosition:
        """Where the run is; costs nothing after a step that came to its end."""
        # Before the first step, after one that failed, and where a loop in the graph does steps unseen.
        if self._position is None or self._looped:
            return read_position(self.graph_state)
        return self._position

    def takes(
        self, plan: BatchPlan, *, described: Mapping[str, int], accumulation: Accumulation | None, most_peers: int
    ) -> None:
        """The batches of this run come from the loader.

        Args:
            plan: What it walks.
            described: What has to be the same on all peers and in a run that is resumed: the seed of the order, and the
                checksum of the first batch of data that each peer reads.
            accumulation: Adds up micro-batches, where there are any.
            most_peers: Those that the job may have.
        """
        self._batch, self.accumulation = plan.batch_size, accumulation
        self._planned = PlannedEpochs(plan.samples, plan.epochs, plan.remainder == "drop")
        self.barrier.between_steps.data = {"samples": plan.samples, **described}
        self.graph_state.progress.samples.assign(plan.samples)
        if isinstance(plan.sampler, PartitionSampler):  # which peer reads what goes along with the state
            held = plan.sampler.make_variable(most_peers=most_peers)
            self.barrier.between_steps.registry.register(
                "data/partitions", held, None, kind="shared", room_bytes=held.dtype.size * held.shape[0]
            )
        self.graph_state.progress.epochs.assign(plan.epochs)
        self.graph_state.progress.drops.assign(plan.remainder == "drop")
        if isinstance(plan.source, Stream):
            self._stream = plan.source

    def count_epochs(self, *, done_before: int, epochs: int, fit: int) -> None:
        """Tells the record how the program counts its epochs; see `PlannedEpochs`."""
        assert self._planned is not None
        self._planned = replace(self._planned, done_before=done_before, epochs=epochs, fit=fit)

    def traces(self) -> int:
        """How often the step was traced."""
        return 0 if self._compiled is None else self._compiled.traces()

    def abandon(self) -> None:
        """The program leaves its loop before training is over: the others may wait for it."""
        if self._exits is not None and self._compiled is not None and not self._finished and not self.left:
            self._exits.left_loop()

    def stop(self, reason: str) -> None:
        """The program asks for the end of training; see ``Training.stop``."""
        if self._finished or self.left or self.stopped:
            return
        self.barrier.stop(reason)

    def feed(self, name: str, value: Any) -> None:
        """A number for the policies, from between the steps; see ``Training.feed``."""
        fed = self.graph_state.metrics.fed
        if not tf.executing_eagerly():
            raise UsageError(
                f"training.feed({name!r}) was called inside a function that TensorFlow traces, so it would be called "
                "once and never again: call it from Python between two steps, or give what the step computes to "
                "training.publish(name, value)"
            )
        if self._finished:
            raise UsageError(f"training.feed({name!r}) was called after training was over: no step follows")
        if name in fed.names:
            fed.feed(name, value, where=location_of_caller())
        elif name not in self._unused:
            self._unused.add(name)
            declared = ", ".join(map(repr, fed.names)) or "none"
            print(
                f"kungfu: training.feed({name!r}) ({location_of_caller()}) goes nowhere: no rule of this run "
                f"uses training.fed({name!r}); names that are used: {declared}",
                file=sys.stderr,
            )

    def finish(self) -> None:
        """Training is over on this peer; idempotent."""
        if self._finished:
            return
        self._finished = True
        if self._compiled is None:  # no step was ever called: this peer is in no view
            return
        # Peers may be lost over the last barrier too: those who live hold another one.
        while not self.left:
            try:
                self.barrier.finish()
                break
            except (PeerFailure, DeadlineExceeded, tf.errors.OpError) as error:
                self._recover(error, where="the last barrier")
        self.barrier.between_steps.checkpoints.wait()
        self.barrier.event_log.ended()
        summary = {"steps": self._steps(), "traces": self.traces(), **self.barrier.step_timer.summary()}
        self.barrier.context.membership.finish(summary, leaving=self.left, phase=0 if self.left else self.barrier.phase)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the step, with everything around it; see ``Training.step``."""
        if not tf.executing_eagerly():  # a tf.function of the program's is being traced
            return self._call_inside(function, args, kwargs)
        self.calls += 1
        if self.left or self.stopped or self._finished:
            raise UsageError(
                "a training step was called after this peer's training was over; see training.left, training.stopped"
            )
        tensors = as_tensors(args, kwargs)
        if self._compiled is None:  # the first call: this peer joins by it
            self._compiled = self._begin(function, tensors, (args, kwargs))
        # A peer of the view is gone, and the step would wait for it.
        if (lost := self.recovery.lasting_failure()) is not None:
            self._recover(lost)
            return SKIPPED
        # The batch was cut for another view or position, or a barrier within a loop in the graph has failed.
        stamp = self.stamps.of(tensors)
        if self.recovery.barrier_failure is not None or is_stale(stamp, self.position()):
            return self._skipped()
        self._position = None  # until the step has come to its end
        try:
            self.barrier.complete_pending()
            self._note_joiners()
            returned, report = self._compiled((stamp.micro, stamp.micros, int(stamp.empty)), tensors)
        except TypeError:  # as TensorFlow says, with the whole tensors, that they are not what was traced
            self._compiled.refuse_unlike(tensors)
            raise
        except tf.errors.OpError as error:  # peers were lost, or an op of the user's own failed
            self._recover(error, where=f"step {self._steps() + 1}")
            return SKIPPED
        result = self._concluded(returned, report)
        if report.code == BARRIER_FAILED:  # after a step that is done, on all peers
            self.recovery.after_barrier()
            self._record_view()
        else:
            self._position = report.position
            if self._stream is not None:
                self._newest = Position(report.position.epoch, report.position.offset)
        return result

    def _note_joiners(self) -> None:
        """Tells the graph how many joiners are getting ready on this host."""
        # A loop in the graph does steps unseen, so there it is told of them at barriers only.
        known = None if self._looped else self.barrier.context.membership.host_joiners()
        # Where it is not known, they may be anywhere as long as a change of the size is under way.
        joiners = int(self.barrier.terms.target_size > 0) if known is None else known
        if joiners != self._joiners:
            self._joiners = joiners
            write_variable(self.graph_state.view.host_joiners, joiners)

    def meet(self, together: Callable[[PeerGroup], None]) -> bool:
        """Does between two steps what all peers of the view do at the same position.

        Args:
            together: Exchanges what it has to with the others. It is called anew where a peer was lost over it.

        Returns:
            False where peers were lost: this peer has recovered, and is in another view.

        Raises:
            KungfuError: Too few peers live, or ``together`` raised it.
        """
        # A peer of the view is gone, and the others would wait for it.
        if (lost := self.recovery.lasting_failure()) is not None:
            self._recover(lost)
            return False
        try:
            self.barrier.complete_pending()
            together(self.barrier.peer_group())
        except tf.errors.OpError as error:  # peers were lost in a message
            self._recover(error, where=f"between step {self._steps()} and the next")
            return False
        # The seconds since the last message are no step's.
        write_variable(self.graph_state.times.synchronised, math.nan)
        return True

    def _skipped(self) -> Any:
        """The batch is not trained on, and what was accumulated of its step is dropped."""
        self._stale += 1
        if self._stale > _STALE_IN_A_ROW:  # no loader that follows the position gives so many
            raise UsageError(f"{self._stale} batches in a row were stale: pass on those of training.batches()")
        write_variable(self.graph_state.metrics.micro.done, 0)
        self._position = None
        return SKIPPED

    def _recover(self, error: BaseException, *, where: str = "") -> None:
        """Goes on without the peers that were lost; whatever else went wrong is raised."""
        self._position = None
        self.recovery.recover(error, where=where)
        self._record_view()

    def _call_inside(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The step as a part of a function of the user's, a loop say; its batches are the user's own."""
        refuse_xla(f"the step {function.__name__!r}")
        if self._compiled is None:
            raise UsageError(
                f"{function.__name__!r} was called inside a tf.function before it was ever called outside: its first "
                "call traces it, warms it up and waits for the other peers, so make that one from plain Python"
            )

        if self.trace.declared_averages > 1:
            raise UsageError(
                f"{function.__name__!r} averages {self.trace.declared_averages} times per step, and was called inside "
                "a tf.function: there a step in which peers are lost cannot be undone; call it from plain Python"
            )
        self._looped = True

        return self._compiled.inside(as_tensors(args, kwargs), failed=self.recovery.raise_barrier_failure)

    def _begin(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """Traces, warms up on a copy of the state where there is a job, and enters it."""
        context = self.barrier.context
        self.barrier.between_steps.begin()
        # In a job the step draws random numbers of this peer's; alone, those that it would draw without kungfu.
        if self._gate is not None:
            self.trace.random_streams = self.barrier.between_steps.random_streams()
        compiled = self.compiled(function, tensors, structure)
        # In a job others would wait for the first step's kernels.
        if self._gate is not None:
            with context.graph_state.metrics.fed.lock:  # what another thread feeds is kept from being undone
                warm_up(compiled, context.attachment, tensors, effects=effects_of(self.trace.graph, gate=self._gate))
        context.graph_state.progress.batch.assign(self._first_batch(tensors))
        self._catch_up()
        self.barrier.join(self._first_terms)
        self._record_view()
        return compiled

    def _catch_up(self) -> None:
        """Reads data that have to be read from their start to where training is, while nobody waits for this peer."""
        membership = self.barrier.context.membership
        if self._stream is None or not isinstance(membership, Membership):
            return
        place, here = membership.data_position, read_position(self.graph_state)  # further on in a run that is resumed
        place.own.tell(lambda: self._newest)

        def newest() -> Position:
            others = place.of_others(max(1, self.barrier.phase)) or Position(0, 0)
            return max(others, Position(here.epoch, here.offset), key=lambda one: (one.epoch, one.offset))

        found = catch_up(self._stream, newest, meanwhile=place.report_reading, allowed_s=place.allowed_s)
        if found is not None:
            place.record(found.batches, found.seconds)

    def compiled(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """The step, traced; ``UsageError`` where it does not average as often as it says."""
        context = self.barrier.context
        if self.accumulation is not None and self.trace.declared_averages > 1:
            raise UsageError(
                f"@training.step(averages={self.trace.declared_averages}) beside "
                "training.batches(max_local_batch_size=...): only the last micro-batch of a share averages, and what "
                "the step applies after its first average would not be known to the next micro-batch; leave "
                "max_local_batch_size out, or average once"
            )
        parts = StepParts(
            context.graph_state,
            self.trace,
            BatchRollback(
                kept=[
                    *self.barrier.between_steps.shared(),
                    *context.graph_state.variables(),
                    *context.graph_state.in_share(),
                ]
            ),
            [*context.graph_state.handles(), *context.state.handles()],
            self._hold_barrier,
            context.rate,
            self.accumulation,
        )
        ordered = order_after_average(function, means=lambda: self.trace.means)
        try:
            compiled = CompiledStep(ordered, parts, tensors, structure)
        except Exception as error:
            if self.trace.refused is None or error is self.trace.refused:
                raise
            raise self.trace.refused from error
        self._refuse_averages()
        return compiled

    def _refuse_averages(self) -> None:
        """Raises ``UsageError`` where the step that was traced averages more or less often than the program says."""
        found, declared = self.trace.averages, self.trace.declared_averages
        if found == declared:
            return
        if declared == 1:
            raise UsageError(
                f"the function marked @training.step calls training.average() {found} times; it must do so exactly "
                "once, with all gradients, or say how often: @training.step(averages=...)"
            )
        raise UsageError(
            f"the function marked @training.step(averages={declared}) calls training.average() {found} times: say as "
            "many as it calls in each step, since what the policies need rides on the last one"
        )

    def _first_batch(self, tensors: list[Any]) -> int:
        """The samples of a step as the loader says, else those that this peer was given."""
        if self._batch is not None:
            return self._batch
        batch = batched(tensors)
        return 1 if batch is None else int(batch.shape[0])

    def _first_terms(self, size: int) -> Terms:
        """The batch of the first view; it follows from rank 0's, which came with the state: all peers agree on it."""
        # Without a loader each peer brings as many samples as rank 0; a resumed checkpoint has a batch in force.
        batch = int(read_variable(self.graph_state.progress.batch))
        checkpoints = self.barrier.between_steps.checkpoints
        whole = batch * size if self._batch is None else checkpoints.batch_in_force(batch)
        if whole < size:
            raise UsageError(f"batch_size={whole} is smaller than the cluster of {size} peers: each needs a sample")
        return checkpoints.continued(Terms(global_batch_size=whole, batch_per_peer=whole / size))

    def _hold_barrier(self) -> int:
        """Called inside the graph: whatever goes wrong is kept, and raised or recovered from outside of it."""
        try:
            self.barrier.hold()
            if self._looped:  # nothing of the program's comes before the next step
                self.barrier.complete_pending()
                self._note_joiners()
        except BaseException as error:  # noqa: BLE001 - raised again outside the graph, where it keeps its type
            self.recovery.keep(error)
            return BARRIER_FAILED
        write_variable(self.graph_state.posts.halted, self.left or self.stopped)
        return BARRIER_HELD

    def _concluded(self, returned: Any, report: StepReport) -> Any:
        self._stale = 0
        # The last micro-batch of the share, or the only one.
        if report.code != ACCUMULATED:
            self.barrier.step_timer.stepped()
            self._log_step(report)
        return returned

    def _record_view(self) -> None:
        if self._recorder is not None:
            version = int(read_variable(self.graph_state.view.version))
            self._recorder.entered(version=version, rank=self.barrier.rank, after=self._steps())

    @cached_property
    def _in_shadow(self) -> set[str]:
        """The names of the rules that only say what they would do, or that the budget holds back."""
        return {rule.name for rule in self.barrier.context.plan.rules if rule.mode != "acting"}

    def _steps(self) -> int:
        return self.graph_state.progress.steps()

    def _metrics(self, report: StepReport, peers: Sequence[int], planned: PlannedEpochs | None) -> dict[str, Any]:
        """The line of a step in the metrics; made later, in another thread."""
        step_record, row = self.graph_state.metrics.step_record, report.row
        line = step_record.metrics(row, peers=peers)
        progress = {} if planned is None else planned.progress(report.position, epoch=line["epoch"])
        # A signal of a policy may have that name.
        line.setdefault("progress", {"samples": step_record.samples_trained(row), **progress})
        return line

    def _log_step(self, report: StepReport) -> None:
        """Tells of the step as it was: its view may have been ended by the barrier after it."""
        leads, event_log = self.barrier.rank == 0, self.barrier.event_log
        step_record, row = self.graph_state.metrics.step_record, report.row
        if self._recorder is not None:
            self._recorder.stepped(row)
            # A barrier may have changed the view, which the trace begins anew.
            if report.code == BARRIER_HELD:
                self._record_view()
            else:
                self._recorder.step_ended(after=step_record.step(row))
        event_log.measured(step_record.loss(row), step=step_record.step(row))
        # The leader writes each step; any other peer waits for the first one after a change, should it lead.
        if leads or event_log.has_news:
            # Who was in the view of the step is known while it lasts.
            same = leads and step_record.view(row) == report.position.version
            peers = self.barrier.context.membership.view.ids if same else ()
            event_log.stepped(partial(self._metrics, report, peers, self._planned))
        # Rules that only say what they would do: peers compare that at the next barrier, and the leader writes it.
        if self._in_shadow and step_record.fired(row) & self._in_shadow:
            shadows = fired_rules(
                self.barrier.context.plan, self.graph_state.rules.shadows.fetched(), step=self._steps()
            )
            self.barrier.shadows.extend(ShadowAsk(one.rule, one.step, one.value) for one in shadows)
            event_log.shadowed(shadows if leads else [])
