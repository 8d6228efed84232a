"""kungfu's variables in the training graph: the values that a step reads without a call into Python."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import CompiledPolicies, Outcome
from kungfu.compiler.compiled_policies import is_whole
from kungfu.control.action import Evict, Rescale, mask_of
from kungfu.runtime.api import Limits, Position, Terms, advanced
from kungfu.training.graph.program_variables import FedValues, PublishedValues
from kungfu.training.graph.step_record import StepRecord, make_step_record
from kungfu.training.graph.variable_io import read_variable, write_variable


def _integer(name: str, value: int = 0) -> tf.Variable:
    return tf.Variable(value, dtype=tf.int64, trainable=False, name=name)


def _flags(name: str, *shape: int | None) -> tf.Variable:
    """A bool variable, all False; a dimension of None follows the size of the view."""
    start = tf.zeros([dimension or 0 for dimension in shape], tf.bool)
    return tf.Variable(start, shape=shape, trainable=False, name=name)


def _numbers(name: str, *shape: int, value: float = float("nan")) -> tf.Variable:
    return tf.Variable(tf.fill(shape, tf.constant(value, tf.float32)), trainable=False, name=name)


def _moment(name: str) -> tf.Variable:
    return tf.Variable(float("nan"), dtype=tf.float64, trainable=False, name=name)


@dataclass(frozen=True)
class ProgressVariables:
    """The progress of training; equal on all peers, and a part of the replicated state.

    Args:
        offset: The number of samples of that epoch that are done.
        samples: The number of samples in an epoch; 0 without a loader.
        batch: The size of the first batch, in samples: with a loader, of the whole step; otherwise, of rank 0 alone.
        trained: The number of samples in all steps so far.
        epochs: The number of passes of the loader over its data; 0 without a loader.
        drops: 1 if an epoch leaves out a last step with fewer samples than the others, else 0.
    """

    step: tf.Variable = field(default_factory=partial(_integer, "kungfu/step"))
    epoch: tf.Variable = field(default_factory=partial(_integer, "kungfu/epoch"))
    offset: tf.Variable = field(default_factory=partial(_integer, "kungfu/offset"))
    samples: tf.Variable = field(default_factory=partial(_integer, "kungfu/samples"))
    batch: tf.Variable = field(default_factory=partial(_integer, "kungfu/batch"))
    trained: tf.Variable = field(default_factory=partial(_integer, "kungfu/trained"))
    epochs: tf.Variable = field(default_factory=partial(_integer, "kungfu/epochs"))
    drops: tf.Variable = field(default_factory=partial(_integer, "kungfu/drops"))

    def steps(self) -> int:
        """Host: the number of steps done so far."""
        return int(read_variable(self.step))

    def position(self) -> Position:
        return Position(int(read_variable(self.epoch)), int(read_variable(self.offset)))

    def job_samples(self, global_batch_size: Any) -> Any:
        """Graph: the number of samples of the whole job; 0 without a loader."""
        samples = self.samples.read_value()
        # If remainders are dropped, the remaining samples of the job depend on the batch size in force.
        smallest = tf.where(self.drops > 0, tf.minimum(global_batch_size, samples), tf.ones_like(samples))
        smallest = tf.maximum(smallest, 1)  # no batch size is agreed yet during the warm-up

        def trained_of(count: Any) -> Any:
            return count // smallest * smallest

        left = trained_of(samples - self.offset) + (self.epochs - self.epoch - 1) * trained_of(samples)
        return tf.where(self.epochs > 0, self.trained + left, tf.zeros_like(left))

    def skip_remainder(self, global_batch_size: int) -> None:
        """Host: begins the next epoch if remainders are dropped and this new batch size leaves only a remainder."""
        if not int(read_variable(self.drops)):  # a smaller last step is trained too
            return
        position, samples = self.position(), int(read_variable(self.samples))
        skipped = advanced(position, 0, samples=samples, least=global_batch_size)
        write_variable(self.epoch, skipped.epoch)
        write_variable(self.offset, skipped.offset)


@dataclass(frozen=True)
class ViewVariables:
    """This peer's rank in its view, and the view's sizes and batch size for the graph. ``exchanged``: the number of
    peers that leave once their replacements have joined, or have received the state. ``host_joiners``: the number of
    joiners starting on this host."""

    version: tf.Variable = field(default_factory=partial(_integer, "kungfu/version"))
    size: tf.Variable = field(default_factory=partial(_integer, "kungfu/size", value=1))
    rank: tf.Variable = field(default_factory=partial(_integer, "kungfu/rank"))
    steps: tf.Variable = field(default_factory=partial(_integer, "kungfu/view_steps"))
    global_batch_size: tf.Variable = field(default_factory=partial(_integer, "kungfu/global_batch"))
    target_size: tf.Variable = field(default_factory=partial(_integer, "kungfu/target"))
    refused_size: tf.Variable = field(default_factory=partial(_integer, "kungfu/refused"))
    replacement_refused: tf.Variable = field(default_factory=partial(_integer, "kungfu/replacement_refused"))
    exchanged: tf.Variable = field(default_factory=partial(_integer, "kungfu/exchanged"))
    host_joiners: tf.Variable = field(default_factory=partial(_integer, "kungfu/host_joiners"))
    replaced_peers: tf.Variable = field(default_factory=partial(_integer, "kungfu/replaced"))
    requested_rate: tf.Variable = field(default_factory=partial(_numbers, "kungfu/requested_rate", value=0.0))
    min_size: tf.Variable = field(default_factory=partial(_integer, "kungfu/min_size", value=1))
    max_size: tf.Variable = field(default_factory=partial(_integer, "kungfu/max_size", value=1))

    def assign(self, *, version: int, size: int, rank: int) -> None:
        """Stores the version, size and rank of a new view, and sets the number of its steps to 0."""
        for variable, value in ((self.version, version), (self.size, size), (self.rank, rank), (self.steps, 0)):
            write_variable(variable, value)

    def assign_limits(self, limits: Limits) -> None:
        """Sets the limits of the size, in peers; an agreed change of the terms may replace them."""
        write_variable(self.min_size, limits.minimum)
        write_variable(self.max_size, limits.maximum)

    def assign_terms(self, terms: Terms) -> None:
        write_variable(self.global_batch_size, terms.global_batch_size)
        write_variable(self.target_size, terms.target_size)
        write_variable(self.refused_size, terms.refused_size)
        write_variable(self.replaced_peers, terms.replaced_peers)
        write_variable(self.requested_rate, 0.0 if terms.ramp is None else terms.ramp.asked)
        write_variable(self.replacement_refused, int(terms.replacement_refused))
        write_variable(self.exchanged, len(terms.leaving) + len(terms.departing))


@dataclass(frozen=True)
class PostCount:
    """Counts the requests of one kind for a barrier. A message carries ``asked - served``, so a request made between
    the message and the barrier is not lost, but rides on the next message."""

    asked: tf.Variable  # the requests of this peer so far
    # ``asked`` as of the last message, plus the requests of rules that fired since, which the same barrier answers.
    carried: tf.Variable
    served: tf.Variable  # the requests that a barrier has answered

    @classmethod
    def create(cls, name: str) -> PostCount:
        return cls(*(_integer(f"kungfu/{name}_{one.name}") for one in fields(cls)))

    def ask(self) -> None:
        """Host: counts one more request of this peer for a barrier; the request rides on the next message."""
        self.asked.assign_add(1)

    def post(self, count: Any) -> None:
        """Graph: adds ``count`` requests for a barrier, made by rules that fired in this step."""
        self.asked.assign_add(count)
        self.carried.assign_add(count)

    def serve(self) -> None:
        """Marks all requests that the message carried as answered by the barrier."""
        write_variable(self.served, read_variable(self.carried))


# A checksum in a message has 30 bits, in words of 6 bits, so that the sum of a word's squares is exact in float32 up to
# 4,227 peers.
_WORDS, _BITS = 5, 6
CHECKSUM_FLOATS = 2 * _WORDS


@dataclass(frozen=True)
class StateChecksum:
    """This peer's checksum of the shared state in the message of a step, and the result of the last comparison.

    Between two steps only the program can change the shared variables: a callback that draws a learning rate without a
    seed, for example, gives peers different values. Barriers compare the state, but may be far apart. So every N steps
    each peer adds a checksum of its shared variables to the message; if the checksums differ, a barrier follows.

    Args:
        numbers: float32, the words of the checksum and their squares; zeros in a step without a comparison.
        differs: int64, 1 if the last message showed that the checksums of the peers differ.
    """

    numbers: tf.Variable = field(default_factory=partial(_numbers, "kungfu/checksum", CHECKSUM_FLOATS, value=0.0))
    differs: tf.Variable = field(default_factory=partial(_integer, "kungfu/differs"))

    def offer(self, checksum: int | None) -> None:
        """Host: adds a checksum to the message of the next step; with ``None`` that step compares nothing."""
        words = [0 if checksum is None else checksum >> _BITS * place & (1 << _BITS) - 1 for place in range(_WORDS)]
        write_variable(self.numbers, [float(one) for one in (*words, *(word**2 for word in words))])

    def compared(self, sums: Any, size: Any) -> Any:
        """Graph: 1 if the peers' checksums differ, else 0 (int64), from the sums of ``numbers`` over the peers."""
        # Numbers x of n peers are all equal exactly if n * sum(x**2) == sum(x)**2.
        words, squares = tf.split(tf.cast(sums, tf.float64), 2)
        unlike = tf.reduce_any(tf.not_equal(tf.cast(size, tf.float64) * squares, tf.square(words)))  # pow rounds
        return self.differs.assign(tf.cast(unlike, tf.int64))

    def is_unlike(self) -> bool:
        """Host: True if the last message showed that the checksums differ."""
        return bool(read_variable(self.differs))


