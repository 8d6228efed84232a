"""Metrics of the whole job: the states of Keras' metrics, added up over the peers in every step.

A metric that keeps totals and counts forgets nothing when they are added: that of the job is the sum over its peers.
So in a step each metric starts from zeros and sees this peer's slice; its state rides on the message of the gradients;
and the sum is added to the *totals* of the epoch, which are equal on all peers. A peer that joins is given them with
the state, what a peer that leaves has seen is in them, and a step that fails leaves them as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import loss_tracker

__all__ = ["SummedMetrics", "adds_up", "metrics_of"]

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


def metrics_of(model: Any) -> list[Any]:
    """All metrics that a training step of the model updates, each once; those of ``compile`` one by one."""
    tracker = loss_tracker(model)
    top = [*model.metrics, *([] if tracker is None else [tracker])]
    found: dict[int, Any] = {}
    for metric in top:
        for one in _parts(metric):
            found[id(one)] = one
    return list(found.values())


def _parts(metric: Any) -> Iterator[Any]:
    """What ``compile`` was given is one metric that holds the others."""
    inside = getattr(metric, "metrics", None)
    if inside is None:
        yield metric
    else:
        for one in inside:
            yield from _parts(one)


class SummedMetrics:
    """The totals of an epoch, and how a step adds to them.

    Args:
        metrics: Built ones.

    Raises:
        UsageError: The state of a metric cannot be added up; it names the metric.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        for metric in metrics:
            _refuse_unless_additive(metric)
        self._states = [variable.value for metric in metrics for variable in metric.variables]
        self.totals = [
            tf.Variable(tf.zeros_like(state), trainable=False, name=f"kungfu/fit_total_{place}")
            for place, state in enumerate(self._states)
        ]

    def begin(self) -> None:
        """Graph: the metrics see this step only."""
        for state in self._states:
            state.assign(tf.zeros_like(state))

    def seen(self) -> list[Any]:
        """Graph: what they have seen of this step on this peer."""
        return [state.read_value() for state in self._states]

    def add(self, sums: Sequence[Any], *, anew: Any) -> None:
        """Graph: the totals go on by what all peers have seen, or begin ``anew`` with an epoch; the metrics hold them.

        Args:
            sums: Of ``seen()`` over the peers.
            anew: Bool scalar, agreed.
        """
        for state, total, more in zip(self._states, self.totals, sums, strict=True):
            total.assign(tf.where(anew, tf.zeros_like(more), total.read_value()) + more)
            state.assign(total.read_value())

    def logs(self, model: Any) -> dict[str, Any]:
        """Host: the numbers of the epoch, whatever a validation has left in the metrics of the model."""
        self.show()
        return dict(model.get_metrics_result())

    def show(self) -> None:
        """Host: the metrics hold the totals of the epoch."""
        for state, total in zip(self._states, self.totals, strict=True):
            state.assign(total)


def adds_up(metric: Any) -> bool:
    """Whether the state of a metric is known to be a sum over samples."""
    kind = type(metric)
    return isinstance(metric, _ADDITIVE) and all(_is_of_keras(kind, name) for name in ("update_state", "reset_state"))


def _refuse_unless_additive(metric: Any) -> None:
    if adds_up(metric):
        return
    kind = type(metric)
    allowed = ", ".join(one.__name__ for one in _ADDITIVE)
    raise UsageError(
        f"the metric {metric.name!r} ({kind.__name__}) was given to a fit under kungfu-run: kungfu does not know that "
        "its state adds up over the peers, so the job's value would be one peer's; use one of Keras' own that keeps "
        f"sums ({allowed}, and what is built on them, such as a function, which becomes a mean), or compute it in "
        "model.evaluate() after the training"
    )


def _is_of_keras(kind: type, method: str) -> bool:
    """Whether a metric has this method from Keras: one of the user's own may keep something else than sums."""
    owner = next(one for one in kind.__mro__ if method in vars(one))
    is_public = getattr(keras.metrics, owner.__name__, None) is owner
    return is_public or any(issubclass(one, owner) for one in _ADDITIVE)
