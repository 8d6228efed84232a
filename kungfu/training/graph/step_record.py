"""All numbers of a step in one variable, so that the host needs a single read per step.

The variable is *packed*: it omits sources that are derived from other sources. From the packed numbers the host
computes the *row*, with a number for every column, when the row is needed.

As nodes of the graph the derived sources would cost every step about 40 microseconds, whether a policy uses them or
not. The sources that a policy uses are in the graph too, in `kungfu.training.graph.gradient_message`; both results are
bitwise equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from kungfu.compiler import CompiledPolicies, Outcome
from kungfu.compiler.compiled_policies import is_whole
from kungfu.compiler.passes.synchronising import STEPS_SINCE_AVERAGE
from kungfu.monitor import straggler_fractions
from kungfu.native import handle_of, is_available, load
from kungfu.signal import SCALAR, SOURCES
from kungfu.signal.operation import DType
from kungfu.signal.sources import ONLY_AT_RESCALE


class MessageNumbers(NamedTuple):
    """The numbers from which other sources of a step are computed; in the graph they are tensors or variables."""

    steps: Any  # the number of steps before this one
    size: Any  # of the view
    batch: Any  # the global batch size in force
    replacement_refused: Any  # 1 if a replacement was refused, else 0
    exchanged: Any  # the number of peers that leave after their replacements arrive
    target_size: Any  # of the rescale under way; 0 without one
    trained: Any  # the samples trained on before this step
    epoch_samples: Any  # 0 without a loader
    epoch: Any  # of the step
    offset: Any  # the samples of this epoch that are done
    epochs: Any  # the number of passes of the loader over its data; 0 without a loader
    drops: Any  # 1 if an epoch ends before a step that would be smaller, else 0
    now: Any  # the time at which the gradients were ready, in seconds
    began: Any  # the time of this peer's first step
    header: Any  # the sums of samples, losses times samples, posts, and posts that change the membership


# The number of all inputs, which come first in the packed record, and the indices of three inputs.
_INPUTS = len(MessageNumbers._fields) + 3
_STEPS, _SAMPLES, _LOSS = 0, _INPUTS - 4, _INPUTS - 3


def given_numbers(packed: Sequence[float]) -> MessageNumbers:
    """Host: the numbers from which other sources are computed, read from the front of a packed record."""
    return MessageNumbers(*[*packed[:_SAMPLES], packed[_SAMPLES:_INPUTS]])


def _job_samples(given: MessageNumbers) -> float:
    """The number of samples of the job; see `kungfu.training.graph.graph_state.ProgressVariables.job_samples`."""
    if not given.epochs > 0:
        return 0.0
    least = max(min(given.batch, given.epoch_samples) if given.drops > 0 else 1.0, 1.0)
    left = (given.epoch_samples - given.offset) // least * least
    whole = given.epoch_samples // least * least
    return float(given.trained + left + (given.epochs - given.epoch - 1) * whole)


def _mean_loss(given: MessageNumbers) -> float:
    samples, loss = given.header[:2]
    # Without samples on any peer there is no loss.
    return _float32(loss / samples) if samples else float("nan")


def _clock_seconds(given: MessageNumbers) -> float:
    elapsed_s = given.now - given.began
    return _float32(elapsed_s) if elapsed_s > 0 else 0.0  # 0 in the first step, which starts the clock


def _float32(number: float) -> float:
    """Rounds to float32; the rounded quotient of two float32 values equals the result of a division in float32."""
    return float(np.float32(number))


DERIVED_SOURCES: Mapping[str, Callable[[MessageNumbers], float]] = {
    "step": lambda given: given.steps + 1,
    "local_batch_size": lambda given: _float32(_float32(given.batch) / given.size),
    "global_batch_size": lambda given: _float32(given.batch),
    "job_samples": _job_samples,
    "clock_seconds": _clock_seconds,
    "replacement_refused": lambda given: float(given.replacement_refused > 0),
    "replacing": lambda given: float(given.exchanged > 0),
    "mean_loss": _mean_loss,
    "total_samples": lambda given: given.header[0],
    "pending": lambda given: float(given.header[3] > 0 or given.target_size > 0),
    "barrier_due": lambda given: float(given.header[2] > 0),
    "change_due": lambda given: float(given.header[3] > 0),
    "target_size": lambda given: given.target_size,
}

Group = Literal["step", "local", "agreed", "watched", "watched_whole", "targets", "fired"]

# The value that the host needs besides the sources: the duration of the step.
_OF_THE_STEP: Mapping[str, DType] = {"seconds": "float32"}


@dataclass(frozen=True)
class Column:
    """One number of the record: its group, and its name in the group."""

    group: Group
    name: str
    dtype: DType


@dataclass(frozen=True)
class StepRecord:
    """The numbers of the last step as float64, which is exact for every float32 and for integers up to 2 ** 53.

    Attributes:
        columns: The columns at the beginning of the row. If a policy measures the speeds of the peers, the fractions of
            the median speed follow the columns, one for each peer of the view.
        packed: The numbers as the graph writes them.
    """

    columns: tuple[Column, ...]
    packed: tf.Variable
    # A cache: the trace and the metrics both request the row of a step.
    _newest: list[tuple[Sequence[float], list[float]]] = field(default_factory=lambda: [([], [])], repr=False)

    def write(
        self, given: MessageNumbers, of_the_step: Mapping[str, Any], sources: Mapping[str, Any], outcome: Outcome
    ) -> None:
        """Graph: writes the step's numbers once the rules are evaluated; variables may be passed instead of values."""
        offered = {"step": of_the_step, "local": sources, "agreed": sources}
        vectors = {
            "watched": outcome.watched,
            "watched_whole": outcome.watched_whole,
            "targets": outcome.targets,
            "fired": outcome.fired,
        }
        numbers = [offered[group][name] for group, name in self._packed_indices if group in offered]
        # A number without a column needs no node in the step.
        filled = [vectors[group] for group in vectors if any(one.group == group for one in self.columns)]
        fractions = [] if self.packed.shape.is_fully_defined() else [outcome.fractions]
        self.packed.assign(pack_scalars([*given, *numbers, *filled, *fractions]))

    def row(self, packed: Sequence[float]) -> list[float]:
        """Host: the numbers in ``packed`` and those derived from them, in the order of the columns."""
        newest, row = self._newest[0]
        if newest is packed:
            return row
        given = given_numbers(packed)
        row = list(self._in_columns(packed))
        for index, derive in self._derived:
            row[index] = derive(given)
        row += self.straggler_fractions(packed)
        self._newest[0] = packed, row
        return row

    def step(self, packed: Sequence[float]) -> int:
        """The number of the step."""
        return int(packed[_STEPS]) + 1

    def loss(self, packed: Sequence[float]) -> float:
        """The mean loss of all peers, in float64; NaN if no peer had samples."""
        samples = packed[_SAMPLES]
        return packed[_LOSS] / samples if samples else math.nan

    def view(self, packed: Sequence[float]) -> int:
        """The version of the view in which the step ran."""
        return int(packed[self._packed_indices["agreed", "view"]])

    def fired(self, packed: Sequence[float]) -> set[str]:
        """The names of the rules that fired, including shadow rules."""
        return {name for (group, name), index in self._packed_indices.items() if group == "fired" and packed[index]}

    def straggler_fractions(self, packed: Sequence[float]) -> list[float]:
        """The speed of each peer as a fraction of the view's median speed, in rank order; empty if not measured."""
        return list(packed[_INPUTS + len(self._packed_indices) :])

    def metrics(self, packed: Sequence[float], *, peers: Sequence[int] = ()) -> dict[str, Any]:
        """The fields of a line of ``metrics.jsonl``: those common to every step, and the values of the named signals.

        Args:
            peers: The ids of the peers of the step's view, in rank order; empty if unknown.
        """
        index, numbers, since = self._indices, self.row(packed), STEPS_SINCE_AVERAGE.source
        samples, seconds = numbers[index["agreed", "total_samples"]], numbers[index["step", "seconds"]]
        return {
            "step": int(numbers[index["agreed", "step"]]),
            "view": int(numbers[index["agreed", "view"]]),
            "epoch": int(numbers[index["agreed", "epoch"]]),
            "size": int(numbers[index["agreed", "size"]]),
            "batch": int(samples),
            "loss": numbers[index["agreed", "mean_loss"]],
            "samples_per_s": samples / seconds if seconds > 0 else None,
            "learning_rate": numbers[index["agreed", "learning_rate"]],
            **({since: int(numbers[index["agreed", since]])} if ("agreed", since) in index else {}),
            **{name: kind(numbers[at]) for name, at, kind in self._watched},
            **self._fractions_by_id(packed, peers),
        }

    def samples_trained(self, packed: Sequence[float]) -> int:
        """The number of samples on which the job has trained so far, including this step."""
        given = given_numbers(packed)
        return int(given.trained + given.header[0])

    def _fractions_by_id(self, packed: Sequence[float], peers: Sequence[int]) -> dict[str, Any]:
        fractions = self.straggler_fractions(packed)
        # No policy measures the fractions, or the view of the step is over and its peers are no longer known.
        if not fractions or len(fractions) != len(peers):
            return {}
        by_id = {str(peer): round(one, 4) for peer, one in zip(peers, fractions, strict=True)}
        return {straggler_fractions.__name__: by_id}

    @cached_property
    def _watched(self) -> Sequence[tuple[str, int, type]]:
        """Name, index and type of each signal for status lines; an integer has a second entry that keeps all digits."""
        kinds: Mapping[str, type] = {"watched": float, "watched_whole": int}
        return [(one.name, at, kinds[one.group]) for at, one in enumerate(self.columns) if one.group in kinds]

    @cached_property
    def _indices(self) -> Mapping[tuple[Group, str], int]:
        return {(one.group, one.name): index for index, one in enumerate(self.columns)}

    @cached_property
    def _packed_indices(self) -> Mapping[tuple[Group, str], int]:
        """The index in the packed record of each column that is packed unchanged."""
        as_they_are = (one for one in self.columns if not _is_derived(one))
        return {(one.group, one.name): index for index, one in enumerate(as_they_are, start=_INPUTS)}

    @cached_property
    def _in_columns(self) -> Callable[[Sequence[float]], Sequence[float]]:
        """A function that reads all columns from a packed record; derived columns get placeholders, replaced later."""
        indices = self._packed_indices
        return itemgetter(*(indices.get((one.group, one.name), 0) for one in self.columns))

    @cached_property
    def _derived(self) -> Sequence[tuple[int, Callable[[MessageNumbers], float]]]:
        return [(at, DERIVED_SOURCES[one.name]) for at, one in enumerate(self.columns) if _is_derived(one)]