@dataclass(frozen=True)
class BarrierPosts:
    """Requests for a barrier. ``changes`` may change the membership; they come from rules that rescale, evict or
    replace, or from outside the program. ``others`` change a setting, call hooks, or save a checkpoint."""

    changes: PostCount = field(default_factory=partial(PostCount.create, "changes"))
    others: PostCount = field(default_factory=partial(PostCount.create, "others"))
    # The sum of both counts over the peers, from the last message; 1 more if the peers' states differ.
    everywhere: tf.Variable = field(default_factory=partial(_integer, "kungfu/everywhere"))
    # True if a barrier failed, or ended training: a loop in the graph then runs no more steps.
    halted: tf.Variable = field(default_factory=partial(_flags, "kungfu/halted"))
    checksum: StateChecksum = field(default_factory=StateChecksum)

    @property
    def counts(self) -> tuple[PostCount, PostCount]:
        return self.changes, self.others

    def serve(self) -> None:
        """Marks all requests that the message carried, of both kinds, as answered by the barrier."""
        for count in self.counts:
            count.serve()


@dataclass(frozen=True)
class StepTimes:
    """Times of this peer in seconds. ``began``: the time of the first message; ``rescale_seconds``: the length of the
    stop for the last rescale."""

    # The time of the last all-reduce, and the seconds between the last two. The time is NaN after a barrier, since the
    # duration of a barrier belongs to no step.
    synchronised: tf.Variable = field(default_factory=partial(_moment, "kungfu/synchronised"))
    step_seconds: tf.Variable = field(default_factory=partial(_numbers, "kungfu/step_seconds"))
    began: tf.Variable = field(default_factory=partial(_moment, "kungfu/began"))
    rescale_seconds: tf.Variable = field(default_factory=partial(_numbers, "kungfu/rescale_seconds"))


