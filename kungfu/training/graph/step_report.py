"""Reports a step to Python, in one row of numbers that the step returns; computes how much of a run is left.

Reading a variable costs Python about 30 microseconds, ten times that while training occupies the caches, so none is
read between two steps. The row is valid until the next step, or until Python code changes a variable.
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
    """The position of a run after a step: steps done, epoch, offset in the epoch (in samples), view, and the number of
    finished micro-batches of the next step."""

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
    """The outcome of one call of the step, the run's position after the call, and the record of the last whole step."""

    code: int
    position: StepPosition
    packed: Sequence[float]


_WHOLE = 1 + len(StepPosition._fields)  # the numbers before the record


def write_report(graph_state: GraphState, code: Any) -> Any:
    """Graph: the row that reports a step, float64 [code, position, step record]; exact for integers up to 2 ** 53."""
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


@dataclass(frozen=True)
class PlannedEpochs:
    """The epochs of a run.

    Attributes:
        drops: True if an epoch leaves out a last step with fewer samples than the others.
        done_before: The number of epochs that the program counts before the first epoch of this run, such as
            ``initial_epoch`` of ``fit``.
        fit: The number of this ``fit`` in the program, from 1; 0 if the program has a custom loop.
    """

    samples: int
    epochs: int
    drops: bool = False
    done_before: int = 0
    fit: int = 0

    def progress(self, position: StepPosition, *, epoch: int) -> dict[str, Any]:
        """The position of a step in the run, for a line of the metrics.

        Args:
            epoch: The epoch of the step, from 0.

        Returns:
            ``epoch``, from 1, and ``epochs``, as the program counts them; ``samples_left``; ``steps_left``, if the
            batch size does not change; and ``fit``, unless the attribute ``fit`` is 0.

        >>> after = StepPosition(step=0, epoch=1, offset=64, micro=0, version=1, size=2, rank=0, global_batch_size=32)
        >>> PlannedEpochs(samples=100, epochs=3).progress(after, epoch=1)
        {'epoch': 2, 'epochs': 3, 'samples_left': 136, 'steps_left': 6}
        """
        samples_left, steps_left = self._left(position)
        progress = {
            "epoch": self.done_before + epoch + 1,
            "epochs": self.done_before + self.epochs,
            "samples_left": samples_left,
            "steps_left": steps_left,
        }
        return {**progress, "fit": self.fit} if self.fit else progress

    def _left(self, position: StepPosition) -> tuple[int, int]:
        whole_epochs = self.epochs - position.epoch - 1
        # The last epoch is done.
        if whole_epochs < 0:
            return 0, 0
        batch = max(1, min(position.global_batch_size, self.samples))
        parts = (self.samples - position.offset, *([self.samples] if whole_epochs else []))
        steps = [samples // batch if self.drops else -(-samples // batch) for samples in parts]
        total = steps[0] + sum(steps[1:]) * whole_epochs
        # If remainders are dropped, only whole steps are trained.
        return (total * batch if self.drops else parts[0] + whole_epochs * self.samples), total