def make_step_record(plan: CompiledPolicies, *, averages_models: bool = False) -> StepRecord:
    """The record of a plan's steps: the scalar sources, the reductions of the gradients, and the rules. A value that
    the program publishes or feeds is included only if a rule uses the value."""
    columns = _columns(plan, averages_models=averages_models)
    # With a fraction for each peer, the length depends on the size of the view.
    nothing = np.full(_INPUTS + sum(not _is_derived(one) for one in columns), np.nan)
    shape = nothing.shape if plan.straggler_fractions is None else [None]
    packed = tf.Variable(nothing, shape=shape, dtype=tf.float64, trainable=False, name="kungfu/tape")
    return StepRecord(columns, packed)


def _is_derived(column: Column) -> bool:
    # A policy's named signal may have the same name as a source.
    return column.group in ("local", "agreed") and column.name in DERIVED_SOURCES


def _columns(plan: CompiledPolicies, *, averages_models: bool) -> tuple[Column, ...]:
    # The steps between two averages have no record, which their number explains also if no rule reads it.
    average = {STEPS_SINCE_AVERAGE.source: STEPS_SINCE_AVERAGE.kind} if averages_models else {}
    kinds = average | {name: one for name, one in plan.source_kinds.items() if one.given_by != "step"}
    sources = [
        *((name, one) for name, one in SOURCES.items() if one.type.shape == SCALAR and name not in ONLY_AT_RESCALE),
        *sorted(kinds.items()),
    ]
    return (
        *(Column("step", name, dtype) for name, dtype in _OF_THE_STEP.items()),
        *(Column(one.placement, name, one.type.dtype) for name, one in sources),
        *(Column(one.placement, name, "float32") for name, one in plan.gradient_reductions.items()),
        *(Column("watched", name, "float32") for name in plan.watched_signals),
        *(Column("watched_whole", name, "int64") for name, one in plan.watched_signals.items() if is_whole(one)),
        *(Column("targets", rule.name, "float32") for rule in plan.rules),
        *(Column("fired", rule.name, "bool") for rule in plan.rules),
    )


def pack_scalars(numbers: Sequence[Any]) -> Any:
    """Graph: a float64 vector of scalars and vectors in their order; exact for integers up to 2 ** 53.

    Args:
        numbers: The scalars and vectors; a variable may be passed instead of its value.

    Cost:
        One node. Without the native library, with TensorFlow's ops, each number costs the step a read, a cast and a
        part of a stack: about 2 microseconds, and twice that while training occupies the caches.
    """
    # The native library is missing: this machine has no compiler.
    if not is_available():
        return tf.concat([tf.reshape(tf.cast(one, tf.float64), [-1]) for one in numbers], axis=0)
    # The op's inputs start with the variables; this order gives the index of each input in the result.
    read = [index for index, one in enumerate(numbers) if isinstance(one, tf.Variable)]
    given = [index for index, one in enumerate(numbers) if not isinstance(one, tf.Variable)]
    where = {index: turn for turn, index in enumerate([*read, *given])}
    with tf.device("/CPU:0"):
        return load().ops.kungfu_numbers(
            [handle_of(numbers[index]) for index in read],
            [tf.convert_to_tensor(numbers[index]) for index in given],
            order=[where[index] for index in range(len(numbers))],
        )
