"""The report of a step to the host: one row of numbers that leaves the graph with it.

A variable that Python reads costs it some 30 microseconds, ten times that while training has the caches: so nothing is
read between two steps. What the row says holds until the next step, or until the host itself changes a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.step_record import pack_scalars
from kungfu.training.graph.variable_io import read_variable


class StepPosition(NamedTuple):
    """The position of a run after a step: steps done, position, micro-batches done of the next step, view."""

    step: int
    epoch: int
    offset: int
    micro: int
    version: int
    size: int
    rank: int
    global_batch_size: int


@dataclass(frozen=True)
class StepReport:
    """The result of one call of the step, the position of the run after it, and the record of the last whole step."""

    code: int
    position: StepPosition
    packed: Sequence[float]


_WHOLE = 1 + len(StepPosition._fields)  # the numbers before the record


def write_report(graph_state: GraphState, code: Any) -> Any:
    """Graph, last of all in a step: float64 [code, position, step record], which holds whole numbers up to 2 ** 53."""
    return pack_scalars([code, *_variables(graph_state), graph_state.metrics.step_record.packed])


def read_report(report: Any) -> StepReport:
    """The host's side of ``write_report``."""
    numbers = report.numpy().tolist()
    # Whole numbers, exact in float64; the rest is the record.
    code, *position = map(int, numbers[:_WHOLE])
    return StepReport(code, StepPosition(*position), numbers[_WHOLE:])


def read_position(graph_state: GraphState) -> StepPosition:
    """The same from the variables: before the first step, and where one did not come to its end."""
    return StepPosition(*(int(read_variable(variable)) for variable in _variables(graph_state)))


def _variables(graph_state: GraphState) -> tuple[tf.Variable, ...]:
    progress, view = graph_state.progress, graph_state.view
    in_view = (view.version, view.size, view.rank, view.global_batch_size)
    return (progress.step, progress.epoch, progress.offset, graph_state.metrics.micro.done, *in_view)
