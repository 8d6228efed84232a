"""Metrics of the whole job: the states of Keras' metrics, combined over the peers in every step.

Totals and counts can be added without loss: the job's state of such a metric is the sum of the peers' states. So in a
step the metric starts from zeros and sees this peer's slice. Its state rides on the message of the gradients, and the
sum is added to the *totals* of the epoch, which are equal on all peers. Any other metric starts the step from its
totals, the job's state before the step, and the peers' new states are combined as the program declares.

In both cases the totals on every peer include each finished step. A joiner receives the totals with the state, the
contribution of a peer that left or was killed remains, and a step that fails leaves the totals unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import replaced_method
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.tracing.trace import StepTrace

Way = Literal["sum", "mean", "max", "min"]
Combination = Way | Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]

# The combination of metrics that receive one number of the whole batch per step.
_PER_STEP = "per step"

# The variables of these metrics are sums over samples, whatever result a metric computes from its sums.
_ADDITIVE = tuple(
    getattr(keras.metrics, name)
    for name in (
        "Mean", "Sum", "TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives", "Precision", "Recall",
        "SensitivityAtSpecificity", "SpecificityAtSensitivity", "PrecisionAtRecall", "RecallAtPrecision", "AUC",
        "FBetaScore", "IoU", "R2Score",
    )
)  # fmt: skip


@dataclass(frozen=True)
class PeerShare:
    """Graph: a peer's number of samples in a step, its rank, the size of its view, and the samples of all its peers."""

    samples: Any  # float32
    rank: Any
    size: Any
    of_step: Any = None  # int64


class _Vector:
    """States of one dtype: all summed over the peers, or all averaged, weighted by the peers' sample counts. One vector
    holds the states' totals. ``states``: the metrics' variables, each with its value at the beginning of an epoch.

    States "per step" are sums too, to which all peers together add once in each step: each adds its part of a step's
    samples."""

    def __init__(self, dtype: str, way: str, states: Sequence[tuple[Any, Any]]) -> None:
        self._dtype, self._is_mean, self.variables = tf.as_dtype(dtype), way == "mean", [one for one, _ in states]
        self._is_per_step = way == _PER_STEP
        self._initial = np.concatenate([np.ravel(start) for _, start in states]).astype(dtype)
        self.totals = [tf.Variable(self._initial, trainable=False, name=f"kungfu/metrics_{dtype}")]

    def start(self, anew: Any) -> list[Any]:
        """Graph: the states with which the metrics start the step; zeros for summed states."""
        self._before = tf.where(anew, tf.constant(self._initial, self._dtype), self.totals[0].read_value())
        return (
            self.cut([self._before]) if self._is_mean else [tf.zeros(one.shape, self._dtype) for one in self.variables]
        )

    def outgoing(self, after: Sequence[Any], peer: PeerShare) -> list[Any]:
        """Graph: this peer's states as one vector; for means, multiplied by the sample count, which comes last."""
        vector = tf.concat([tf.reshape(one, [-1]) for one in after], axis=0)
        samples = tf.cast(peer.samples, self._dtype)
        if self._is_per_step:
            return [vector * tf.math.divide_no_nan(samples, tf.cast(peer.of_step, self._dtype))]
        if not self._is_mean:
            return [vector]
        return [tf.concat([vector * samples, samples[None]], axis=0)]

    def conclude(self, sums: Sequence[Any]) -> None:
        """Graph: assigns the totals after the step."""
        (sent,) = sums
        self.totals[0].assign(tf.math.divide_no_nan(sent[:-1], sent[-1]) if self._is_mean else self._before + sent)

    def cut(self, totals: Sequence[Any]) -> list[Any]:
        """Graph: splits totals into the states of the metrics."""
        pieces = tf.split(totals[0], [math.prod(one.shape) for one in self.variables])
        return [tf.reshape(piece, one.shape) for piece, one in zip(pieces, self.variables, strict=True)]


