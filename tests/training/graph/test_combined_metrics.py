"""Metrics of the whole job: each way to combine what the peers have seen, against one that has seen it all."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.graph.combined_metrics import CombinedMetrics, PeerShare


class Extreme(keras.metrics.Metric):
    """The largest, or smallest, number."""

    def __init__(self, name: str, dtype: str = "float32") -> None:
        super().__init__(name=name)
        self._sign = 1 if name == "max" else -1
        self.found = self.add_variable((1,), lambda shape, dtype: np.full(shape, self._start(dtype)), dtype, name="it")

    def _start(self, dtype: str) -> Any:
        return -self._sign * (np.iinfo(dtype).max if "int" in dtype else np.inf)

    def reset_state(self) -> None:
        self.found.assign(np.full((1,), self._start(self.found.dtype)))

    def update_state(self, values: Any) -> None:
        largest = keras.ops.max(self._sign * keras.ops.cast(values, self.found.dtype))
        self.found.assign(self._sign * keras.ops.maximum(self._sign * self.found, largest))

    def result(self) -> Any:
        return self.found[0]


class Moving(keras.metrics.Metric):
    """A moving mean of means."""

    def __init__(self, name: str = "moving") -> None:
        super().__init__(name=name)
        self.mean = self.add_variable((), "zeros", "float64")

    def update_state(self, values: Any) -> None:
        self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(keras.ops.cast(values, "float64")))

    def result(self) -> Any:
        return keras.ops.convert_to_tensor(self.mean)


class Variance(keras.metrics.Metric):
    """Welford's: a count of whole numbers, and a mean and squares around it that belong together."""

    def __init__(self, name: str = "variance") -> None:
        super().__init__(name=name)
        self.mean = self.add_variable((), "zeros", "float64")
        self.count = self.add_variable((), "zeros", "int64")
        self.squares = self.add_variable((), "zeros", "float64")

    def update_state(self, values: Any) -> None:
        values = keras.ops.cast(values, "float64")
        state = [keras.ops.convert_to_tensor(one) for one in (self.mean, self.count, self.squares)]
        mean = keras.ops.mean(values)
        new = merged(state, [mean, keras.ops.size(values), keras.ops.sum((values - mean) ** 2)])
        for variable, value in zip((self.mean, self.count, self.squares), new, strict=True):
            variable.assign(value)

    def result(self) -> Any:
        return self.squares / keras.ops.cast(self.count, "float64")


def merged(one: Any, other: Any) -> list[Any]:
    """The state of both (Chan et al., 1979)."""
    (mean, count, squares), (more_mean, more_count, more_squares) = one, other
    a, b = tf.cast(count, tf.float64), tf.cast(more_count, tf.float64)
    apart = tf.cast(more_mean, tf.float64) - mean
    whole = tf.math.divide_no_nan(apart * b, a + b)
    return [mean + whole, count + tf.cast(more_count, tf.int64), squares + more_squares + apart * whole * a]


def together(before: list[Any], after: list[Any]) -> list[Any]:
    """Each peer's state holds the one before: it is taken off all but the first."""
    state = [one[0] for one in after]
    for rank in range(1, after[0].shape[0] or 3):
        mean, count, squares = (one[rank] for one in after)
        own = tf.cast(count - before[1], tf.float64)
        own_mean = (mean * tf.cast(count, tf.float64) - before[0] * tf.cast(before[1], tf.float64)) / own
        apart = own_mean - before[0]
        share = tf.cast(before[1], tf.float64) * own / tf.cast(count, tf.float64)
        state = merged(state, [own_mean, count - before[1], squares - before[2] - apart**2 * share])
    return state


def make() -> list[Any]:
    return [keras.metrics.Mean(name="plain"), Extreme("max"), Extreme("min", "int64"), Moving(), Variance()]


COMBINE = {"max": "max", "min": "min", "moving": "mean", "variance": together}


def step(peers: list[CombinedMetrics], slices: list[Any], *, samples: list[int], anew: bool) -> None:
    """A step of several peers, whose messages are added by hand."""
    sent = []
    for rank, (peer, values) in enumerate(zip(peers, slices, strict=True)):
        metrics = peer._metrics
        with peer.watched(peer.start(tf.constant(anew))) as watched:
            for metric in metrics:
                metric.update_state(values)
        place = PeerShare(tf.constant(float(samples[rank])), tf.constant(rank), tf.constant(len(peers)))
        empty = samples[rank] == 0
        sent.append([one * 0 if empty else one for one in peer.outgoing(watched.after(), place)])
    sums = [sum_of(one) for one in zip(*sent, strict=True)]
    for peer in peers:
        peer.conclude(sums)


def sum_of(values: Any) -> Any:
    """As a message adds: where one has nothing to say, infinities of others stay."""
    return tf.constant(
        np.sum([np.nan_to_num(np.asarray(one), nan=0.0, posinf=np.inf, neginf=-np.inf) for one in values], axis=0)
    )


@pytest.mark.parametrize("empty", [None, 1])
def test_every_way_comes_to_what_one_metric_comes_to_that_has_seen_all(empty):
    draw = np.random.default_rng(0)
    peers, alone = [CombinedMetrics(make(), COMBINE) for _ in range(3)], make()
    for epoch in range(2):
        for metric in alone:
            metric.reset_state()
        for number in range(3):
            slices = [draw.normal(size=count) * 100 for count in (4, 2, 3)]
            samples = [0 if rank == empty else len(one) for rank, one in enumerate(slices)]
            step(peers, slices, samples=samples, anew=number == 0)
            for metric in alone:
                metric.update_state(np.concatenate([one for one, count in zip(slices, samples, strict=True) if count]))
        for peer in peers:
            peer.show()
            for mine, other in zip(peer._metrics, alone, strict=True):
                np.testing.assert_allclose(mine.result(), other.result(), rtol=1e-5, err_msg=f"{other.name} {epoch}")


def test_what_is_said_of_a_metric_has_to_fit():
    mean, largest, whole = keras.metrics.Mean(name="plain"), Extreme("max"), Extreme("min", "int64")
    for metrics, combine, told in (
        ([largest], {}, r"the metric 'max' \(Extreme\) in a job: kungfu does not know .* combine=\{'max': 'sum'\}"),
        ([mean], {"other": "max"}, "combine= names 'other': the metrics are plain"),
        ([largest], {"max": "median"}, r"combine=\{'max': 'median'\}: must be one of 'sum', 'mean', 'max', 'min'"),
        ([largest], {"max": "sum"}, r"after reset_state\(\) the variable 'it' is .* and a sum starts from zeros"),
        ([whole], {"min": "mean"}, "is of int64, which has no exact mean"),
    ):
        with pytest.raises(UsageError, match=told):
            CombinedMetrics(metrics, combine)


def test_a_function_that_gives_another_number_of_states_is_refused():
    peer = CombinedMetrics([Moving()], {"moving": lambda before, after: [*before, *before]})
    with pytest.raises(UsageError, match="returned 2 states for a metric with 1"):
        step([peer], [np.ones(2)], samples=[2], anew=True)
