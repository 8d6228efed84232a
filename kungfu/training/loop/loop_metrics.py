"""Keras metrics that the step of the program's loop updates; after the step they hold the job's states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.combined_metrics import Combination, CombinedMetrics, PeerShare, Watched
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.tracing.trace import StepTrace


class LoopMetrics:
    """The Keras metrics that a program passes to ``Training.metrics``.

    Raises:
        UsageError: A metric has no state yet, or the combination of its state is unknown.
    """

    def __init__(
        self, metrics: Sequence[Any], combine: Mapping[str, Combination], graph_state: GraphState, trace: StepTrace
    ) -> None:
        for metric in metrics:
            _refuse_unless_built(metric)
        self.job, self._graph_state, self._trace = CombinedMetrics(metrics, combine), graph_state, trace
        self._watched: Watched | None = None

    def watch(self) -> None:
        """Makes the step update these metrics from now on."""
        self._trace.around.append(self.traced)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Graph: surrounds the program's function."""
        offset = self._graph_state.progress.offset
        start = self.job.start(anew=tf.equal(tf.convert_to_tensor(offset), 0))
        with self.job.watched(start) as watched:
            self._watched = watched
            yield
        if watched.late:
            with self._trace.ours():
                raise UsageError(
                    f"the metric {watched.late!r} was updated after training.average(), on whose message its state "
                    "travels to the other peers: call update_state before training.average()"
                )

    def outgoing(self) -> list[Any]:
        """Graph: the tensors to sum over the peers; ``UsageError`` if a nested function has updated a metric."""
        assert self._watched is not None
        after = self._watched.after()
        for value, variable in zip(after, self.job.variables, strict=True):
            _refuse_inside(value, variable)
        self._watched.is_sent = True
        return self.job.outgoing(after, peer_share(self._graph_state))

    def conclude(self, sums: Sequence[Any]) -> None:
        """Graph: assigns the job's states to the metrics."""
        self.job.conclude(sums)
        self.job.show()


def peer_share(graph_state: GraphState) -> PeerShare:
    """Graph: this peer's part in the step."""
    view, samples = graph_state.view, graph_state.metrics.samples
    return PeerShare(samples.read_value(), view.rank.read_value(), view.size.read_value())


def refuse_accumulated(metrics: LoopMetrics | None, accumulation: Accumulation | None) -> None:
    """Raises ``UsageError`` for metrics whose states do not add up, if there are micro-batches."""
    if metrics is not None and accumulation is not None and not metrics.job.only_adds:
        raise UsageError(
            "training.metrics(combine=...) beside training.batches(max_local_batch_size=...): over micro-batches only "
            "sums are accumulated; leave one of them out"
        )


def _refuse_unless_built(metric: Any) -> None:
    if not hasattr(metric, "update_state") or not hasattr(metric, "variables"):
        raise UsageError(f"training.metrics() was given {type(metric).__name__}: it takes metrics of Keras")
    if not metric.variables:
        raise UsageError(
            f"training.metrics() was given {metric.name!r} ({type(metric).__name__}), which makes its state with its "
            "first update: call its update_state on a batch of zeros, and reset_state, before"
        )


def _refuse_inside(value: Any, variable: Any) -> None:
    """Refuses a value from a graph nested in the step's, a branch or a loop: it is not available outside."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not value.graph:
        graph = getattr(graph, "outer_graph", None)
    if graph is None:
        raise UsageError(
            f"the metric of {variable.path!r} was updated inside of a branch, a loop or a tf.function in the step: "
            "return what it is updated with, and call update_state in the step itself"
        )
