"""The record of a training run, made by `attach` from a model, its optimizers and policies.

The record is built in one expression, and its fields are never reassigned. The step (`step_calls`), the barrier, the
recovery from a loss, the work between two steps and the checkpoints receive the record. The contents of three fields
change during the run: ``declared`` before the first step, ``standing`` and ``pending``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kungfu.compiler import CompiledPolicies
from kungfu.compiler.lower import Program
from kungfu.runtime.api import REMEMBERED, Asked, Attachment, ExitReport, Limits, Membership, ShadowAsk, Terms
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.average import average_before_last
from kungfu.training.graph.combined_metrics import LoopMetrics
from kungfu.training.graph.gradient_message import Averaging, optimizer_signals
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.hyperparameters import Hyperparameter
from kungfu.training.graph.layer_memory import LayerMemory
from kungfu.training.graph.learning_rate import LearningRateControl, LearningRateFactor
from kungfu.training.graph.model_average import ModelAverage
from kungfu.training.graph.program_variables import FedValues, PublishedValues
from kungfu.training.graph.step_report import PlannedEpochs
from kungfu.training.graph.tracing.trace import StepTrace
from kungfu.training.graph.training_state import TrainingState
from kungfu.training.state.checkpoint_manager import CheckpointManager, TrainedObjects
from kungfu.training.state.registered_sync import PendingSync
from kungfu.training.state.registry import Registry, RescaleHooks
from kungfu.training.telemetry.event_log_writer import EventLogWriter
from kungfu.training.telemetry.step_timer import StepTimer
from kungfu.training.telemetry.trace_recorder import TraceRecorder

# Stages in a `LossReport` sent before the peers have exchanged anything after their last step.
IN_BARRIER, AFTER_STEP = 0, 1


@dataclass(frozen=True)
class RunSettings:
    """The settings of the job for a run, fixed when the run starts.

    Args:
        phase: The number of the job's phase; 0 if the job is not divided into phases.
        steps_before: The number of steps done in earlier phases.
        terms_before: The terms (batch size, ramp) at the end of the previous phase; ``None`` if this peer took no part.
        compare_every: The number of steps between two checksums of the state in messages; 0 for none.
        exits: Reports how the program ends; ``None`` in a program that runs alone.
        is_newest: Returns True until another run begins in this process.
    """

    limits: Limits
    phase: int
    steps_before: int
    terms_before: Terms | None
    compare_every: int
    exits: ExitReport | None
    is_newest: Callable[[], bool]


@dataclass
class Declared:
    """The program's declarations about its loop, made between ``attach`` and the first step.

    Args:
        step: The name of the function that the program marked as the step.
        batch: The batch size declared by the loader, in samples; ``None`` without a loader.
        accumulation: The accumulation of micro-batches, if there are any.
        metrics: The metrics of the program's loop.
        data: The facts about the loader's data that must be equal on all peers and in a resumed run.
        planned: The number and size of the loader's epochs.
        described: Further settings that must be equal on all peers, as text.
        has_loop_state: True if a kungfu loop sends further values to peers, besides the registered values; the loop
            reports when these values have arrived.
    """

    step: str | None = None
    batch: int | None = None
    accumulation: Accumulation | None = None
    metrics: LoopMetrics | None = None
    data: Mapping[str, int] = field(default_factory=dict)
    planned: PlannedEpochs | None = None
    described: Sequence[str] = ()
    has_loop_state: bool = False


@dataclass
class Standing:
    """The state of this peer in its job, such as its rank; written by the barrier and by the recovery from a loss.

    Args:
        rank: This peer's rank in its view; ``None`` once a decision has removed this peer.
        source: The rank from whose state all peers in this view continued.
        terms: The values in force in the view besides its members, such as the batch size.
        is_in_job: True once this peer has entered a view; from then on, a step's message may carry a request.
        stage: 0 in a failed barrier, 1 after a step; each exchange between steps adds 1 at its start, 1 at its end.
        barrier_failure: The failure of the last barrier, kept until this peer has recovered from the failure.
    """

    rank: int | None = 0
    size: int = 1
    source: int = 0
    terms: Terms = field(default_factory=Terms)
    is_in_job: bool = False
    stage: int = AFTER_STEP
    barrier_failure: BaseException | None = None


@dataclass
class Restoring:
    """A requested return of the model to a named checkpoint; see `kungfu.training.loop.restoring`.

    Args:
        wanted: The request, until all peers have the state of the checkpoint; ``None`` without one.
        done_at: The number of steps done when the model was restored last; the values of that step describe the model
            before. -1 if the model was never restored.
        is_last: True once training has ended by itself: no step follows.
        error: The reason why the model could not be restored before training ended; empty if there is none.
    """

    wanted: Asked | None = None
    done_at: int = -1
    is_last: bool = False
    error: str = ""


@dataclass
class Pending:
    """Work that waits for the next barrier, or for the time between two steps.

    Args:
        unanswered: The requests of a barrier that has not finished; ``None`` without such a barrier.
        shadows: The requests of shadow rules since the last barrier.
        stop_reason: The reason given if the program requested the end of training; else ``None``.
        sync: The work that the last barrier left to do before the next step.
        set_values: The values set by hooks since the last step.
        restoring: The return of the model to a named checkpoint.
    """

    unanswered: tuple[Asked, ...] | None = None
    shadows: deque[ShadowAsk] = field(default_factory=partial(deque, maxlen=REMEMBERED))
    stop_reason: str | None = None
    sync: PendingSync | None = None
    set_values: dict[str, Any] = field(default_factory=dict)
    restoring: Restoring = field(default_factory=Restoring)


@dataclass(frozen=True)
class Run:
    """A training run on one peer.

    Args:
        trained: The model, its optimizers, and the replicated state.
        program: The compiled policies as ops.
        graph_state: kungfu's variables.
        factor: The factor on the learning rate, if a policy has one.
        hyperparameters: The momentum and the weight decay of the optimizer, by name, if a policy sets them.
        memory: The layers' variables that keep statistics of the data.
        membership: This peer's part in the job; a program that runs alone is a job of one peer.
        settings: The job's settings for this run.
        checkpoints: Writes and resumes checkpoints.
        journal: Receives the events of this peer.
        recorder: Writes the trace of the steps, if requested.
        timer: Measures the pace of the steps.
        models: Averages models, if the run does so in place of gradients.
        declared: The program's declarations about its loop.
        pending: The work that waits for a barrier or for the next step.
    """

    trained: TrainedObjects
    program: Program
    graph_state: GraphState
    rate: LearningRateControl | None
    factor: LearningRateFactor | None
    hyperparameters: Mapping[str, Hyperparameter]
    memory: LayerMemory
    trace: StepTrace
    attachment: Attachment
    membership: Membership
    settings: RunSettings
    registry: Registry
    checkpoints: CheckpointManager
    journal: EventLogWriter
    recorder: TraceRecorder | None
    timer: StepTimer
    models: ModelAverage | None = None
    hooks: RescaleHooks = field(default_factory=RescaleHooks)
    declared: Declared = field(default_factory=Declared)
    standing: Standing = field(default_factory=Standing)
    pending: Pending = field(default_factory=Pending)

    @property
    def plan(self) -> CompiledPolicies:
        """The compiled policies."""
        return self.program.plan

    @property
    def state(self) -> TrainingState:
        """The replicated state."""
        return self.trained.state

    @property
    def published(self) -> PublishedValues:
        """The numbers that the program publishes to the policies in its step."""
        return self.graph_state.metrics.published

    @property
    def fed(self) -> FedValues:
        """The numbers that the program feeds to the policies between steps."""
        return self.graph_state.metrics.fed

    @property
    def rank(self) -> int | None:
        """This peer's rank in its view; ``None`` once a decision has removed this peer."""
        return self.standing.rank

    @property
    def size(self) -> int:
        """The number of peers in the view."""
        return self.standing.size

    @property
    def terms(self) -> Terms:
        """The values in force in the view besides its members, such as the batch size."""
        return self.standing.terms

    @property
    def left(self) -> bool:
        """True once a decision has removed this peer."""
        return self.standing.rank is None

    @property
    def stopped(self) -> bool:
        """True once a policy, or the program, has ended training."""
        return self.standing.terms.stopped

    def steps(self) -> int:
        """The number of steps done so far."""
        return self.graph_state.progress.steps()

    def average(self, gradients: Any, last: Callable[[Averaging], Any], *, optimizer: Any = None) -> Any:
        """Graph: the means of a nest of gradients over the peers.

        Args:
            last: Computes the means of the step's last average, whose message also carries the policies' values.
            optimizer: The optimizer that applies the gradients, if the run has several optimizers.
        """
        trace = self.trace
        rate, scale = optimizer_signals(self.trained.optimizers[0] if optimizer is None else optimizer)
        rate = rate if self.factor is None else self.factor.plain_rate
        with trace.average():
            averaging = Averaging(
                self.graph_state, self.program, self.attachment, rate, scale, self.factor, self.models
            )
            if self.models is not None:  # a message follows the update
                trace.undo_all()
            if not trace.is_last_average:
                means, waited_s = average_before_last(averaging, gradients, number=trace.averages)
                trace.waited.append(waited_s)
                return means
            self.published.refuse_missing(trace.published, trace.captured())
            means = last(averaging)
            if self.models is not None:
                trace.undone += [one.handle for one in self.models.sums.variables]
        trace.averaged(means)
        return means
