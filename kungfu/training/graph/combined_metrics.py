"""Metrics of the whole job: the states of Keras' metrics, combined over the peers in every step.

A metric that keeps totals and counts forgets nothing when they are added: that of the job is the sum over its peers.
So in a step such a metric starts from zeros and sees this peer's slice; its state rides on the message of the
gradients; and the sum is added to the *totals* of the epoch, which are equal on all peers. Another metric starts from
its total, the state of the job before the step, and what the peers have made of it is combined as the program says.

Either way a step that is done is in the totals of every peer: one that joins is given them with the state, what a peer
that left or was killed has seen stays in them, and a step that fails leaves them as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError

Way = Literal["sum", "mean", "max", "min"]
Combination = Way | Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]

# What they keep are sums over samples, whatever they make of them in the end.
_ADDITIVE = (
    keras.metrics.Mean,
    keras.metrics.Sum,
    keras.metrics.TruePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FalseNegatives,
    keras.metrics.Precision,
    keras.metrics.Recall,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.AUC,
    keras.metrics.FBetaScore,
    keras.metrics.IoU,
    keras.metrics.R2Score,
)


@dataclass(frozen=True)
class PeerPlace:
    """Graph: a peer's part in a step.

    Args:
        samples: The samples of this peer, float32.
        rank: The rank of this peer.
        size: The size of its view.
    """

    samples: Any
    rank: Any
    size: Any


@dataclass(frozen=True)
class _State:
    """A variable of a metric.

    Args:
        variable: Keras' own.
        metric: The place of its metric among all.
        place: Its own place among the variables of the metric.
        way: The way in which it is combined.
        start: The value at the beginning of an epoch.
    """

    variable: Any
    metric: int
    place: int
    way: Combination
    start: Any

    @property
    def shape(self) -> list[int]:
        return list(self.variable.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class _Vector:
    """The totals of all states of one dtype in one vector: first those that are summed, then means, then the others.

    In a step ``start`` gives the states that metrics begin with, ``outgoing`` what this peer sends, and ``received``
    what has come of it.
    """

    def __init__(self, dtype: str, states: Sequence[_State]) -> None:
        groups: dict[str, list[_State]] = {"sum": [], "mean": [], "others": []}
        for state in states:
            groups[state.way if state.way in ("sum", "mean") else "others"].append(state)
        self.dtype = tf.as_dtype(dtype)
        self._sums, self._means, self._others = (groups[name] for name in ("sum", "mean", "others"))
        self.states = [*self._sums, *self._means, *self._others]
        self._initial = np.concatenate([np.zeros(0, dtype), *(np.ravel(state.start) for state in self.states)])
        self.total = tf.Variable(self._initial.astype(dtype), trainable=False, name=f"kungfu/metrics_{dtype}")

    def before(self, anew: Any) -> Any:
        """Graph: the totals as the step finds them; those of an epoch that begins."""
        return tf.where(anew, tf.constant(self._initial, self.dtype), self.total.read_value())

    def start(self, before: Any) -> list[Any]:
        """Graph: what each metric starts the step with: zeros where states are summed."""
        zeros = [tf.zeros(state.shape, self.dtype) for state in self._sums]
        return zeros if len(zeros) == len(self.states) else [*zeros, *self._cut(before)[len(zeros) :]]

    def outgoing(self, after: Sequence[Any], place: PeerPlace) -> list[Any]:
        """Graph: what is summed over the peers, of the states that the metrics have ended the step with."""
        flat = [tf.reshape(one, [-1]) for one in after]
        sums, means = len(self._sums), len(self._means)
        sent = flat[:sums]
        if self._means:  # weighted by samples, whose sum travels along
            samples = tf.cast(place.samples, self.dtype)
            sent = [*sent, *(one * samples for one in flat[sums : sums + means]), samples[None]]
        gathered = [] if not self._others else [_in_row(tf.concat(flat[sums + means :], axis=0), place)]
        return [*([tf.concat(sent, axis=0)] if sent else []), *gathered]

    def received(self, before: Any, come: Iterator[Any], rows: Any) -> tuple[list[Any], list[_Gathered]]:
        """Graph: what the peers have sent for these states.

        Args:
            before: The totals before the step.
            come: Gives the sums of what the peers have sent, as ``outgoing`` has it.
            rows: The peers with samples, by rank.

        Returns:
            The new totals of those that are summed or averaged, and what was gathered of the others.
        """
        summed, averaged = (sum(state.elements for state in group) for group in (self._sums, self._means))
        parts = []
        if summed or averaged:
            sent = next(come)
            parts.append(before[:summed] + sent[:summed])
        if averaged:
            parts.append(tf.math.divide_no_nan(sent[summed : summed + averaged], sent[-1]))
        if not self._others:
            return parts, []
        after = tf.split(tf.boolean_mask(next(come), rows), [state.elements for state in self._others], axis=1)
        old = self._cut(before)[-len(self._others) :]
        return parts, [
            _Gathered(state, one, tf.reshape(stacked, [-1, *state.shape]))
            for state, one, stacked in zip(self._others, old, after, strict=True)
        ]

    def show(self, total: Any) -> None:
        """The metrics hold these totals."""
        for state, value in zip(self.states, self._cut(total), strict=True):
            state.variable.assign(value)

    def _cut(self, vector: Any) -> list[Any]:
        pieces = tf.split(vector, [state.elements for state in self.states])
        return [tf.reshape(one, state.shape) for one, state in zip(pieces, self.states, strict=True)]


@dataclass(frozen=True)
class _Gathered:
    """A state before the step, and those of the peers that had samples after it, along a new first axis."""

    state: _State
    before: Any
    after: Any


class Watched:
    """The states of metrics while a step is traced, as values in place of their variables."""

    def __init__(self, variables: Sequence[Any], start: Sequence[Any]) -> None:
        self._values = dict(zip(map(id, variables), start, strict=True))
        self.is_sent = False  # the message that they ride on is made
        self.late = ""  # the metric that was updated all the same

    def after(self) -> list[Any]:
        """Graph: the states that the metrics have by now."""
        return list(self._values.values())

    def updating(self, metric: Any) -> Callable[..., None]:
        """An ``update_state`` of a metric that moves the values."""
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
    """The totals of metrics over an epoch of the whole job, and how a step adds to them.

    Args:
        metrics: Built ones.
        combine: The combination of a metric's state over the peers, by its name; see ``kf.keras.attach``.
        per_step: The metrics that get one number of the whole batch per step: they are combined by "mean".

    Raises:
        UsageError: The state of a metric does not add up, and nothing else is said of it; or what is said does not fit.
    """

    def __init__(
        self, metrics: Sequence[Any], combine: Mapping[str, Combination], *, per_step: Sequence[Any] = ()
    ) -> None:
        _check_names(metrics, combine)
        self._metrics = list(metrics)
        means, states = {id(one) for one in per_step}, list[_State]()
        for place, metric in enumerate(metrics):
            states += _states(metric, place, "mean" if id(metric) in means else combine.get(metric.name))
        self._has_others = any(state.way not in ("sum", "mean") for state in states)
        kinds = dict.fromkeys(str(state.variable.dtype) for state in states)
        self._vectors = [_Vector(kind, [one for one in states if str(one.variable.dtype) == kind]) for kind in kinds]
        self._before: list[Any] = []

    @property
    def totals(self) -> list[tf.Variable]:
        """They go along with training, and are equal on all peers."""
        return [vector.total for vector in self._vectors]

    @property
    def variables(self) -> list[Any]:
        """The variables of the metrics, in the order of ``start`` and of the argument of ``outgoing``."""
        return [state.variable for vector in self._vectors for state in vector.states]

    @property
    def only_adds(self) -> bool:
        """True if all states are summed."""
        return all(state.way == "sum" for vector in self._vectors for state in vector.states)

    # ---- in a step -------------------------------------------------------------------------------------------------

    def start(self, anew: Any) -> list[Any]:
        """Graph: the states that the metrics start this step with.

        Args:
            anew: Bool scalar, agreed: whether an epoch begins.
        """
        self._before = [vector.before(anew) for vector in self._vectors]
        pairs = zip(self._vectors, self._before, strict=True)
        return [one for vector, before in pairs for one in vector.start(before)]

    @contextmanager
    def watched(self, start: Sequence[Any]) -> Iterator[Watched]:
        """Graph: within it the metrics are updated from ``start`` on, as values: no variable of theirs is assigned."""
        watched = Watched(self.variables, start)
        for metric in self._metrics:
            # Not by setattr, which Keras overrides to track what is set.
            object.__setattr__(metric, "update_state", watched.updating(metric))
        try:
            yield watched
        finally:
            for metric in self._metrics:
                object.__delattr__(metric, "update_state")

    def assign(self, values: Sequence[Any]) -> None:
        """Graph: the variables of the metrics hold these, in the order of ``start``."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def read(self) -> list[Any]:
        """Graph: what the variables of the metrics hold."""
        return [tf.convert_to_tensor(variable.value) for variable in self.variables]

    def outgoing(self, after: Sequence[Any], place: PeerPlace) -> list[Any]:
        """Graph: what this peer sends, to be summed over the peers: of the states that it has ended the step with."""
        given = iter(after)
        sent = [one for vector in self._vectors for one in vector.outgoing([next(given) for _ in vector.states], place)]
        if self._has_others:
            sent.append(_in_row(tf.cast(place.samples > 0, tf.float32)[None], place))
        return sent

    def conclude(self, sums: Sequence[Any]) -> None:
        """Graph: the totals after the step, from the sums over the peers of what each has sent."""
        rows = tf.reshape(sums[-1], [-1]) > 0 if self._has_others else None
        come = iter(sums)
        found = [
            vector.received(before, come, rows) for vector, before in zip(self._vectors, self._before, strict=True)
        ]
        chosen = _chosen([one for _, gathered in found for one in gathered], rows)
        for vector, (parts, gathered) in zip(self._vectors, found, strict=True):
            whole = [*parts, *(tf.reshape(chosen[id(one.state)], [-1]) for one in gathered)]
            vector.total.assign(tf.concat(whole, axis=0) if len(whole) > 1 else whole[0])

    def show(self, totals: Sequence[Any] | None = None) -> None:
        """The metrics hold totals, if none are given those of the epoch so far, whatever a validation has left."""
        for vector, total in zip(self._vectors, self.totals if totals is None else totals, strict=True):
            vector.show(tf.convert_to_tensor(total))


