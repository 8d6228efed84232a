"""Reports a step to the host, in one row of numbers that the step returns.

Reading a variable costs Python some 30 microseconds, ten times that while training occupies the caches, so the host
reads none between two steps. The row is valid until the next step, or until the host itself changes a variable.
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
    """The position of a run after a step: steps done, epoch and offset, micro-batches done of the next step, view."""

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
    """The outcome of one call of the step, the position of the run after it, and the record of the last whole step."""

    code: int
    position: StepPosition
    packed: Sequence[float]


_WHOLE = 1 + len(StepPosition._fields)  # the numbers before the record


def write_report(graph_state: GraphState, code: Any) -> Any:
    """Graph, at the end of a step: float64 [code, position, step record]; exact for integers up to 2 ** 53."""
    return pack_scalars([code, *_variables(graph_state), graph_state.metrics.step_record.packed])


def read_report(report: Any) -> StepReport:
    """Host: parses the row that ``write_report`` made."""
    numbers = report.numpy().tolist()
    # These are integers, exact in float64; the rest of the row is the record.
    code, *position = map(int, numbers[:_WHOLE])
    return StepReport(code, StepPosition(*position), numbers[_WHOLE:])


def read_position(graph_state: GraphState) -> StepPosition:
    """Reads the position from the variables, before the first step and after a step that did not finish."""
    return StepPosition(*(int(read_variable(variable)) for variable in _variables(graph_state)))


def _variables(graph_state: GraphState) -> tuple[tf.Variable, ...]:
    progress, view = graph_state.progress, graph_state.view
    in_view = (view.version, view.size, view.rank, view.global_batch_size)
    return (progress.step, progress.epoch, progress.offset, graph_state.metrics.micro.done, *in_view)