@dataclass(frozen=True)
class Outcomes:
    """The decisions of a step's rules, and the values they read, as variables; see `kungfu.compiler.Outcome`."""

    fired: tf.Variable
    targets: tf.Variable
    masks: tf.Variable
    inputs: tf.Variable
    inputs_whole: tf.Variable

    @classmethod
    def of(cls, plan: CompiledPolicies, name: str) -> Outcomes:
        logged = [one for rule in plan.rules for one in rule.inputs.values()]
        return cls(
            _flags(f"{name}/fired", len(plan.rules)),
            _numbers(f"{name}/targets", len(plan.rules)),
            _flags(f"{name}/masks", sum(mask_of(rule.action) is not None for rule in plan.rules), None),
            _numbers(f"{name}/saw", len(logged)),
            tf.Variable(tf.zeros([sum(map(is_whole, logged))], tf.int64), trainable=False, name=f"{name}/saw_whole"),
        )

    def fetched(self) -> Outcome:
        """Host: the outcomes as arrays, without the values of signals for status lines."""
        nothing = np.zeros(0, np.float32)
        fired, targets, masks, inputs = (
            read_variable(one) for one in (self.fired, self.targets, self.masks, self.inputs)
        )
        return Outcome(fired, targets, masks, inputs, nothing, read_variable(self.inputs_whole), nothing, nothing)

    def assign(self, outcome: Any, *, standing: Any) -> None:
        """Graph: stores an outcome; only rules that have True in ``standing`` (bool, by rule) may count as fired."""
        self.fired.assign(tf.logical_and(outcome.fired, standing))
        self.targets.assign(outcome.targets)
        if self.masks.shape[0]:
            self.masks.assign(outcome.masks)
        self.inputs.assign(outcome.inputs)
        if self.inputs_whole.shape[0]:
            self.inputs_whole.assign(outcome.inputs_whole)


