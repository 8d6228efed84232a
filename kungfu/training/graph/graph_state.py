"""kungfu's own variables in the training graph: what a step knows without asking Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import Outcome, Plan
from kungfu.compiler.plan import is_whole
from kungfu.control.action import mask_of
from kungfu.runtime.api import Position, Terms, advanced
from kungfu.training.graph.program_variables import FedValues, PublishedValues
from kungfu.training.graph.state_checksum import StateChecksum
from kungfu.training.graph.step_record import StepRecord, make_step_record
from kungfu.training.graph.variable_io import read_variable, write_variable


def _integer(name: str, value: int = 0) -> tf.Variable:
    return tf.Variable(value, dtype=tf.int64, trainable=False, name=name)


def _flags(name: str, *shape: int | None) -> tf.Variable:
    """False throughout; a dimension that is None follows the size of the view."""
    start = tf.zeros([dimension or 0 for dimension in shape], tf.bool)
    return tf.Variable(start, shape=shape, trainable=False, name=name)


def _numbers(name: str, *shape: int, value: float = float("nan")) -> tf.Variable:
    return tf.Variable(tf.fill(shape, tf.constant(value, tf.float32)), trainable=False, name=name)


def _moment(name: str) -> tf.Variable:
    return tf.Variable(float("nan"), dtype=tf.float64, trainable=False, name=name)


@dataclass(frozen=True)
class ProgressVariables:
    """The progress of training: agreed, and replicated.

    Args:
        step: The steps done.
        epoch: The epoch of the next step.
        offset: The samples of that epoch that are done.
        samples: The samples of an epoch; 0 without loader.
        batch: The first batch of rank 0, in samples: those of a step with a loader, its own without.
        trained: The samples of all steps so far.
        epochs: The number of passes of the loader over its data; 0 without loader.
        drops: 1 where an epoch ends before a step that would be smaller, else 0.
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
        """Host: the steps done so far."""
        return int(read_variable(self.step))

    def position(self) -> Position:
        return Position(int(read_variable(self.epoch)), int(read_variable(self.offset)))

    def job_samples(self, global_batch_size: Any) -> Any:
        """Graph: the samples of the whole job; 0 without loader."""
        samples = self.samples.read_value()
        # Where remainders are dropped, the samples to come follow from this batch, which is in force.
        smallest = tf.where(self.drops > 0, tf.minimum(global_batch_size, samples), tf.ones_like(samples))
        smallest = tf.maximum(smallest, 1)  # no batch is agreed while the step is warmed up

        def trained_of(count: Any) -> Any:
            return count // smallest * smallest

        left = trained_of(samples - self.offset) + (self.epochs - self.epoch - 1) * trained_of(samples)
        return tf.where(self.epochs > 0, self.trained + left, tf.zeros_like(left))

    def skip_remainder(self, global_batch_size: int) -> None:
        """This batch size is in force from here: where remainders are dropped, what is left may be one now."""
        if not int(read_variable(self.drops)):  # a smaller last step is done, too
            return
        position, samples = self.position(), int(read_variable(self.samples))
        skipped = advanced(position, 0, samples=samples, least=global_batch_size)
        write_variable(self.epoch, skipped.epoch)
        write_variable(self.offset, skipped.offset)


@dataclass(frozen=True)
class ViewVariables:
    """This peer's place in its view, and the terms of the view that the graph needs.

    Args:
        steps: Done in this view.
        replacement_refused: 1 where it was.
        exchanged: Peers that leave when others have come, or hold the state.
        host_joiners: Getting ready on this peer's host.
    """

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

    def assign(self, *, version: int, size: int, rank: int) -> None:
        """A new view: its steps are counted from 0."""
        for variable, value in ((self.version, version), (self.size, size), (self.rank, rank), (self.steps, 0)):
            write_variable(variable, value)

    def assign_terms(self, terms: Terms) -> None:
        write_variable(self.global_batch_size, terms.global_batch_size)
        write_variable(self.target_size, terms.target_size)
        write_variable(self.refused_size, terms.refused_size)
        write_variable(self.replaced_peers, terms.replaced_peers)
        write_variable(self.replacement_refused, int(terms.replacement_refused))
        write_variable(self.exchanged, len(terms.leaving) + len(terms.departing))


