"""The variance of the gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kungfu.compiler.replay import Replay
from kungfu.monitor import gradient_noise_scale, gradient_variance
from tests.compiler.small import plan_showing


def variance_on(size: int, *, decay: float = 1.0) -> Replay:
    return Replay(plan_showing(lambda t: gradient_variance(t, decay=decay)), size=size)


def seen(replay: Replay, *gradients: list[float], samples: float = 1.0) -> float:
    local = [{"grads": [np.array(one, np.float32)], "samples": samples} for one in gradients]
    return float(replay.step(local, {"step": 1, "pending": False}).watched[0])


def test_the_case_of_its_documentation() -> None:
    assert seen(variance_on(2), [3, 0], [1, 0]) == 2


def test_alone_it_is_undefined() -> None:
    assert math.isnan(seen(variance_on(1), [3, 0]))


@pytest.mark.slow
def test_it_estimates_the_trace_of_the_covariance_of_one_sample() -> None:
    rng, replay = np.random.default_rng(1), variance_on(3, decay=0.005)
    deviations = np.array([1.0, 2.0, 0.5])
    for _ in range(1500):
        means = rng.normal(5.0, deviations / np.sqrt(4), (3, 3))  # of four samples on each of three peers
        value = seen(replay, *means.tolist(), samples=4.0)
    np.testing.assert_allclose(value, np.sum(deviations**2), rtol=0.15)


def test_beside_the_noise_scale_it_costs_nothing_more() -> None:
    together = plan_showing(gradient_variance, gradient_noise_scale)
    assert (together.piggybacked.floats(4), together.messages_per_step) == (5, 0)
    # Beside them the hook has one that remembers whether it waits.
    assert len([fold for fold in together.folds if fold.type.dtype == "float32"]) == 2
