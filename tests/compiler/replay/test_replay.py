"""The replay: a cluster in NumPy, whose sums are those of a left fold in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kungfu import ops
from kungfu.compiler.replay import Replay
from kungfu.errors import UsageError
from tests.compiler.small import plan_showing

CALM = {"step": 1, "pending": False}


def replay(*signals: Any, size: int) -> Replay:
    """A replay that shows the signals that these functions of training give."""
    return Replay(plan_showing(*signals), size=size)


def test_a_sum_is_the_left_fold_in_rank_order_in_float32() -> None:
    values = [np.float32(one) for one in (1e8, 3.0, -1e8, 0.25)]
    shown = replay(lambda t: ops.all_reduce(t.loss, "sum"), size=4).step([{"loss": one} for one in values], CALM).inputs
    assert shown[0] == ((values[0] + values[1]) + values[2]) + values[3]
    assert shown[0] != np.float32(sum(map(float, values)))


def test_a_mean_is_the_sum_over_the_size_and_a_gather_keeps_the_rank() -> None:
    made = replay(
        lambda t: ops.all_reduce(t.loss, "mean"),
        lambda t: ops.sum(ops.all_gather(t.loss) * ops.all_gather(t.rank)),
        size=3,
    )
    assert made.step([{"loss": one} for one in (1.0, 2.0, 6.0)], CALM).inputs.tolist() == [3.0, 14.0]


def test_agreed_sources_follow_from_local_ones_weighted_by_samples() -> None:
    made = replay(
        lambda t: t.total_samples,
        lambda t: t.mean_loss,
        lambda t: ops.norm_squared(t.mean_grads),
        lambda t: t.local_batch_size,
        size=2,
    )
    local = [
        {"samples": 3.0, "loss": 1.0, "grads": [np.array([4.0, 0.0])]},
        {"samples": 1.0, "loss": 5.0, "grads": [np.array([0.0, 4.0])]},
    ]
    assert made.step(local, {**CALM, "global_batch_size": 4}).inputs.tolist() == [4, 2, 9 + 1, 2]


def test_a_peer_without_samples_has_no_say_even_with_nan() -> None:
    made = replay(lambda t: t.mean_loss, lambda t: ops.norm_squared(t.mean_grads), size=2)
    local = [
        {"samples": 2.0, "loss": 1.5, "grads": [np.array([2.0])]},
        {"samples": 0.0, "loss": np.nan, "grads": [np.array([np.nan])]},
    ]
    assert made.step(local, CALM).inputs.tolist() == [1.5, 4]


def test_what_is_given_is_not_computed() -> None:
    made = replay(lambda t: t.mean_loss, size=1)
    assert made.step([{"loss": 1.0, "samples": 1.0}], {**CALM, "mean_loss": 7.0}).inputs.tolist() == [7]


@pytest.mark.parametrize(
    ("signal", "local", "message"),
    [
        (lambda t: ops.all_reduce(t.loss, "sum"), {}, "the local source 'loss', and it was not given for every peer"),
        (lambda t: t.learning_rate, {}, "the agreed source 'learning_rate', and it was not given"),
        (lambda t: t.mean_loss, {"samples": 1.0}, "reads 'mean_loss': give it, or 'loss' to compute it from"),
        (lambda t: t.total_samples, {}, "reads 'total_samples': give it, or 'samples' to compute it from"),
    ],
)
def test_a_missing_source_is_named(signal: Any, local: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replay(signal, size=1).step([local], CALM)


def test_sources_of_another_number_of_peers_are_refused() -> None:
    with pytest.raises(UsageError, match="a cluster of 2 peers got local sources of 1; call rescale first"):
        replay(lambda t: t.step, size=2).step([{}], CALM)


def test_folds_are_kept_reset_or_started_as_they_declare_when_the_cluster_changes() -> None:
    def total(x: Any, on_rescale: str) -> Any:
        from kungfu.signal import fold

        return fold(lambda a, value: a + value, 0.0, x, on_rescale=on_rescale)

    made = replay(
        lambda t: total(t.mean_loss, "keep"),
        lambda t: total(t.mean_loss, "reset"),
        lambda t: ops.sum(ops.all_gather(total(t.loss, "keep"))),
        size=2,
    )

    def shown(*losses: float) -> list[float]:
        return list(made.step([{"loss": one} for one in losses], {**CALM, "mean_loss": 1.0}).inputs)

    assert shown(10.0, 20.0) == [1, 1, 30]
    made.rescale(3)
    assert shown(0.0, 0.0, 5.0) == [2, 1, 35]
    assert shown(0.0, 0.0, 5.0) == [3, 2, 40]
    made.rescale(1)
    assert shown(1.0) == [4, 1, 11]


def test_a_step_that_fails_leaves_the_states_as_they_were() -> None:
    made = replay(lambda t: t.mean_loss.ema(0.5), lambda t: ops.all_reduce(t.loss, "sum"), size=1)
    before = made.states
    with pytest.raises(UsageError):
        made.step([{}], {**CALM, "mean_loss": 1.0})
    assert made.states is before