@dataclass(frozen=True)
class PostCount:
    """Requests of one kind for a barrier: counters, never a flag.

    A message carries ``asked - served``. What is asked between the message and the barrier is not lost: it rides on the
    next message.

    Args:
        asked: The requests of this peer so far.
        carried: The value of ``asked`` when the last message was made, and those of rules that have fired since: a
            barrier that the same step holds answers these as well.
        served: The posts that a barrier has answered.
    """

    asked: tf.Variable
    carried: tf.Variable
    served: tf.Variable

    @classmethod
    def create(cls, name: str) -> PostCount:
        return cls(*(_integer(f"kungfu/{name}_{one.name}") for one in fields(cls)))

    def ask(self) -> None:
        """Host: one more request, which rides on the next message."""
        self.asked.assign_add(1)

    def post(self, count: Any) -> None:
        """Graph: this many more requests of rules that fired in this step."""
        self.asked.assign_add(count)
        self.carried.assign_add(count)

    def serve(self) -> None:
        """The barrier answers every request that the message carried."""
        write_variable(self.served, read_variable(self.carried))


@dataclass(frozen=True)
class BarrierPosts:
    """Requests for a barrier.

    Args:
        changes: The posts that change the membership, or may: of rules that rescale, evict or replace, and from
            outside.
        others: The posts that do not: of rules that change a setting, of hooks, and for a checkpoint.
        everywhere: The sum of both over the peers that the last message brought, and 1 where their states differ.
        halted: True if a barrier failed, or ended training: a loop in the graph runs no more steps then.
        checksum: The checksum of the state; if those of the peers differ, a barrier is held too.
    """

    changes: PostCount = field(default_factory=partial(PostCount.create, "changes"))
    others: PostCount = field(default_factory=partial(PostCount.create, "others"))
    everywhere: tf.Variable = field(default_factory=partial(_integer, "kungfu/everywhere"))
    halted: tf.Variable = field(default_factory=partial(_flags, "kungfu/halted"))
    checksum: StateChecksum = field(default_factory=StateChecksum)

    @property
    def counts(self) -> tuple[PostCount, PostCount]:
        return self.changes, self.others

    def serve(self) -> None:
        """The barrier answers every request that the message carried, of both kinds."""
        for count in self.counts:
            count.serve()


