"""Stragglers: peers that are persistently slower than the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.monitor import straggler_fractions, stragglers
from kungfu.policy_definition import Policy
from kungfu.signal import TrainingSignals

PLAN = compile_policies([Policy("watching", lambda t: control.always().replace(stragglers(t)))])


def algorithm_1(speeds: list[list[float]], *, alpha: float, threshold: float) -> list[list[bool]]:
    """The paper's algorithm, with every average at 1 before the first step; who straggles after each step."""
    averages, found = np.ones(len(speeds[0])), []
    for now in speeds:
        averages = alpha * (np.array(now) / np.median(now)) + (1 - alpha) * averages
        found.append((averages < threshold).tolist())
    return found


def marked(replay: Replay, seconds: list[float], *, pending: bool = False, samples: float = 8.0) -> list[int]:
    """The ranks that are marked in a step in which the peers took so long; it knows of the steps before it."""
    local = [{"samples": samples, "busy_seconds": one} for one in seconds]
    outcome = replay.step(local, {"step": 1, "pending": pending, "min_size": 1})
    return np.flatnonzero(outcome.masks[0]).tolist()


@pytest.mark.parametrize("peers", [2, 3, 4, 7])
def test_it_is_algorithm_1_of_the_paper_one_step_later(peers: int) -> None:
    rng = np.random.default_rng(peers)
    seconds = np.where(np.arange(peers) == 1, 2.0, 1.0) * rng.uniform(0.9, 1.1, (30, peers))
    replay = Replay(PLAN, size=peers)
    found = [marked(replay, step.tolist()) for step in seconds]
    expected = algorithm_1((8.0 / seconds).tolist(), alpha=0.1, threshold=0.8)
    assert found[0] == []
    assert found[1:] == [np.flatnonzero(one).tolist() for one in expected[:-1]]
    assert found[-1] == [1]


def test_a_peer_at_half_speed_is_marked_behind_its_fifth_step() -> None:
    replay = Replay(PLAN, size=3)
    assert [marked(replay, [1.0, 2.0, 1.0]) for _ in range(6)] == [[], [], [], [], [], [1]]


def test_one_slow_step_marks_nobody() -> None:
    replay = Replay(PLAN, size=3)
    steps = [[1.0, 1.0, 1.0]] * 5 + [[1.0, 5.0, 1.0]] + [[1.0, 1.0, 1.0]] * 5
    assert [marked(replay, one) for one in steps] == [[]] * 11


def test_alone_nobody_is_slow() -> None:
    replay = Replay(PLAN, size=1)
    assert [marked(replay, [seconds]) for seconds in (1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0)] == [[]] * 7


@pytest.mark.parametrize(
    "skipped",
    [
        {"seconds": [1.0, math.nan, 1.0]},
        {"seconds": [1.0, 9.0, 1.0], "pending": True},
        {"seconds": [1.0, 9.0, 1.0], "samples": 0.0},
    ],
)
def test_a_step_that_says_nothing_of_the_peers_is_left_out(skipped: dict[str, Any]) -> None:
    replay = Replay(PLAN, size=3)
    for _ in range(4):
        marked(replay, [1.0, 2.0, 1.0])
    for _ in range(20):
        assert marked(replay, **skipped) == []
    marked(replay, [1.0, 2.0, 1.0])
    assert marked(replay, [1.0, 2.0, 1.0]) == [1]


def test_who_joins_starts_afresh_and_who_stays_does_not() -> None:
    replay = Replay(PLAN, size=2)
    for _ in range(8):
        marked(replay, [1.0, 3.0])
    replay.rescale(3)
    assert marked(replay, [1.0, 1.0, 1.0]) == [1]


def test_it_costs_two_floats_a_peer_and_no_message() -> None:
    assert (PLAN.piggybacked.floats(5), PLAN.messages_per_step) == (10, 0)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, math.nan])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    with pytest.raises(PolicyError, match=r"stragglers\(threshold=.*in \[0, 1\]"):
        stragglers(TrainingSignals(), threshold=threshold)


@pytest.mark.parametrize("alpha", [0, 1.5])
def test_an_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(PolicyError, match=r"straggler_fractions\(alpha=.*in \(0, 1\]"):
        straggler_fractions(TrainingSignals(), alpha=alpha)