class _Gathered:
    """The states of one metric whose combination, "max", "min" or a function, needs the states of every peer."""

    def __init__(self, way: Combination, states: Sequence[tuple[Any, Any]]) -> None:
        self._way, self.variables, self._initial = way, [one for one, _ in states], [start for _, start in states]
        self.totals = [tf.Variable(start, trainable=False, name="kungfu/metrics_gathered") for start in self._initial]

    def start(self, anew: Any) -> list[Any]:
        """Graph: the metric's states before the step: the job's states, or the initial states if an epoch begins."""
        pairs = zip(self._initial, self.totals, strict=True)
        self._before = [tf.where(anew, tf.constant(start, total.dtype), total.read_value()) for start, total in pairs]
        return self._before

    def outgoing(self, after: Sequence[Any], peer: PeerShare) -> list[Any]:
        """Graph: arrays with one row per peer, zero except in this peer's: states, and 1 if the peer had samples."""
        return [_in_row(one, peer) for one in (*after, tf.cast(peer.samples > 0, tf.float32))]

    def conclude(self, sums: Sequence[Any]) -> None:
        """Graph: assigns the totals after the step; leaves them unchanged if no peer had samples."""
        *rows, has_samples = sums
        had = tf.reshape(has_samples, [-1]) > 0
        stacked = [
            tf.reshape(tf.boolean_mask(one, had), [-1, *total.shape])
            for one, total in zip(rows, self.totals, strict=True)
        ]
        if callable(self._way):
            new = call_combination(self._way, self._before, stacked)
        else:
            new = [(tf.reduce_max if self._way == "max" else tf.reduce_min)(one, axis=0) for one in stacked]
        for total, value, before in zip(self.totals, new, self._before, strict=True):
            total.assign(tf.where(tf.reduce_any(had), value, before))

    def cut(self, totals: Sequence[Any]) -> list[Any]:
        """Graph: splits totals into the states of the metrics."""
        return list(totals)


class Watched:
    """Holds the states of metrics as values, in place of their variables, during the trace of a step."""

    def __init__(self, variables: Sequence[Any], start: Sequence[Any]) -> None:
        self._values = dict(zip(map(id, variables), start, strict=True))
        self.is_sent = False  # True once the message with the states is built
        self.late = ""  # the name of a metric that was updated after the message was built

    def after(self) -> list[Any]:
        """Graph: the current states of the metrics."""
        return list(self._values.values())

    def updating(self, metric: Any) -> Callable[..., None]:
        """A metric's ``update_state`` that updates the values instead of the variables."""
        own, values = metric.update_state, self._values

        def update_state(*args: Any, **kwargs: Any) -> None:
            if self.is_sent:
                self.late = metric.name
            variables = metric.variables
            start = [(one, values[id(one)]) for one in variables]
            with keras.StatelessScope(start, initialize_variables=False) as scope:
                own(*args, **kwargs)
            for one in variables:
                values[id(one)] = scope.get_current_value(one)

        return update_state