@dataclass(frozen=True)
class StepTimes:
    """Seconds of this peer.

    Args:
        synchronised: The moment of the last all-reduce; NaN after a barrier, whose seconds are no step's.
        step_seconds: From the all-reduce before that to the last one.
        began: The moment of its first step.
        rescale_seconds: Seconds for which the last rescale stopped it.
    """

    synchronised: tf.Variable = field(default_factory=partial(_moment, "kungfu/synchronised"))
    step_seconds: tf.Variable = field(default_factory=partial(_numbers, "kungfu/step_seconds"))
    began: tf.Variable = field(default_factory=partial(_moment, "kungfu/began"))
    rescale_seconds: tf.Variable = field(default_factory=partial(_numbers, "kungfu/rescale_seconds"))


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of the rules of a step: see `kungfu.compiler.Outcome`."""

    fired: tf.Variable
    targets: tf.Variable
    masks: tf.Variable
    inputs: tf.Variable
    inputs_whole: tf.Variable

    @classmethod
    def of(cls, plan: Plan, name: str) -> Outcomes:
        logged = [one for rule in plan.rules for one in rule.inputs.values()]
        return cls(
            _flags(f"{name}/fired", len(plan.rules)),
            _numbers(f"{name}/targets", len(plan.rules)),
            _flags(f"{name}/masks", sum(mask_of(rule.action) is not None for rule in plan.rules), None),
            _numbers(f"{name}/saw", len(logged)),
            tf.Variable(tf.zeros([sum(map(is_whole, logged))], tf.int64), trainable=False, name=f"{name}/saw_whole"),
        )

    def fetched(self) -> Outcome:
        """Host: as arrays; what watchers were shown is not kept."""
        nothing = np.zeros(0, np.float32)
        fired, targets, masks, inputs = (
            read_variable(one) for one in (self.fired, self.targets, self.masks, self.inputs)
        )
        return Outcome(fired, targets, masks, inputs, nothing, read_variable(self.inputs_whole), nothing, nothing)

    def assign(self, outcome: Any, *, standing: Any) -> None:
        """Graph: keeps the outcome of the rules for which ``standing`` (bool, one a rule) holds."""
        self.fired.assign(tf.logical_and(outcome.fired, standing))
        self.targets.assign(outcome.targets)
        if self.masks.shape[0]:
            self.masks.assign(outcome.masks)
        self.inputs.assign(outcome.inputs)
        if self.inputs_whole.shape[0]:
            self.inputs_whole.assign(outcome.inputs_whole)


@dataclass(frozen=True)
class RuleOutcomes:
    """The outcomes of the acting rules, for the barrier, and of the shadows in the last step.

    A rule that fires in one step brings the barrier at the end of the next one, in which rules may fire, too. So two
    steps are kept: what fired in an even step, and what fired in an odd one.

    Args:
        posted: The rules that fired since the last barrier, by the remainder of the step's number.
        shadows: The shadows of the last step.
    """

    posted: tuple[Outcomes, Outcomes]
    shadows: Outcomes

    @classmethod
    def of(cls, plan: Plan) -> RuleOutcomes:
        """Variables for what the rules of this plan come to."""
        even, odd, shadows = (Outcomes.of(plan, f"kungfu/{name}") for name in ("posted_even", "posted_odd", "shadows"))
        return cls((even, odd), shadows)

    def post(self, outcome: Any, *, step: Any, standing: Any) -> None:
        """Graph: keeps the outcome of ``step`` for the barrier, of the rules for which ``standing`` holds."""

        def kept(place: Outcomes) -> Any:
            place.assign(outcome, standing=standing)
            return tf.constant(True)

        even, odd = self.posted
        tf.cond(tf.equal(step % 2, 0), lambda: kept(even), lambda: kept(odd))

    def of_step(self, step: int) -> Outcomes:
        """The rules that fired in this step, which is one of the last two."""
        return self.posted[step % 2]


@dataclass(frozen=True)
class MicroBatchState:
    """The position of this peer in its share of a step: the micro-batches ``done``, true if this is the last,
    their samples and the sum of their losses over samples."""

    done: tf.Variable = field(default_factory=partial(_integer, "kungfu/micro_done"))
    last: tf.Variable = field(default_factory=partial(_flags, "kungfu/micro_last"))
    samples: tf.Variable = field(default_factory=partial(_numbers, "kungfu/micro_samples", value=0.0))
    loss: tf.Variable = field(default_factory=partial(_numbers, "kungfu/micro_loss", value=0.0))


@dataclass(frozen=True)
class StepMetrics:
    """The numbers of the last step: those that the graph continues with, and in the record all that the host reads."""

    step_record: StepRecord
    published: PublishedValues
    fed: FedValues
    # Samples of this peer, and of all.
    samples: tf.Variable = field(default_factory=partial(_numbers, "kungfu/samples", value=0.0))
    total_samples: tf.Variable = field(default_factory=partial(_numbers, "kungfu/total_samples", value=0.0))
    micro: MicroBatchState = field(default_factory=MicroBatchState)


@dataclass(frozen=True)
class GraphState:
    """All of them. ``order`` is the handle that orders the collectives and the barrier of a step."""

    rules: RuleOutcomes
    metrics: StepMetrics
    order: tf.Variable = field(default_factory=partial(_integer, "kungfu/order"))
    progress: ProgressVariables = field(default_factory=ProgressVariables)
    view: ViewVariables = field(default_factory=ViewVariables)
    posts: BarrierPosts = field(default_factory=BarrierPosts)
    times: StepTimes = field(default_factory=StepTimes)

    @classmethod
    def of(cls, plan: Plan) -> GraphState:
        """Fresh variables, with those for what the rules of this plan come to, and what it is published and fed."""
        metrics = StepMetrics(make_step_record(plan), PublishedValues(plan), FedValues(plan))
        return cls(RuleOutcomes.of(plan), metrics)

    def handles(self) -> list[Any]:
        """The resource handles of every variable: what the barrier may write."""
        return [variable.handle for variable in self.variables()]

    def variables(self) -> list[tf.Variable]:
        metrics = self.metrics
        parts = (self.progress, self.view, self.times, self.rules, self.posts, metrics.samples, metrics.total_samples)
        return [self.order, metrics.step_record.packed, *_variables_in(parts)]

    def in_share(self) -> list[tf.Variable]:
        """The position of this peer in its share of a step, and the program's values, which no barrier sees."""
        metrics = self.metrics
        return [*_variables_in(metrics.micro), *metrics.published.all(), *metrics.fed.variables()]


def _variables_in(part: Any) -> Iterator[tf.Variable]:
    """The variables of a record, and of the records in it."""
    if isinstance(part, tf.Variable):
        yield part
        return
    for one in part if isinstance(part, tuple) else (getattr(part, one.name) for one in fields(part)):
        yield from _variables_in(one)