@dataclass(frozen=True)
class RuleOutcomes:
    """The outcomes of the acting rules, for the barrier, and of the shadow rules in the last step. A rule that fires in
    one step causes the barrier at the end of the next step. Rules may fire in both steps, so the outcomes of both steps
    are kept."""

    standing: tf.Variable  # bool, one per rule: True for an acting rule, unless a hold has stopped its requests
    posted: tuple[Outcomes, Outcomes]  # of the rules that fired since the last barrier, by step number modulo 2
    shadows: Outcomes  # of the shadow rules in the last step

    @classmethod
    def of(cls, plan: CompiledPolicies) -> RuleOutcomes:
        """Creates the variables for the outcomes of a plan's rules."""
        even, odd, shadows = (Outcomes.of(plan, f"kungfu/{name}") for name in ("posted_even", "posted_odd", "shadows"))
        rules = cls(_flags("kungfu/standing", len(plan.rules)), (even, odd), shadows)
        rules.put_in_force(plan, held=())
        return rules

    def put_in_force(self, plan: CompiledPolicies, *, held: Collection[str]) -> None:
        """Host: lets the acting rules request barriers, except those for another size that a hold has stopped."""
        stopped = [one for one in plan.rules if one.name in held and isinstance(one.action, (Rescale, Evict))]
        standing = [one.posts and one not in stopped for one in plan.rules]
        write_variable(self.standing, standing)

    def post(self, outcome: Any, *, step: Any) -> None:
        """Graph: keeps the outcome of step ``step`` for the barrier, for the rules that may request one."""
        standing = self.standing.read_value()

        def kept(place: Outcomes) -> Any:
            place.assign(outcome, standing=standing)
            return tf.constant(True)

        even, odd = self.posted
        tf.cond(tf.equal(step % 2, 0), lambda: kept(even), lambda: kept(odd))

    def of_step(self, step: int) -> Outcomes:
        """The outcomes of a step, which must be one of the last two."""
        return self.posted[step % 2]


