"""All numbers of a step in one variable, so that the host knows the step by one read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from kungfu.compiler import Outcome, Plan
from kungfu.compiler.plan import is_whole
from kungfu.monitor import straggler_fractions
from kungfu.native import handle_of, is_available, load
from kungfu.signal import SCALAR, SOURCES
from kungfu.signal.operation import DType
from kungfu.signal.sources import ONLY_AT_RESCALE

__all__ = ["Column", "StepRecord", "make_step_record", "pack_scalars"]

Group = Literal["step", "local", "agreed", "watched", "watched_whole", "targets", "fired"]

# What the host asks for beside the sources: the epoch of the step, and how long the step took.
_OF_THE_STEP: Mapping[str, DType] = {"epoch": "int64", "seconds": "float32"}


@dataclass(frozen=True)
class Column:
    """One number of the record: its group, and its name there."""

    group: Group
    name: str
    dtype: DType


@dataclass(frozen=True)
class StepRecord:
    """The numbers of the last step: float64, which holds every float32, and whole numbers up to 2 ** 53.

    Attributes:
        columns: What the row begins with.
        row: The numbers. Where a policy measures how fast the peers are, their fractions follow after the columns, one
            for each peer of the view.
    """

    columns: tuple[Column, ...]
    row: tf.Variable

    def write(self, of_the_step: Mapping[str, Any], sources: Mapping[str, Any], outcome: Outcome) -> None:
        """Graph: the step's numbers, when its rules are known; a variable stands for its value."""
        offered = {"step": of_the_step, "local": sources, "agreed": sources}
        vectors = {
            "watched": outcome.watched,
            "watched_whole": outcome.watched_whole,
            "targets": outcome.targets,
            "fired": outcome.fired,
        }
        numbers = [offered[one.group][one.name] for one in self.columns if one.group in offered]
        # What has no column costs the step no node.
        filled = [vectors[group] for group in vectors if any(one.group == group for one in self.columns)]
        fractions = [] if self.row.shape.is_fully_defined() else [outcome.fractions]
        self.row.assign(pack_scalars([*numbers, *filled, *fractions]))

    def step(self, row: Sequence[float]) -> int:
        """The number of the step."""
        return int(row[self._places["agreed", "step"]])

    def loss(self, row: Sequence[float]) -> float:
        """The mean loss of all peers."""
        return float(row[self._places["agreed", "mean_loss"]])

    def view(self, row: Sequence[float]) -> int:
        """The version of the view that did the step."""
        return int(row[self._places["agreed", "view"]])

    def samples_trained(self, row: Sequence[float]) -> int:
        """Those that the job has trained on so far, with the step."""
        return int(row[self._places["agreed", "samples_done"]] + row[self._places["agreed", "total_samples"]])

    def straggler_fractions(self, row: Sequence[float]) -> list[float]:
        """The speed of each peer of the view as a fraction of the median's, in rank order; none if not measured."""
        return list(row[len(self.columns) :])

    def metrics(self, row: Sequence[float], *, peers: Sequence[int] = ()) -> dict[str, Any]:
        """What a line of the metrics tells: of every step the same, and the values of the named signals.

        Args:
            row: That of the step.
            peers: The ids of the peers of its view, in rank order; empty where they are not known.
        """
        place, numbers = self._places, row
        samples, seconds = numbers[place["agreed", "total_samples"]], numbers[place["step", "seconds"]]
        return {
            "step": int(numbers[place["agreed", "step"]]),
            "epoch": int(numbers[place["step", "epoch"]]),
            "size": int(numbers[place["agreed", "size"]]),
            "batch": int(samples),
            "loss": numbers[place["agreed", "mean_loss"]],
            "samples_per_s": samples / seconds if seconds > 0 else None,
            "learning_rate": numbers[place["agreed", "learning_rate"]],
            **{name: kind(numbers[index]) for name, index, kind in self._watched},
            **self._fractions_by_id(row, peers),
        }

    def _fractions_by_id(self, row: Sequence[float], peers: Sequence[int]) -> dict[str, Any]:
        fractions = self.straggler_fractions(row)
        # No policy measures them, or the view of the step is over, and nobody remembers who was in it.
        if not fractions or len(fractions) != len(peers):
            return {}
        told = {str(peer): round(one, 4) for peer, one in zip(peers, fractions, strict=True)}
        return {straggler_fractions.__name__: told}

    def fired(self, row: Sequence[float]) -> set[str]:
        """The names of the rules that fired, those in the shadow too."""
        return {name for (group, name), index in self._places.items() if group == "fired" and row[index]}

    @cached_property
    def _watched(self) -> Sequence[tuple[str, int, type]]:
        """Name, place and type; a whole number stands once more at the end, with all its digits."""
        kinds: Mapping[str, type] = {"watched": float, "watched_whole": int}
        return [(one.name, at, kinds[one.group]) for at, one in enumerate(self.columns) if one.group in kinds]

    @cached_property
    def _places(self) -> Mapping[tuple[Group, str], int]:
        return {(one.group, one.name): index for index, one in enumerate(self.columns)}


