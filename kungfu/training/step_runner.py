"""The life of a step in a loop: begun once, called for every batch, ended with the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, Final

import tensorflow as tf

from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError
from kungfu.runtime.api import ExitReport, Position, Terms
from kungfu.signal.source_location import location_of_caller
from kungfu.training.barrier import Barrier
from kungfu.training.data import BatchPlan, Stamps, batches, is_stale
from kungfu.training.data.catch_up import DataPlace
from kungfu.training.data.partition_sampler import PartitionSampler
from kungfu.training.data.planned_epochs import PlannedEpochs
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.average import SummedMetrics
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.layer_memory import LayerMemory
from kungfu.training.graph.step import (
    ACCUMULATED,
    BARRIER_FAILED,
    BARRIER_HELD,
    CompiledStep,
    StepParts,
    as_tensors,
    batched,
    compile_step,
)
from kungfu.training.graph.step_report import StepPosition, StepReport, read_position
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.loop_metrics import LoopMetrics, refuse_accumulated
from kungfu.training.recovery import Recovery
from kungfu.training.registered.registered_sync import PeerGroup
from kungfu.training.telemetry.step_log import StepLog
from kungfu.training.telemetry.trace_recorder import TraceRecorder
from kungfu.training.tracing.effects import EffectGate, effects_of
from kungfu.training.tracing.rollback import BatchRollback
from kungfu.training.tracing.trace import StepTrace, refuse_xla
from kungfu.training.warm_up import warm_up


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
        compare_every: Steps from one checksum of the state on the message to the next; 0 for none, as in a program that
            runs alone.
    """

    def __init__(
        self,
        barrier: Barrier,
        recorder: TraceRecorder | None = None,
        exits: ExitReport | None = None,
        *,
        compare_every: int = 0,
    ) -> None:
        self.barrier, self._exits, self._compare_every = barrier, exits, compare_every
        self.step_log = StepLog(barrier.plan, barrier.graph_state, barrier.membership, barrier.event_log, recorder)
        self.recovery = Recovery(barrier)
        self.stamps = Stamps()
        self._most_peers = barrier.limits.maximum
        self._marked: str | None = None
        self.calls = 0
        # A program that runs alone is never waited for: nothing of its step comes before its time.
        self._gate = None if exits is None else EffectGate(lambda: self.graph_state.view.version.read_value() > 0)
        self.trace = StepTrace(self._gate)  # of the step
        self._batch: int | None = None  # as the loader says
        self.accumulation: Accumulation | None = None
        self.metrics: LoopMetrics | None = None  # of the program's loop
        self.memory = LayerMemory()  # of the model's layers
        self._compiled: CompiledStep | None = None
        self._position: StepPosition | None = None  # as the last step told, if nothing else can have changed it since
        self._stale, self._finished, self._looped = 0, False, False
        self.place = DataPlace(barrier.membership, barrier.graph_state)
        self._joiners = 0  # on this host, as the graph has it
        self._compares = False  # in the step at hand
        self.is_newest: Callable[[], bool] = lambda: True  # else another phase has begun, with another view

    @property
    def graph_state(self) -> GraphState:
        """The variables of the run."""
        return self.barrier.graph_state

    @property
    def is_alone(self) -> bool:
        """True in a program that nobody launched, for which no other peer ever waits."""
        return self._gate is None

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

    def mark(self, name: str, *, averages: int) -> None:
        """The function of this name is the step; see ``Training.step``."""
        if self._marked is not None:
            raise UsageError(
                f"@training.step marks {name!r} after {self._marked!r}: a run has one step, since every call of it "
                "counts and may end in a barrier; put both into one function"
            )
        self._marked, self.trace.declared_averages = name, averages

    def takes(self, plan: BatchPlan, *, described: Mapping[str, int], accumulation: Accumulation | None) -> None:
        """The batches of this run come from the loader.

        Args:
            plan: What it walks.
            described: What has to be the same on all peers and in a run that is resumed: the seed of the order, and the
                checksum of the first batch of data that each peer reads.
            accumulation: Adds up micro-batches, where there are any.
        """
        refuse_accumulated(self.metrics, accumulation)
        self._batch, self.accumulation = plan.batch_size, accumulation
        self.step_log.planned = PlannedEpochs(plan.samples, plan.epochs, plan.remainder == "drop")
        self.barrier.between_steps.data = {"samples": plan.samples, **described}
        self.graph_state.progress.samples.assign(plan.samples)
        if isinstance(plan.sampler, PartitionSampler):  # which peer reads what goes along with the state
            held = plan.sampler.make_variable(most_peers=self._most_peers)
            if self.barrier.between_steps.registry.is_sealed:
                raise UsageError(
                    "training.batches() was given kf.data.partitions after training.resume(), which resumes who reads "
                    "what too: call training.batches() first, then training.resume(), and then begin the loop"
                )
            self.barrier.between_steps.registry.register_variable("data/partitions", held, kind="shared")
        self.graph_state.progress.epochs.assign(plan.epochs)
        self.graph_state.progress.drops.assign(plan.remainder == "drop")
        self.place.takes(plan.source)

    def count_epochs(self, *, done_before: int, epochs: int, fit: int) -> None:
        """Tells the record how the program counts its epochs, see `PlannedEpochs`, and the policies how many there are.

        Those of this run may be fewer than its loader was told: a callback has restored what an earlier one came to.
        """
        assert self.step_log.planned is not None
        self.step_log.planned = replace(self.step_log.planned, done_before=done_before, epochs=epochs, fit=fit)
        write_variable(self.graph_state.progress.epochs, epochs)

    def batches(
        self, plan: BatchPlan, *, over: Callable[[], bool], attend: Callable[[], None] = lambda: None
    ) -> Iterator[Any]:
        """What one call of the step after the other needs, until the epochs are done or training is ``over``.

        Args:
            plan: The data and how it is walked.
            over: Whether no further step is to be done.
            attend: Holds the meetings that a loop of kungfu's has in a new view. Where the data need one too, they come
                first, on all peers: one that has lost another in a step attends before it comes to the data.
        """

        def settle() -> bool:
            attend()
            return over() or self.meet(lambda peers: None)

        return batches(
            plan,
            self.position,
            self.stamps,
            over=over,
            calls=lambda: self.calls,
            most_peers=self._most_peers,
            members=lambda: self.barrier.membership.view.ids,
            settle=settle,
            await_others=partial(self.place.await_others, meet=self.meet),
        )

    def walk(self, plan: BatchPlan) -> Iterator[Any]:
        """The same for the one loop of a program, at whose end training is over."""
        try:
            yield from self.batches(plan, over=lambda: self.left or self.stopped)
        except GeneratorExit:  # by `break`, `return` or `sys.exit` in the body of the loop
            self.abandon()
            raise
        self.finish()

    def take_metrics(self, metrics: LoopMetrics) -> None:
        """The step updates these metrics; see ``Training.metrics``."""
        refuse_accumulated(metrics, self.accumulation)
        self.metrics = metrics
        self.trace.around.append(metrics.traced)

    @property
    def riders(self) -> list[SummedMetrics]:
        """The senders of further sums on the message of the gradients."""
        return [self.memory.sums, *([] if self.metrics is None else [self.metrics])]

    def share_memory(self, known: Iterable[Any] | None = None) -> None:
        """Makes the memory of layers that of a job; see `LayerMemory.share`."""
        self.memory.share(known)
        if self.memory.sums.variables:
            self.trace.around.append(self.memory.sums.traced)
        self.trace.undone = self.memory.undone

    def traces(self) -> int:
        """How often the step was traced."""
        return 0 if self._compiled is None else self._compiled.traces()

    def abandon(self) -> None:
        """The program leaves its loop before training is over: the others may wait for it."""
        if self._exits is not None and self._compiled is not None and not self._finished and not self.left:
            self._exits.left_loop()

    def stop(self, reason: str) -> None:
        """The program asks for the end of training; see ``Training.stop``."""
        if not tf.executing_eagerly():
            raise UsageError(
                "training.stop() was called inside a function that TensorFlow traces, so it would be called once and "
                "never again: call it from Python between two steps, or let a policy stop (kf.control)"
            )
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
        fed.feed(name, value, where=location_of_caller())

    def finish(self, attend: Callable[[], None] = lambda: None) -> None:
        """Training is over on this peer; idempotent.

        Args:
            attend: Holds the last meetings of a loop of kungfu's, in each view that comes to the last barrier.
        """
        if self._finished:
            return
        self._finished = True
        if self._compiled is None:  # no step was ever called: this peer is in no view
            attend()
            return
        # Peers may be lost over the last barrier too: those who live hold another one.
        while not self.left:
            attend()  # another peer may have been lost before it came to the last barrier
            try:
                self.barrier.finish()
                break
            except (PeerFailure, DeadlineExceeded, tf.errors.OpError) as error:
                self._recover(error, where="in the last barrier")
        self.barrier.between_steps.checkpoints.wait()
        self.barrier.event_log.ended()
        summary = {"steps": self._steps(), "traces": self.traces(), **self.barrier.step_timer.summary()}
        self.barrier.membership.finish(summary, leaving=self.left, phase=0 if self.left else self.barrier.phase)

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
        stamp, here = self.stamps.of(tensors), self.position()
        if self.recovery.barrier_failure is not None or is_stale(stamp, here):
            return self._skipped()
        self._position = None  # until the step has come to its end
        try:
            self.barrier.complete_pending()
            self.barrier.read_registered(compared=self._is_compared(here))
            self._offer_checksum(here)
            self._note_joiners()
            returned, report = self._compiled((stamp.micro, stamp.micros, int(stamp.empty)), tensors)
        except TypeError:  # as TensorFlow says, with the whole tensors, that they are not what was traced
            self._compiled.refuse_unlike(tensors)
            raise
        except tf.errors.OpError as error:  # peers were lost, or an op of the user's own failed
            self._recover(error, where=f"in step {self._steps() + 1}")
            return SKIPPED
        result = self._concluded(returned, report)
        if report.code == BARRIER_FAILED:  # after a step that is done, on all peers
            self.recovery.after_barrier()
            self.step_log.record_view(rank=self.barrier.rank)
        else:
            self._position = report.position
            if self.place.stream is not None:
                self.place.newest = Position(report.position.epoch, report.position.offset)
        return result

    def _note_joiners(self) -> None:
        """Tells the graph how many joiners are getting ready on this host."""
        # A loop in the graph does steps unseen, so there it is told of them at barriers only.
        known = None if self._looped else self.barrier.membership.host_joiners()
        # Where it is not known, they may be anywhere as long as a change of the size is under way.
        joiners = int(self.barrier.terms.target_size > 0) if known is None else known
        if joiners != self._joiners:
            self._joiners = joiners
            write_variable(self.graph_state.view.host_joiners, joiners)

    def _offer_checksum(self, here: StepPosition) -> None:
        """Every so many steps a checksum of what all peers must hold alike rides on the message."""
        # Of a share in micro-batches only the last one sends the message: what the first one offered is still there.
        if here.micro:
            return
        if compares := self._is_compared(here):
            self.barrier.offer_checksum()
        elif self._compares:
            self.graph_state.posts.checksum.offer(None)
        self._compares = compares

    def _is_compared(self, here: StepPosition) -> bool:
        """True if a checksum is to be put on the message of the step that begins here."""
        every = self._compare_every
        return every > 0 and here.size > 1 and not here.micro and here.step % every == 0

    def meet(self, together: Callable[[PeerGroup], None]) -> bool:
        """Does between two steps what all peers of the view do at the same position.

        Args:
            together: Exchanges what it has to with the others. It is called anew where a peer was lost over it.

        Returns:
            False where peers were lost: this peer has recovered, and is in another view.

        Raises:
            KungfuError: Too few peers live, or ``together`` raised it.
        """
        self.recovery.exchanges()
        # A peer of the view is gone, and the others would wait for it.
        if (lost := self.recovery.lasting_failure()) is not None:
            self._recover(lost)
            return False
        try:
            self.barrier.complete_pending()
            together(self.barrier.peer_group())
        except tf.errors.OpError as error:  # peers were lost in a message
            self._recover(error, where=f"between steps {self._steps()} and {self._steps() + 1}")
            return False
        self.recovery.exchanges()
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
        self.step_log.record_view(rank=self.barrier.rank)

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

        return self._compiled.inside(
            as_tensors(args, kwargs),
            failed=self.recovery.raise_barrier_failure,
            offer=lambda: self._offer_checksum(self.position()),
            offer_every=self._compare_every,
        )

    def _begin(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """Traces, warms up on a copy of the state where there is a job, and enters it."""
        barrier = self.barrier
        self.barrier.between_steps.begin()
        # In a job the step draws random numbers of this peer's; alone, those that it would draw without kungfu.
        if self._gate is not None:
            self.trace.random_streams = self.barrier.between_steps.random_streams()
        compiled = self.compiled(function, tensors, structure)
        # In a job others would wait for the first step's kernels.
        if self._gate is not None:
            with barrier.graph_state.metrics.fed.lock:  # what another thread feeds is kept from being undone
                warm_up(compiled, barrier.attachment, tensors, effects=effects_of(self.trace.graph, gate=self._gate))
        barrier.graph_state.progress.batch.assign(self._first_batch(tensors))
        self.place.catch_up(phase=self.barrier.phase)
        self.barrier.join(self._first_terms)
        self.step_log.record_view(rank=self.barrier.rank)
        return compiled

    def compiled(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """The step, traced; ``UsageError`` where it does not average as often as it says."""
        barrier, graph_state = self.barrier, self.graph_state
        kept = [*self.barrier.between_steps.shared(), *graph_state.variables(), *graph_state.in_share()]
        handles = [*graph_state.handles(), *barrier.state.handles()]
        if self.memory.known is not None:  # what is registered goes along, too
            self.memory.known |= {id(one.handle) for one in self.barrier.between_steps.variables()}
        parts = StepParts(
            graph_state, self.trace, BatchRollback(kept=kept), handles, self._hold_barrier, barrier.rate,
            self.accumulation, self.memory,
        )  # fmt: skip
        return compile_step(function, parts, tensors, structure)

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
        rate = self.barrier.rate
        ramp = None if rate is None else rate.first_ramp(steps=self._steps())
        return checkpoints.continued(Terms(global_batch_size=whole, batch_per_peer=whole / size, ramp=ramp))

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
            self.recovery.step_done(in_barrier=report.code == BARRIER_FAILED)
            self.barrier.shadows.extend(self.step_log.log(report, rank=self.barrier.rank))
        return returned

    def _steps(self) -> int:
        return self.graph_state.progress.steps()