@dataclass(frozen=True)
class MicroBatchState:
    """This peer's position in its share of a step: the number of micro-batches ``done``, ``last`` (True in the last
    micro-batch), the number of ``batches`` with samples, and the sums so far of samples and of losses times samples.

    If a policy reads the ``variance`` of the gradients over the micro-batches of a share: this variance (NaN if there
    is none), and the sum so far of samples times squared norms, ``squares``."""

    done: tf.Variable = field(default_factory=partial(_integer, "kungfu/micro_done"))
    last: tf.Variable = field(default_factory=partial(_flags, "kungfu/micro_last"))
    samples: tf.Variable = field(default_factory=partial(_numbers, "kungfu/micro_samples", value=0.0))
    loss: tf.Variable = field(default_factory=partial(_numbers, "kungfu/micro_loss", value=0.0))
    batches: tf.Variable = field(default_factory=partial(_integer, "kungfu/micro_batches"))
    squares: tf.Variable = field(default_factory=partial(_moment, "kungfu/micro_squares"))
    variance: tf.Variable = field(default_factory=partial(_moment, "kungfu/micro_variance"))


@dataclass(frozen=True)
class StepMetrics:
    """The numbers of the last step that the graph reads again, and the record of all numbers of a step for the host."""

    step_record: StepRecord
    published: PublishedValues
    fed: FedValues
    # The samples of this peer, and of all peers.
    samples: tf.Variable = field(default_factory=partial(_numbers, "kungfu/samples", value=0.0))
    total_samples: tf.Variable = field(default_factory=partial(_numbers, "kungfu/total_samples", value=0.0))
    micro: MicroBatchState = field(default_factory=MicroBatchState)


@dataclass(frozen=True)
class GraphState:
    """kungfu's variables in the graph. The handle of ``order`` orders a step's collectives and the step's barrier."""

    rules: RuleOutcomes
    metrics: StepMetrics
    order: tf.Variable = field(default_factory=partial(_integer, "kungfu/order"))
    progress: ProgressVariables = field(default_factory=ProgressVariables)
    view: ViewVariables = field(default_factory=ViewVariables)
    posts: BarrierPosts = field(default_factory=BarrierPosts)
    times: StepTimes = field(default_factory=StepTimes)

    @classmethod
    def of(cls, plan: CompiledPolicies, *, averages_models: bool = False) -> GraphState:
        """Creates fresh variables, including those for the plan's outcomes, published values and fed values."""
        record = make_step_record(plan, averages_models=averages_models)
        metrics = StepMetrics(record, PublishedValues(plan), FedValues(plan))
        return cls(RuleOutcomes.of(plan), metrics)

    def handles(self) -> list[Any]:
        """The resource handles of all variables, which the barrier may write."""
        return [variable.handle for variable in self.variables()]

    def variables(self) -> list[tf.Variable]:
        metrics = self.metrics
        parts = (self.progress, self.view, self.times, self.rules, self.posts, metrics.samples, metrics.total_samples)
        return [self.order, metrics.step_record.packed, *_variables_in(parts)]

    def samples_of_step(self) -> Any:
        """Graph: the samples of all peers in a step, from the position; without a loader, the batch in force."""
        batch, samples = self.view.global_batch_size.read_value(), self.progress.samples.read_value()
        return tf.where(samples > 0, tf.minimum(batch, samples - self.progress.offset), batch)

    def in_share(self) -> list[tf.Variable]:
        """The variables that no barrier reads: this peer's position in its share, and the values published and fed."""
        metrics = self.metrics
        return [*_variables_in(metrics.micro), *metrics.published.all(), *metrics.fed.variables()]

    def of_first_message(self) -> list[tf.Variable]:
        """The variables in which a step's message leaves what must not be left if a later message of the step fails:
        the rules that fired, and the count of fed numbers that were carried."""
        return [*(one.fired for one in self.rules.posted), *self.metrics.fed.variables()[-1:]]


def _variables_in(part: Any) -> Iterator[tf.Variable]:
    """The variables in a dataclass, and in the dataclasses nested in it."""
    if isinstance(part, tf.Variable):
        yield part
        return
    for one in part if isinstance(part, tuple) else (getattr(part, one.name) for one in fields(part)):
        yield from _variables_in(one)
