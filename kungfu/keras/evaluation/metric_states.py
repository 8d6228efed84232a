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
        self._metrics = [(one, "sum" if adds_up(one) else combine.get(one.name)) for one in metrics]
        self._own: list[States] = []  # of each metric, over the parts that this peer has done

    @property
    def can_be_combined(self) -> bool:
        """True if all of them cover the whole job, once the parts are combined."""
        return all(way not in (None, "mean") for _, way in self._metrics)

    def add_part(self) -> None:
        """Adds the states that the metrics hold, once a part has been evaluated."""
        part = [[np.asarray(variable.numpy()) for variable in metric.variables] for metric, _ in self._metrics]
        # After the loss of peers this one does a part of theirs too.
        if self._own:
            pairs = [[np.stack(pair) for pair in zip(*both, strict=True)] for both in zip(self._own, part, strict=True)]
            part = [_combined(*one, stacked) for one, stacked in zip(self._metrics, pairs, strict=True)]
        self._own = part

    def join(self, group: PeerGroup) -> None:
        """Sets the metrics to the states over the parts of all peers, each of which has done one; a message."""
        sent = [
            state if way == "sum" else _in_row(state, group)
            for (_, way), own in zip(self._metrics, self._own, strict=True)
            for state in own
        ]
        sums = iter(group.sums(sent))
        for (metric, way), own in zip(self._metrics, self._own, strict=True):
            found = [next(sums) for _ in own]
            states = found if way == "sum" else _combined(metric, way, found)
            for variable, state in zip(metric.variables, states, strict=True):
                variable.assign(state)


def _combined(metric: Any, way: Combination | None, stacked: Sequence[NDArray[Any]]) -> States:
    """The combined state of several parts, which are stacked along a new first axis."""
    if way == "sum":
        return [one.sum(axis=0, dtype=one.dtype) for one in stacked]
    if way in ("max", "min"):
        return [one.max(axis=0) if way == "max" else one.min(axis=0) for one in stacked]
    assert callable(way)
    metric.reset_state()
    start = [tf.convert_to_tensor(variable.numpy()) for variable in metric.variables]
    return [one.numpy() for one in call_combination(way, start, [tf.constant(one) for one in stacked])]


def _in_row(state: NDArray[Any], group: PeerGroup) -> NDArray[Any]:
    """A row for each peer, of zeros but for that of this one: the sum over the peers holds all."""
    rows = np.zeros((group.size, *state.shape), state.dtype)
    rows[group.rank] = state
    return rows