class CombinedMetrics:
    """The totals of metrics over an epoch of the whole job, to which each step is added.

    Args:
        combine: The combination of a metric's state over the peers, by metric name; see ``kf.keras.attach``.
        per_step: The metrics of Keras that receive one number of the whole batch per step: the mean over the peers,
            weighted by samples.

    Raises:
        UsageError: A metric whose state is not a sum has no declared combination, or a combination does not fit.
    """

    def __init__(
        self, metrics: Sequence[Any], combine: Mapping[str, Combination], *, per_step: Sequence[Any] = ()
    ) -> None:
        names = sorted({metric.name for metric in metrics})
        if unknown := sorted(set(combine) - set(names)):
            raise UsageError(
                f"combine= names {', '.join(map(repr, unknown))}: the metrics are {', '.join(names) or 'none'}"
            )
        self._metrics, self._groups = list(metrics), list[_Vector | _Gathered]()
        means, vectors = {id(one) for one in per_step}, dict[tuple[str, str], list[tuple[Any, Any]]]()
        for metric in metrics:
            way, states = _states(metric, None if id(metric) in means else combine.get(metric.name))
            if way not in ("sum", "mean"):
                self._groups.append(_Gathered(way, states))
                continue
            kind = _PER_STEP if id(metric) in means else way
            for state in states:
                vectors.setdefault((str(state[0].dtype), kind), []).append(state)
        self._groups += [_Vector(dtype, way, states) for (dtype, way), states in vectors.items()]
        self.only_adds = all(way == "sum" for _, way in vectors) and len(vectors) == len(self._groups)

    @property
    def totals(self) -> list[tf.Variable]:
        """The totals as variables, which are replicated with the training state and equal on all peers."""
        return [total for group in self._groups for total in group.totals]

    @property
    def variables(self) -> list[Any]:
        """The variables of the metrics, in the order of the result of `start` and of the argument of `outgoing`."""
        return [one for group in self._groups for one in group.variables]

    # ---- in a step -------------------------------------------------------------------------------------------------

    def start(self, anew: Any) -> list[Any]:
        """Graph: the states with which the metrics start this step; ``anew``: True on all peers if an epoch begins."""
        return [one for group in self._groups for one in group.start(anew)]

    @contextmanager
    def watched(self, start: Sequence[Any]) -> Iterator[Watched]:
        """Graph: a context in which metrics assign no variables, but update values that begin at ``start``."""
        watched = Watched(self.variables, start)
        with ExitStack() as replaced:
            for metric in self._metrics:
                replaced.enter_context(replaced_method(metric, "update_state", watched.updating(metric)))
            yield watched

    def assign(self, values: Sequence[Any]) -> None:
        """Graph: assigns these values to the variables of the metrics, in the order of ``start``."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def read(self) -> list[Any]:
        """Graph: the values of the metrics' variables."""
        return [tf.convert_to_tensor(variable.value) for variable in self.variables]

    def outgoing(self, after: Sequence[Any], peer: PeerShare) -> list[Any]:
        """Graph: the tensors that this peer sends to be summed, from its states ``after`` the step."""
        given, sent = iter(after), list[Any]()
        self._sent = []
        for group in self._groups:
            outgoing = group.outgoing([next(given) for _ in group.variables], peer)
            sent += outgoing
            self._sent.append(len(outgoing))
        return sent

    def conclude(self, sums: Sequence[Any]) -> None:
        """Graph: updates the totals from the sums of the tensors that the peers sent."""
        come = iter(sums)
        for group, count in zip(self._groups, self._sent, strict=True):
            group.conclude([next(come) for _ in range(count)])

    def show(self, totals: Sequence[Any] | None = None) -> None:
        """Assigns ``totals``, by default the epoch's, to the metrics, which validation may have changed."""
        given = iter(map(tf.convert_to_tensor, self.totals if totals is None else totals))
        self.assign([one for group in self._groups for one in group.cut([next(given) for _ in group.totals])])


def _in_row(state: Any, peer: PeerShare) -> Any:
    """Graph: one row per peer, all zeros except this peer's, so the sum over the peers holds every peer's state."""
    vector, size, rank = tf.reshape(state, [1, -1]), tf.cast(peer.size, tf.int64), tf.cast(peer.rank, tf.int64)
    return tf.scatter_nd([[rank]], vector, tf.stack([size, tf.size(vector, tf.int64)]))


