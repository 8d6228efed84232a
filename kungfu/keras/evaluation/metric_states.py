"""The states of a model's metrics over an evaluation, combined from the peers' parts.

After the evaluation of a peer's part, a metric has the same state as after a training step with this part as the peer's
slice. So sums are added, and other states are combined by the program's ``combine``. A "mean" of states cannot be
computed, as the number of batches behind each state is unknown.
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
    """The states of all metrics of a model; ``combine`` is the argument of ``kf.keras.attach``."""

    def __init__(self, metrics: Sequence[Any], combine: Mapping[str, Combination]) -> None:
        self._metrics = [(one, "sum" if adds_up(one) else combine.get(one.name)) for one in metrics]
        self._own: list[States] = []  # of each metric, over this peer's parts

    @property
    def can_be_combined(self) -> bool:
        """True if the combination of the parts gives the whole job's state for every metric."""
        return all(way not in (None, "mean") for _, way in self._metrics)

    def add_part(self) -> None:
        """Adds the metrics' present states, in which a part has just been evaluated."""
        part = [[np.asarray(variable.numpy()) for variable in metric.variables] for metric, _ in self._metrics]
        # After a loss of peers this peer also evaluates a part of theirs.
        if self._own:
            pairs = [[np.stack(pair) for pair in zip(*both, strict=True)] for both in zip(self._own, part, strict=True)]
            part = [_combined(*one, stacked) for one, stacked in zip(self._metrics, pairs, strict=True)]
        self._own = part

    def join(self, group: PeerGroup) -> None:
        """Sets the metrics to the combined states of all peers, each with an evaluated part; costs one message."""
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
    """The combined state of several parts, stacked along a new first axis."""
    if way == "sum":
        return [one.sum(axis=0, dtype=one.dtype) for one in stacked]
    if way in ("max", "min"):
        return [one.max(axis=0) if way == "max" else one.min(axis=0) for one in stacked]
    assert callable(way)
    metric.reset_state()
    start = [tf.convert_to_tensor(variable.numpy()) for variable in metric.variables]
    return [one.numpy() for one in call_combination(way, start, [tf.constant(one) for one in stacked])]


def _in_row(state: NDArray[Any], group: PeerGroup) -> NDArray[Any]:
    """An array with a row per peer, zero except in this peer's row; the sum over the peers has all rows."""
    rows = np.zeros((group.size, *state.shape), state.dtype)
    rows[group.rank] = state
    return rows
