"""The states of metrics over the parts of an evaluation are those of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest

from kungfu.keras.evaluation.numbered_batches import numbered_batches
from kungfu.keras.evaluation.shared_pass import MetricStates, SharedPrediction
from kungfu.runtime.attachment.local import LocalAttachment
from kungfu.training.state.registered_sync import PeerGroup
from tests.keras.fitting import float64, network, points
from tests.training.peers import on_peers, total_of

BATCHES = [np.random.default_rng(seed).normal(size=(4,)) for seed in range(6)]


class Range(keras.metrics.Metric):
    """The largest value, and the product of the means of batches."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros", name="largest")
        self.product = self.add_variable((), "ones", name="product")

    def reset_state(self) -> None:
        self.largest.assign(-9.0)
        self.product.assign(1.0)

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(values)))
        self.product.assign(self.product * keras.ops.mean(values))

    def result(self) -> Any:
        return self.largest + self.product


def merged(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    return [keras.ops.max(after[0], axis=0), before[1] * keras.ops.prod(after[1] / before[1], axis=0)]


def metrics() -> list[Any]:
    return [keras.metrics.Mean(name="mean"), Range("range")]


def evaluated(found: Sequence[Any], numbers: Sequence[int]) -> None:
    for metric in found:
        metric.reset_state()
        for number in numbers:
            metric.update_state(BATCHES[number])


@pytest.mark.parametrize(
    "parts", [[[[0, 1]], [[2, 3]], [[4, 5]]], [[[0, 1], [4]], [[2, 3], [5]]], [[[0, 1, 2, 3, 4, 5]]]]
)
def test_the_parts_of_peers_come_to_what_one_finds_that_evaluates_all(parts):
    """Also of peers that have done a part of one that was lost."""
    with float64():
        whole, peers = metrics(), [metrics() for _ in parts]
        evaluated(whole, range(6))

        def peer(rank: int, attachment: LocalAttachment) -> None:
            states = MetricStates(peers[rank], {"range": merged})
            assert states.can_be_combined
            for numbers in parts[rank]:
                evaluated(peers[rank], numbers)
                states.add_part()
            states.join(PeerGroup(rank, len(parts), total_of(attachment)))

        on_peers(len(parts), peer)
        for found in peers:
            for one, other in zip(found, whole, strict=True):
                np.testing.assert_allclose(float(one.result()), float(other.result()), rtol=1e-12)


@pytest.mark.parametrize(("way", "result"), [("max", max), ("min", min)])
def test_the_largest_or_smallest_of_states_is_taken_element_by_element(way, result):
    with float64():
        found = Range("range")
        states, values = MetricStates([found], {"range": way}), []
        for numbers in ([0, 1], [2]):
            evaluated([found], numbers)
            values.append([float(one) for one in found.variables])
            states.add_part()
        states.join(PeerGroup(0, 1, lambda tensors: tensors))
        assert [float(one) for one in found.variables] == [result(pair) for pair in zip(*values, strict=True)]


@pytest.mark.parametrize(("combine", "can"), [({}, False), ({"range": "mean"}, False), ({"range": "sum"}, True)])
def test_a_metric_with_no_combination_given_and_a_mean_are_evaluated_whole(combine, can):
    assert MetricStates(metrics(), combine).can_be_combined is can


# ---- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_joined_predictions_are_those_of_the_whole_in_every_shape():
    """Also where a second part of each peer is that of one that was lost."""
    data, (x, _) = keras.Input((3,)), points()
    row = network(outputs=6)(data)
    table, best = keras.layers.Reshape((2, 3))(row), keras.ops.argmax(row, axis=-1)
    model = keras.Model(data, {"row": row, "table": table, "best": best})
    whole = model.predict(x, batch_size=8, verbose=0)
    batches = numbered_batches({"x": x, "batch_size": 8})
    parts = [[[0, 1], [4]], [[2, 3], [5, 6]]]
    peers = [SharedPrediction(model, {}, keras.callbacks.CallbackList([], model=model)) for _ in parts]
    for peer, numbers in zip(peers, parts, strict=True):
        assert all(peer.do({"verbose": 0, **batches.part(part)}, part) for part in numbers)

    def join(rank: int, attachment: LocalAttachment) -> Any:
        return peers[rank].join(PeerGroup(rank, len(parts), total_of(attachment)), count=batches.count)

    for found in on_peers(len(parts), join):
        assert {name: one.dtype for name, one in found.items()} == {name: one.dtype for name, one in whole.items()}
        for name, one in whole.items():
            np.testing.assert_allclose(found[name], one, rtol=1e-5, atol=1e-6)
