"""The record of a training run: what `attach` makes of a model, its optimizers and policies.

It is built in one expression, and no field of it is assigned to afterwards. The step (`step_calls`), the barrier, the
recovery from a loss, what is done between two steps and the checkpoints take it. What changes while the run continues
is in three of its fields: what the program declares before its first step, where this peer stands, and what is pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kungfu.compiler import Plan
from kungfu.compiler.lower import Program
from kungfu.runtime.api import REMEMBERED, Asked, Attachment, ExitReport, Limits, Membership, ShadowAsk, Terms
from kungfu.training.data.planned_epochs import PlannedEpochs
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.average import average_before_last
from kungfu.training.graph.gradient_message import Averaging, optimizer_signals
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.layer_memory import LayerMemory
from kungfu.training.graph.learning_rate import LearningRateControl
from kungfu.training.graph.program_variables import FedValues, PublishedValues
from kungfu.training.graph.tracing.trace import StepTrace
from kungfu.training.graph.training_state import TrainingState
from kungfu.training.state.checkpoint_manager import CheckpointManager, TrainedObjects
from kungfu.training.state.registered_sync import PendingSync
from kungfu.training.state.registry import Registry
from kungfu.training.state.rescale_hooks import RescaleHooks
from kungfu.training.telemetry.event_log_writer import EventLogWriter
from kungfu.training.telemetry.step_timer import StepTimer
from kungfu.training.telemetry.trace_recorder import TraceRecorder

if TYPE_CHECKING:
    from kungfu.training.loop.loop_metrics import LoopMetrics

# Stages of a `LossReport` that is sent before the peers have exchanged anything after their last step.
IN_BARRIER, AFTER_STEP = 0, 1


@dataclass(frozen=True)
class RunSettings:
    """The settings that the job gives to a run at its start.

    Args:
        limits: The least and the most peers.
        phase: Of the job; 0 if it has one training.
        steps_before: Steps done in the phases before.
        terms_before: In force at the end of the phase before; ``None`` if this peer was not in it.
        compare_every: Steps from one checksum of the state on the message to the next; 0 for none.
        exits: Reports how the program ends; ``None`` in a program that runs alone.
        is_newest: True until another run begins in this process, with another view.
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
    """Declarations of the program about its loop, between ``attach`` and the first step.

    Args:
        step: The name of the function that is the step.
        batch: The samples of a step, as the loader says; ``None`` without loader.
        accumulation: Adds up micro-batches, where there are any.
        metrics: Of the program's loop.
        data: What the loader walks, by what has to be the same on all peers and in a run that is resumed.
        planned: The epochs that the loader walks.
        described: Further settings that must be the same on all peers, in words.
        has_loop_state: True if a loop of kungfu's gives peers more than the registered values; it says when they have
            it.
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
    """The place of this peer in its job; the barrier and the recovery write it.

    Args:
        rank: In its view; ``None`` once a decision has removed it.
        size: The peers of the view.
        source: The rank from whose state all in this view have continued.
        terms: In force.
        is_in_job: True once it has entered a view: then a step may carry a request.
        stage: Between two steps; see `LossReport`.
        barrier_failure: Of the last barrier, until this peer has recovered from it.
    """

    rank: int | None = 0
    size: int = 1
    source: int = 0
    terms: Terms = field(default_factory=Terms)
    is_in_job: bool = False
    stage: int = AFTER_STEP
    barrier_failure: BaseException | None = None


@dataclass
class Pending:
    """Work that waits for the next barrier, or for the program to be between two steps.

    Args:
        unanswered: The requests of a barrier that has not come to its end, if one has not.
        shadows: What rules in the shadow have requested since the last barrier.
        stop_reason: The program requests the end of training.
        sync: What the last barrier left to do before the next step.
        set_values: By hooks, since the last step.
    """

    unanswered: tuple[Asked, ...] | None = None
    shadows: deque[ShadowAsk] = field(default_factory=partial(deque, maxlen=REMEMBERED))
    stop_reason: str | None = None
    sync: PendingSync | None = None
    set_values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A training run on one peer.

    Args:
        trained: The model, its optimizers, and the replicated state.
        program: The compiled policies as ops.
        graph_state: kungfu's own variables.
        rate: Moves the learning rate, where a policy sets it.
        memory: What layers of the model keep of the data.
        trace: Learns of the step when TensorFlow traces it.
        attachment: Sums over the peers of the view.
        membership: Stands for the job; of one peer in a program that runs alone.
        settings: What the job gives to this run.
        registry: What the program registers beside the model.
        checkpoints: Written and resumed.
        journal: Takes the events of this peer.
        recorder: Writes the trace of the steps, where it is requested.
        timer: The pace of the steps.
        hooks: Called after a change of the membership.
        declared: What the program says of its loop.
        standing: Where this peer stands in its job.
        pending: What waits for a barrier or for the next step.
    """

    trained: TrainedObjects
    program: Program
    graph_state: GraphState
    rate: LearningRateControl | None
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
    hooks: RescaleHooks = field(default_factory=RescaleHooks)
    declared: Declared = field(default_factory=Declared)
    standing: Standing = field(default_factory=Standing)
    pending: Pending = field(default_factory=Pending)

    @property
    def plan(self) -> Plan:
        """The compiled policies."""
        return self.program.plan

    @property
    def state(self) -> TrainingState:
        """The replicated state."""
        return self.trained.state

    @property
    def published(self) -> PublishedValues:
        """The numbers that the program's step gives the policies."""
        return self.graph_state.metrics.published

    @property
    def fed(self) -> FedValues:
        """The numbers that the program gives the policies between steps."""
        return self.graph_state.metrics.fed

    @property
    def rank(self) -> int | None:
        """This peer's rank in its view; ``None`` once a decision has removed it."""
        return self.standing.rank

    @property
    def size(self) -> int:
        """The peers of the view."""
        return self.standing.size

    @property
    def terms(self) -> Terms:
        """The terms in force."""
        return self.standing.terms

    @property
    def left(self) -> bool:
        """True once a decision let this peer go."""
        return self.standing.rank is None

    @property
    def stopped(self) -> bool:
        """True once a policy, or the program, has ended training."""
        return self.standing.terms.stopped

    @property
    def is_alone(self) -> bool:
        """True in a program that runs without a job: no other peer ever waits for it."""
        return self.trace.gate is None

    def steps(self) -> int:
        """The steps done so far."""
        return self.graph_state.progress.steps()

    def average(self, gradients: Any, last: Callable[[Averaging], Any], *, optimizer: Any = None) -> Any:
        """Graph: the means of a nest of gradients over the peers.

        Args:
            gradients: Of this peer.
            last: Makes the means of the step's last average, on whose message rides what the policies need.
            optimizer: The one that applies them, of several.
        """
        trace, limits, peer = self.trace, self.settings.limits, self.trained.peer
        signals = optimizer_signals(self.trained.optimizers[0] if optimizer is None else optimizer)
        with trace.average():
            averaging = Averaging(self.graph_state, self.program, self.attachment, limits, peer, *signals)
            if not trace.is_last_average:
                means, waited_s = average_before_last(averaging, gradients, number=trace.averages)
                trace.waited.append(waited_s)
                return means
            self.published.refuse_missing(trace.published, trace.captured())
            means = last(averaging)
        trace.averaged(means)
        return means
