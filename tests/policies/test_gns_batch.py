"""The batch follows the gradient noise scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.policies import gns_batch

LIMITS = {"min_size": 1, "max_size": 16, "refused_size": 0, "pending": False}


def pair(centre: float, spread: float) -> list[dict[str, Any]]:
    """Two peers with one sample each, at a distance from their mean: S = 2 spread², |G|² = centre² - spread²."""
    return [{"grads": [np.array([centre + one, 0], np.float32)], "samples": 1.0} for one in (spread, -spread)]


@pytest.mark.parametrize(
    ("scale", "local_batch", "expected"),
    [(6.0, 1.0, 6), (7.4, 1.0, 7), (3.0, 0.5, 6), (30.0, 1.0, 8), (1.0, 1.0, 2), (1e-3, 1.0, 2)],
)
def test_it_asks_for_the_peers_that_make_up_one_noise_scale(scale: float, local_batch: float, expected: float) -> None:
    replay = Replay(compile_policies([gns_batch(max_peers=8, every=1, min_peers=2)]), size=3)
    idle = {"grads": [np.zeros(2, np.float32)], "samples": 0.0}
    local = [*pair(math.sqrt(2.0 / scale + 1), 1.0), idle]
    outcome = replay.step(local, {**LIMITS, "step": 1, "local_batch_size": np.float32(local_batch)})
    assert (bool(outcome.fired[0]), float(outcome.targets[0])) == (expected != 3, expected)


@pytest.mark.parametrize(
    ("steps", "limits", "expected"),
    [
        ([pair(2.0, 1.0)], {}, None),  # S = 2 over |G|² = 3: two thirds of a sample, and two peers are there
        ([pair(1.5**0.5, 1.0)], {}, 4),  # 2 / 0.5
        ([pair(1.5**0.5, 1.0)], {"max_size": 3}, 3),  # the most that the job may have
        ([pair(2.0, 0.0)], {}, None),  # equal gradients have no noise: the fewest peers, which are there
        ([pair(0.5, 1.0)], {}, None),  # |G|² is not positive: not known
        ([pair(math.nan, 1.0)], {}, None),
        # Averages with decay 0.5, corrected for their start: S = 2 / 3 + 8 * 2 / 3, |G|² = 1 / 3 + 0.625 * 2 / 3.
        ([pair(2**0.5, 1.0), pair(4.625**0.5, 2.0)], {}, 8),
        ([pair(1.5**0.5, 1.0), pair(math.nan, 1.0)], {}, 4),  # what is no number leaves the averages as they are
    ],
)
def test_it_decides_by_the_averages_of_numerator_and_denominator(
    steps: list[list[dict[str, Any]]], limits: dict[str, int], expected: int | None
) -> None:
    replay = Replay(compile_policies([gns_batch(max_peers=16, every=1, decay=0.5)]), size=2)
    agreed = {**LIMITS, **limits, "local_batch_size": np.float32(1)}
    for number, local in enumerate(steps, start=1):
        outcome = replay.step(local, {**agreed, "step": number})
    assert (int(outcome.targets[0]) if outcome.fired[0] else None) == expected


def test_it_looks_every_so_many_steps_only() -> None:
    replay = Replay(compile_policies([gns_batch(max_peers=8, every=3, min_peers=3)]), size=2)
    agreed = {**LIMITS, "local_batch_size": 1.0}
    fired = [bool(replay.step(pair(2.0, 1.0), {**agreed, "step": number}).fired[0]) for number in range(1, 7)]
    assert fired == [False, False, True, False, False, True]
