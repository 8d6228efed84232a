"""kungfu's own variables in the training graph: what a step knows without asking Python."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf

from kungfu.runtime.deciding.data import Position
from kungfu.runtime.deciding.decide import Terms

__all__ = ["Ledger", "Outcomes", "Place", "Posts", "Progress", "Timing"]


def _integer(name: str, value: int = 0) -> tf.Variable:
    return tf.Variable(value, dtype=tf.int64, trainable=False, name=name)


def _moment(name: str) -> tf.Variable:
    return tf.Variable(float("nan"), dtype=tf.float64, trainable=False, name=name)


@dataclass(frozen=True)
class Progress:
    """Agreed and replicated: steps done, and the position in the data; ``samples`` an epoch has, 0 without loader.

    ``batch`` is what rank 0 began with, in samples: those of a step with a loader, its own without; ``trained`` counts
    the samples of all steps so far.
    """

    step: tf.Variable
    epoch: tf.Variable
    offset: tf.Variable
    samples: tf.Variable
    batch: tf.Variable
    trained: tf.Variable

    def position(self) -> Position:
        return Position(int(self.epoch.numpy()), int(self.offset.numpy()))


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
            variable.assign(value)

    def assign_terms(self, terms: Terms) -> None:
        self.global_batch_size.assign(terms.global_batch_size)
        self.target_size.assign(terms.target_size)
        self.refused_size.assign(terms.refused_size)


@dataclass(frozen=True)
class Posts:
    """Requests for a barrier. A message carries ``asked - served``; ``carried`` is what ``asked`` was at that moment.

    They are counters, never a flag: what is asked between the message and the barrier is not lost, it rides on the
    next message.
    """

    asked: tf.Variable
    carried: tf.Variable
    served: tf.Variable
    everywhere: tf.Variable  # the sum over peers that the last message brought

    def serve(self) -> None:
        """The barrier answers every request that the message carried."""
        self.served.assign(self.carried)


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
    """What the rules of the last step came to, and the figures of that step."""

    fired: tf.Variable
    targets: tf.Variable
    saw: tf.Variable
    watched: tf.Variable
    mean_loss: tf.Variable
    samples: tf.Variable  # of this peer
    total_samples: tf.Variable  # of all peers


@dataclass(frozen=True)
class Ledger:
    """All of them. ``order`` is the handle that orders the collectives and the barrier of a step."""

    order: tf.Variable
    progress: Progress
    place: Place
    posts: Posts
    timing: Timing
    outcomes: Outcomes

    @classmethod
    def create(cls, *, rules: int, saw: int, watched: int) -> Ledger:
        """Fresh variables for a program with so many rules, logged values and watched signals."""

        def number(name: str, shape: tuple[int, ...] = (), value: float = float("nan")) -> tf.Variable:
            return tf.Variable(tf.fill(shape, tf.constant(value, tf.float32)), trainable=False, name=name)

        return cls(
            order=_integer("kungfu/order"),
            progress=Progress(
                *(_integer(f"kungfu/{name}") for name in ("step", "epoch", "offset", "samples", "batch", "trained"))
            ),
            place=Place(
                *(_integer(f"kungfu/{name}", value) for name, value in (("version", 0), ("size", 1), ("rank", 0))),
                *(_integer(f"kungfu/{name}") for name in ("view_steps", "global_batch", "target", "refused")),
            ),
            posts=Posts(*(_integer(f"kungfu/{name}") for name in ("asked", "carried", "served", "everywhere"))),
            timing=Timing(
                _moment("kungfu/synchronised"),
                number("kungfu/step_seconds"),
                _moment("kungfu/began"),
                number("kungfu/rescale_seconds"),
            ),
            outcomes=Outcomes(
                tf.Variable([False] * rules, dtype=tf.bool, shape=(rules,), trainable=False, name="kungfu/fired"),
                number("kungfu/targets", (rules,)),
                number("kungfu/saw", (saw,)),
                number("kungfu/watched", (watched,)),
                number("kungfu/mean_loss"),
                number("kungfu/samples", value=0.0),
                number("kungfu/total_samples", value=0.0),
            ),
        )

    def handles(self) -> list[Any]:
        """The resource handles of every variable: what the barrier may write."""
        return [variable.handle for variable in self.variables()]

    def variables(self) -> list[tf.Variable]:
        groups = (self.progress, self.place, self.posts, self.timing, self.outcomes)
        return [self.order, *(getattr(group, field.name) for group in groups for field in fields(group))]
