"""kungfu's own variables in the training graph: what a step knows without asking Python."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.compiler import Outcome
from kungfu.runtime.api import Position, Terms, advanced
from kungfu.training.graph.host import fetch, put
from kungfu.training.graph.tape import Tape

__all__ = ["Figures", "Ledger", "Micro", "Outcomes", "Place", "Posts", "Progress", "RuleOutcomes", "Timing"]


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
class Progress:
    """Agreed and replicated: steps done, and the position in the data; ``samples`` an epoch has, 0 without loader.

    ``batch`` is what rank 0 began with, in samples: those of a step with a loader, its own without; ``trained`` counts
    the samples of all steps so far. ``drops`` is 1 where an epoch ends before a step that would be smaller, else 0.
    """

    step: tf.Variable
    epoch: tf.Variable
    offset: tf.Variable
    samples: tf.Variable
    batch: tf.Variable
    trained: tf.Variable
    drops: tf.Variable

    def steps(self) -> int:
        """Host: the steps done so far."""
        return int(fetch(self.step))

    def position(self) -> Position:
        return Position(int(fetch(self.epoch)), int(fetch(self.offset)))

    def settle(self, global_batch_size: int) -> None:
        """This batch size is in force from here: where remainders are dropped, what is left may be one now."""
        if not int(fetch(self.drops)):
            return
        position, samples = self.position(), int(fetch(self.samples))
        settled = advanced(position, 0, samples=samples, least=global_batch_size)
        put(self.epoch, settled.epoch)
        put(self.offset, settled.offset)


@dataclass(frozen=True)
class Place:
    """This peer's place in its view, and the terms of the view that the graph needs."""

    version: tf.Variable
    size: tf.Variable
    rank: tf.Variable
    steps: tf.Variable  # done in this view
    global_batch_size: tf.Variable
    target_size: tf.Variable
    refused_size: tf.Variable

    def assign(self, *, version: int, size: int, rank: int) -> None:
        """A new view: its steps are counted from 0."""
        for variable, value in ((self.version, version), (self.size, size), (self.rank, rank), (self.steps, 0)):
            put(variable, value)

    def assign_terms(self, terms: Terms) -> None:
        put(self.global_batch_size, terms.global_batch_size)
        put(self.target_size, terms.target_size)
        put(self.refused_size, terms.refused_size)


@dataclass(frozen=True)
class Posts:
    """Requests for a barrier. A message carries ``asked - served``; ``carried`` is what ``asked`` was at that moment.

    They are counters, never a flag: what is asked between the message and the barrier is not lost, it rides on the
    next message. Once ``halted``, a loop in the graph runs no more steps: a barrier failed, or ended training.
    """

    asked: tf.Variable
    carried: tf.Variable
    served: tf.Variable
    everywhere: tf.Variable  # the sum over peers that the last message brought
    halted: tf.Variable

    def serve(self) -> None:
        """The barrier answers every request that the message carried."""
        put(self.served, fetch(self.carried))


@dataclass(frozen=True)
class Timing:
    """Seconds of this peer. ``synchronised`` is the moment of the last all-reduce, NaN where it must not be used.

    ``began`` is the moment of its first step, ``rescale_seconds`` how long the last rescale stopped it.
    """

    synchronised: tf.Variable
    step_seconds: tf.Variable
    began: tf.Variable
    rescale_seconds: tf.Variable


@dataclass(frozen=True)
class Outcomes:
    """What the rules of a step came to: see `kungfu.compiler.Outcome`."""

    fired: tf.Variable
    targets: tf.Variable
    masks: tf.Variable
    saw: tf.Variable
    saw_whole: tf.Variable

    @classmethod
    def create(cls, name: str, *, rules: int, masks: int, saw: int, whole: int) -> Outcomes:
        """Variables for so many rules, masks and logged values, of which so many are whole numbers."""
        return cls(
            _flags(f"{name}/fired", rules),
            _numbers(f"{name}/targets", rules),
            _flags(f"{name}/masks", masks, None),
            _numbers(f"{name}/saw", saw),
            tf.Variable(tf.zeros([whole], tf.int64), trainable=False, name=f"{name}/saw_whole"),
        )

    def fetched(self) -> Outcome:
        """Host: as arrays; what watchers were shown is not kept."""
        nothing = np.zeros(0, np.float32)
        fired, targets, masks, saw = (fetch(one) for one in (self.fired, self.targets, self.masks, self.saw))
        return Outcome(fired, targets, masks, saw, nothing, fetch(self.saw_whole), nothing)

    def assign(self, outcome: Any, *, standing: Any) -> None:
        """Graph: keeps the outcome of the rules for which ``standing`` (bool, one a rule) holds."""
        self.fired.assign(tf.logical_and(outcome.fired, standing))
        self.targets.assign(outcome.targets)
        if self.masks.shape[0]:
            self.masks.assign(outcome.masks)
        self.saw.assign(outcome.inputs)
        if self.saw_whole.shape[0]:
            self.saw_whole.assign(outcome.inputs_whole)