def call_combination(function: Callable[..., Any], before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Computes the new states of a metric by the program's combination function; also usable in a graph."""
    given = function(list(before), list(after))
    new = [given] if isinstance(given, tf.Tensor) else list(given)
    if len(new) != len(before):
        raise UsageError(
            f"combine= was given a function that returned {len(new)} states for a metric with {len(before)}: it is "
            "called with the job's states before the step, and those of the peers after it, stacked along a new first "
            "axis, and gives the job's new states, a list in the order of metric.variables"
        )
    return [tf.reshape(tf.cast(one, old.dtype), old.shape) for one, old in zip(new, before, strict=True)]


# ---- in the loop of the program --------------------------------------------------------------------------------------


class LoopMetrics:
    """The Keras metrics that a program passes to ``Training.metrics``; after each step they hold the job's states.

    Raises ``UsageError`` if a metric has no state yet, or the combination of its state is unknown."""

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
        """Graph: surrounds the program's function, in which the metrics update values instead of variables."""
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
    """Graph: this peer's number of samples in the step, its rank, the size of its view, and the samples of the step."""
    view, samples = graph_state.view, graph_state.metrics.samples
    of_step = graph_state.samples_of_step()
    return PeerShare(samples.read_value(), view.rank.read_value(), view.size.read_value(), of_step)


def refuse_accumulated(metrics: LoopMetrics | None, accumulation: Accumulation | None) -> None:
    """Raises ``UsageError`` for metrics whose states are not summed over the peers, if there are micro-batches."""
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
    """Refuses a value from a graph nested in the step's graph (a branch, a loop): it is not available outside."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not value.graph:
        graph = getattr(graph, "outer_graph", None)
    if graph is None:
        raise UsageError(
            f"the metric of {variable.path!r} was updated inside of a branch, a loop or a tf.function in the step: "
            "return what it is updated with, and call update_state in the step itself"
        )


# ---- which metrics ---------------------------------------------------------------------------------------------------


def _states(metric: Any, way: Combination | None) -> tuple[Combination, list[tuple[Any, Any]]]:
    """The combination of a metric, and its variables, each with its value at the beginning of an epoch; ``UsageError``
    if the combination is unknown, or does not fit the metric."""
    if way is None:
        if not adds_up(metric):
            raise UsageError(_not_additive(metric))
        return "sum", [(one, np.zeros(one.shape)) for one in metric.variables]
    if not callable(way) and way not in get_args(Way):
        raise UsageError(
            f"combine={{{metric.name!r}: {way!r}}}: must be one of {', '.join(map(repr, get_args(Way)))}, or a function"
        )
    metric.reset_state()
    states = [(one, np.asarray(one)) for one in metric.variables]
    for variable, start in states:
        _refuse_unless_fitting(f"combine={{{metric.name!r}: {way!r}}}", way, variable, start)
    return way, states


def _refuse_unless_fitting(what: str, way: Combination, variable: Any, start: Any) -> None:
    dtype = tf.as_dtype(str(variable.dtype))
    if way == "sum" and np.any(start):
        raise UsageError(
            f"{what}: after reset_state() the variable {variable.name!r} is {start!r}, and a sum starts "
            "from zeros on every peer; give 'max', 'min', or a function of the states before and after a step"
        )
    if way == "mean" and not dtype.is_floating:
        raise UsageError(f"{what}: the variable {variable.name!r} is of {dtype.name}, which has no exact mean")
    if dtype not in (tf.float32, tf.float64, tf.int32, tf.int64):
        raise UsageError(
            f"{what}: the variable {variable.name!r} is of {dtype.name}: peers can send float32, float64, int32 "
            "and int64"
        )


def adds_up(metric: Any) -> bool:
    """True if the state of a metric is known to be a sum over samples."""
    kind = type(metric)
    return isinstance(metric, _ADDITIVE) and all(_is_of_keras(kind, name) for name in ("update_state", "reset_state"))


def _not_additive(metric: Any) -> str:
    allowed = ", ".join(one.__name__ for one in _ADDITIVE)
    return (
        f"the metric {metric.name!r} ({type(metric).__name__}) in a job: kungfu does not know that its state adds up "
        "over the peers, so the job's value would be one peer's; say how states are combined, as in "
        f"combine={{{metric.name!r}: 'sum'}} ('sum', 'mean', 'max', 'min' or a function), or use one of Keras' own "
        f"that keeps sums ({allowed}, and what is built on them, such as a function, which becomes a mean)"
    )


def _is_of_keras(kind: type, method: str) -> bool:
    """True if a metric has this method from Keras; a custom method may keep values other than sums."""
    owner = next(one for one in kind.__mro__ if method in vars(one))
    is_public = getattr(keras.metrics, owner.__name__, None) is owner
    return is_public or any(issubclass(one, owner) for one in _ADDITIVE)