def _chosen(gathered: Sequence[_Gathered], rows: Any) -> dict[int, Any]:
    """Graph: the new states of those that were gathered, by the ids of the states; where no peer had samples, the old.

    A function is given all variables of its metric together.
    """
    chosen: dict[int, Any] = {}
    of_metric: dict[int, list[_Gathered]] = {}
    for one in gathered:
        of_metric.setdefault(one.state.metric, []).append(one)
    for group in of_metric.values():
        group.sort(key=lambda one: one.state.place)
        way, old, after = group[0].state.way, [one.before for one in group], [one.after for one in group]
        if callable(way):
            new = call_combination(way, old, after)
        else:
            new = [(tf.reduce_max if way == "max" else tf.reduce_min)(one, axis=0) for one in after]
        for one, value in zip(group, new, strict=True):
            chosen[id(one.state)] = tf.where(tf.reduce_any(rows), value, one.before)
    return chosen


def _in_row(vector: Any, place: PeerPlace) -> Any:
    """Graph: a row per peer, of zeros but for that of this one: their sum over the peers holds all."""
    size, rank = tf.cast(place.size, tf.int64), tf.cast(place.rank, tf.int64)
    return tf.scatter_nd([[rank]], vector[None], tf.stack([size, tf.size(vector, tf.int64)]))