@dataclass(frozen=True)
class RuleOutcomes:
    """Of the last step in which an acting rule fired, for the barrier; of the last step, for the shadows."""

    posted: Outcomes
    shadows: Outcomes


@dataclass(frozen=True)
class Micro:
    """Where this peer is in its share of a step: so many micro-batches ``done``, whether the one at hand is the last,
    their samples and the sum of their losses over samples."""

    done: tf.Variable
    last: tf.Variable
    samples: tf.Variable
    loss: tf.Variable


@dataclass(frozen=True)
class Figures:
    """The figures of the last step: those that the graph goes on with, and on the tape all that the host reads."""

    tape: Tape
    samples: tf.Variable  # of this peer
    total_samples: tf.Variable  # of all peers
    micro: Micro


@dataclass(frozen=True)
class Ledger:
    """All of them. ``order`` is the handle that orders the collectives and the barrier of a step."""

    order: tf.Variable
    progress: Progress
    place: Place
    posts: Posts
    timing: Timing
    rules: RuleOutcomes
    figures: Figures

    @classmethod
    def create(cls, *, rules: int, masks: int, saw: int, tape: Tape, whole: int = 0) -> Ledger:
        """Fresh variables for so many rules, masks and logged values, of which ``whole`` are whole numbers."""
        return cls(
            order=_integer("kungfu/order"),
            progress=Progress(*(_integer(f"kungfu/{field.name}") for field in fields(Progress))),
            place=Place(
                *(_integer(f"kungfu/{name}", value) for name, value in (("version", 0), ("size", 1), ("rank", 0))),
                *(_integer(f"kungfu/{name}") for name in ("view_steps", "global_batch", "target", "refused")),
            ),
            posts=Posts(
                asked=_integer("kungfu/asked"),
                carried=_integer("kungfu/carried"),
                served=_integer("kungfu/served"),
                everywhere=_integer("kungfu/everywhere"),
                halted=_flags("kungfu/halted"),
            ),
            timing=Timing(
                _moment("kungfu/synchronised"),
                _numbers("kungfu/step_seconds"),
                _moment("kungfu/began"),
                _numbers("kungfu/rescale_seconds"),
            ),
            rules=RuleOutcomes(
                Outcomes.create("kungfu/posted", rules=rules, masks=masks, saw=saw, whole=whole),
                Outcomes.create("kungfu/shadows", rules=rules, masks=masks, saw=saw, whole=whole),
            ),
            figures=Figures(
                tape,
                _numbers("kungfu/samples", value=0.0),
                _numbers("kungfu/total_samples", value=0.0),
                Micro(
                    _integer("kungfu/micro_done"),
                    _flags("kungfu/micro_last"),
                    _numbers("kungfu/micro_samples", value=0.0),
                    _numbers("kungfu/micro_loss", value=0.0),
                ),
            ),
        )

    def handles(self) -> list[Any]:
        """The resource handles of every variable: what the barrier may write."""
        return [variable.handle for variable in self.variables()]

    def variables(self) -> list[tf.Variable]:
        groups = (self.progress, self.place, self.posts, self.timing, *self._outcomes())
        figures = (self.figures.tape.row, self.figures.samples, self.figures.total_samples)
        return [self.order, *(getattr(group, field.name) for group in groups for field in fields(group)), *figures]

    def in_share(self) -> list[tf.Variable]:
        """Where this peer is in its share of a step, which no barrier sees."""
        return [getattr(self.figures.micro, field.name) for field in fields(Micro)]

    def _outcomes(self) -> tuple[Outcomes, Outcomes]:
        return self.rules.posted, self.rules.shadows
