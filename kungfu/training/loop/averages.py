"""The averages and sums of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kungfu.training.graph.average import SummedTotals, average, average_to_conclude
from kungfu.training.graph.gradient_message import Averaging
from kungfu.training.graph.layer_memory import AddedSums
from kungfu.training.graph.totals import add_up
from kungfu.training.loop.loop_metrics import LoopMetrics
from kungfu.training.run import Run


def totals_to_sum(holder: LoopMetrics | AddedSums) -> SummedTotals:
    """Graph: this peer's additions in a step to the metrics of a loop, or to variables of layers."""
    return SummedTotals(holder.outgoing(), holder.conclude)


def average_and_sum(run: Run, gradients: Any, totals: Sequence[Any], *, loss: Any) -> tuple[Any, Sequence[Any]]:
    """Graph: returns the result of ``Training.average``, and the sums of ``totals``, which policies do not see."""
    sums = list[Any]()

    def last(averaging: Averaging) -> Any:
        summed = [SummedTotals(totals, sums.extend), totals_to_sum(run.memory.sums)]
        return average(averaging, gradients, loss=loss, summed=summed)

    return run.average(gradients, last), sums


def sum_in_step(run: Run, values: Sequence[Any], *, tag: str) -> list[Any]:
    """Graph: sums over the peers, by a separate message.

    Args:
        run: The run of the step.
        values: Tensors of the same types and shapes on all peers.
        tag: The name of the message.
    """
    with run.trace.ours():
        return add_up(run.attachment, values, order=run.graph_state.order, tag=tag)


class SeveralAverages:
    """The averages of one trace of a step, which counts only after the sums at its end have arrived.

    Args:
        run: The run of the step.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._conclude: Callable[[], Any] | None = None  # of the last average

    def average(self, optimizer: Any, gradients: Any, loss: Any) -> Any:
        """Graph: averages like ``Training.average``, for the gradients of one of several optimizers.

        The policies see loss, gradients and learning rate of the last average in a step, and conclude with `conclude`.
        """
        trace = self._run.trace

        def last(averaging: Averaging) -> Any:
            trace.undo_all()
            means, self._conclude = average_to_conclude(averaging, gradients, loss=loss, waited=trace.waited)
            return means

        return self._run.average(gradients, last, optimizer=optimizer)

    def conclude(self, values: Sequence[Any]) -> list[Any]:
        """Graph, at the end of a step: returns the sums of tensors over the peers, and lets the step count.

        Cost:
            A message, which also carries the sums of layers; none if there is nothing to sum.
        """
        trace = self._run.trace
        with trace.ours():
            sums = _last_sums(self._run, values)
            if self._conclude is not None:  # otherwise the step has not averaged, which its trace refuses
                with tf.control_dependencies(sums):
                    self._conclude()
        trace.note_end()
        return sums[: len(values)]


def _last_sums(run: Run, values: Sequence[Any]) -> list[Any]:
    """Graph: the sums of values over the peers, followed by the sums of the layers' additions."""
    memory, samples = run.memory.sums, run.graph_state.metrics.samples.read_value()
    # A peer without samples ran on another peer's sample.
    given = [*values, *(tf.where(samples > 0, one, tf.zeros_like(one)) for one in memory.outgoing())]
    sums = add_up(run.attachment, given, order=run.graph_state.order, tag="metrics") if given else []
    memory.conclude(sums[len(values) :])
    return sums