def call_combination(function: Callable[..., Any], before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """The new states of a metric, as a function of the program's makes them; also in a graph."""
    given = function(list(before), list(after))
    new = [given] if isinstance(given, tf.Tensor) else list(given)
    if len(new) != len(before):
        raise UsageError(
            f"combine= was given a function that returned {len(new)} states for a metric with {len(before)}: it is "
            "called with the job's states before the step, and those of the peers after it, stacked along a new first "
            "axis, and gives the job's new states, a list in the order of metric.variables"
        )
    return [tf.reshape(tf.cast(one, old.dtype), old.shape) for one, old in zip(new, before, strict=True)]


# ---- which metrics ---------------------------------------------------------------------------------------------------


def _states(metric: Any, place: int, way: Combination | None) -> list[_State]:
    """The variables of a metric; ``UsageError`` if it is not known how they are combined, or cannot be."""
    if way is None:
        _refuse_unless_additive(metric)
        return [_State(one, place, own, "sum", np.zeros(one.shape)) for own, one in enumerate(metric.variables)]
    if not callable(way) and way not in get_args(Way):
        raise UsageError(
            f"combine={{{metric.name!r}: {way!r}}}: must be one of {', '.join(map(repr, get_args(Way)))}, or a function"
        )
    metric.reset_state()
    states = [_State(one, place, own, way, np.asarray(one)) for own, one in enumerate(metric.variables)]
    for state in states:
        _refuse_unless_fitting(metric, state)
    return states


def _refuse_unless_fitting(metric: Any, state: _State) -> None:
    dtype, what = tf.as_dtype(str(state.variable.dtype)), f"combine={{{metric.name!r}: {state.way!r}}}"
    if state.way == "sum" and np.any(state.start):
        raise UsageError(
            f"{what}: after reset_state() the variable {state.variable.name!r} is {state.start!r}, and a sum starts "
            "from zeros on every peer; give 'max', 'min', or a function of the states before and after a step"
        )
    if state.way == "mean" and not dtype.is_floating:
        raise UsageError(f"{what}: the variable {state.variable.name!r} is of {dtype.name}, which has no exact mean")
    if dtype not in (tf.float32, tf.float64, tf.int32, tf.int64):
        raise UsageError(
            f"{what}: the variable {state.variable.name!r} is of {dtype.name}: peers can send float32, float64, int32 "
            "and int64"
        )


def _check_names(metrics: Sequence[Any], combine: Mapping[str, Combination]) -> None:
    names = sorted({metric.name for metric in metrics})
    if unknown := sorted(set(combine) - set(names)):
        raise UsageError(
            f"combine= names {', '.join(map(repr, unknown))}: the metrics are {', '.join(names) or 'none'}"
        )


def adds_up(metric: Any) -> bool:
    """True if the state of a metric is known to be a sum over samples."""
    kind = type(metric)
    return isinstance(metric, _ADDITIVE) and all(_is_of_keras(kind, name) for name in ("update_state", "reset_state"))


def _refuse_unless_additive(metric: Any) -> None:
    if adds_up(metric):
        return
    allowed = ", ".join(one.__name__ for one in _ADDITIVE)
    raise UsageError(
        f"the metric {metric.name!r} ({type(metric).__name__}) in a job: kungfu does not know that its state adds up "
        "over the peers, so the job's value would be one peer's; say how states are combined, as in "
        f"combine={{{metric.name!r}: 'sum'}} ('sum', 'mean', 'max', 'min' or a function), or use one of Keras' own "
        f"that keeps sums ({allowed}, and what is built on them, such as a function, which becomes a mean)"
    )


def _is_of_keras(kind: type, method: str) -> bool:
    """True if a metric has this method from Keras: a custom one may keep something else than sums."""
    owner = next(one for one in kind.__mro__ if method in vars(one))
    is_public = getattr(keras.metrics, owner.__name__, None) is owner
    return is_public or any(issubclass(one, owner) for one in _ADDITIVE)
