"""The states of a model's metrics over an evaluation, put together from the parts that the peers have done.

An evaluation works on whole batches, so what a peer's part leaves in a metric is what a step of training would leave
with that part as the peer's slice: states that add up are added, and others are combined as the program says. A mean of
states is no exception that could be shared: how many batches each of them has seen is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.training.graph.combined_metrics import Combination, adds_up, call_combination
from kungfu.training.state.registered_sync import PeerGroup

States = list[NDArray[Any]]


class MetricStates:
    """The states of all metrics of a model.

    Args:
        metrics: Built ones.
        combine: The combination of a metric's states over the peers, by its name; see ``kf.keras.attach``.
    """

    def __init__(self, metrics: Sequence[Any], combine: Mapping[str, Combination]) -> None:
        self._metrics = [_MetricState(one, "sum" if adds_up(one) else combine.get(one.name)) for one in metrics]

    @property
    def can_be_combined(self) -> bool:
        """True if all of them cover the whole job, once the parts are combined."""
        return all(one.way not in (None, "mean") for one in self._metrics)

    def take_part(self) -> None:
        """A part has been evaluated, and the metrics hold what has come of it."""
        for one in self._metrics:
            one.take_part()

    def join(self, meeting: PeerGroup) -> None:
        """The metrics hold what the parts of all peers come to; every peer has done one.

        Cost:
            A message for those that add up, and one for the others.
        """
        sums, others = ([one for one in self._metrics if (one.way == "sum") is is_sum] for is_sum in (True, False))
        totals = iter(meeting.sums([state for one in sums for state in one.own]))
        for one in sums:
            one.assign([next(totals) for _ in one.own])
        rows = iter(meeting.sums([_in_row(state, meeting) for one in others for state in one.own]))
        for one in others:
            one.assign(one.combined([next(rows) for _ in one.own]))


class _MetricState:
    """The state of one metric: ``own`` is that of this peer's parts."""

    def __init__(self, metric: Any, way: Combination | None) -> None:
        self.metric, self.way = metric, way
        self.own: States = []

    def take_part(self) -> None:
        part = [np.asarray(variable.numpy()) for variable in self.metric.variables]
        # After the loss of peers this one does a part of theirs too.
        parts = [[before, after] for before, after in zip(self.own, part, strict=True)] if self.own else []
        self.own = self.combined([np.stack(pair) for pair in parts]) if parts else part

    def combined(self, stacked: Sequence[NDArray[Any]]) -> States:
        """The combined state of several parts, which are stacked along a new first axis."""
        if self.way == "sum":
            return [one.sum(axis=0, dtype=one.dtype) for one in stacked]
        if self.way in ("max", "min"):
            return [one.max(axis=0) if self.way == "max" else one.min(axis=0) for one in stacked]
        assert callable(self.way)
        self.metric.reset_state()
        start = [tf.convert_to_tensor(variable.numpy()) for variable in self.metric.variables]
        return [one.numpy() for one in call_combination(self.way, start, [tf.constant(one) for one in stacked])]

    def assign(self, states: States) -> None:
        for variable, state in zip(self.metric.variables, states, strict=True):
            variable.assign(state)


def _in_row(state: NDArray[Any], meeting: PeerGroup) -> NDArray[Any]:
    """A row for each peer, of zeros but for that of this one: the sum over the peers holds all."""
    rows = np.zeros((meeting.size, *state.shape), state.dtype)
    rows[meeting.rank] = state
    return rows