def make_step_record(plan: Plan) -> StepRecord:
    """The record of a plan's steps: every source that is one number, the reductions of the gradients, and the rules.

    Those of the user's own are in it where a rule uses them.
    """
    columns = tuple(_columns(plan))
    # Its length follows the size of the view where there is a fraction for each peer.
    shape = [len(columns)] if plan.straggler_fractions is None else [None]
    nothing = np.full(len(columns), np.nan)
    row = tf.Variable(nothing, shape=shape, dtype=tf.float64, trainable=False, name="kungfu/tape")
    return StepRecord(columns, row)


def _columns(plan: Plan) -> Iterator[Column]:
    for name, dtype in _OF_THE_STEP.items():
        yield Column("step", name, dtype)
    for name, kind in SOURCES.items():
        if kind.type.shape == SCALAR and name not in ONLY_AT_RESCALE:
            yield Column(kind.placement, name, kind.type.dtype)
    for name, kind in plan.source_kinds.items():
        if kind.given_by != "step":
            yield Column(kind.placement, name, kind.type.dtype)
    for name, reduction in plan.gradient_reductions.items():
        yield Column(reduction.placement, name, "float32")
    yield from _vector("watched", plan.watched, "float32")
    whole = [name for name, one in plan.watched_signals.items() if is_whole(one)]
    yield from _vector("watched_whole", whole, "int64")
    rules = [one.name for one in plan.rules]
    yield from _vector("targets", rules, "float32")
    yield from _vector("fired", rules, "bool")


def _vector(group: Group, names: Sequence[str], dtype: DType) -> Iterator[Column]:
    for name in names:
        yield Column(group, name, dtype)


def pack_scalars(numbers: Sequence[Any]) -> Any:
    """Graph: float64 vector of scalars and vectors in their order, which holds whole numbers up to 2 ** 53.

    Args:
        numbers: A variable may stand for its value.

    Cost:
        One node. Without the native library, with TensorFlow's own ops, each number costs the step a read, a cast and a
        part of a stack: some 2 microseconds, and twice that while training has the caches.
    """
    # No compiler on this machine.
    if not is_available():
        return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in numbers], axis=0)
    # The op takes variables first, and puts each input where it belongs by this order.
    read = [place for place, one in enumerate(numbers) if isinstance(one, tf.Variable)]
    given = [place for place, one in enumerate(numbers) if not isinstance(one, tf.Variable)]
    where = {place: turn for turn, place in enumerate([*read, *given])}
    with tf.device("/CPU:0"):
        return load().ops.kungfu_numbers(
            [handle_of(numbers[place]) for place in read],
            [tf.convert_to_tensor(numbers[place]) for place in given],
            order=[where[place] for place in range(len(numbers))],
        )
