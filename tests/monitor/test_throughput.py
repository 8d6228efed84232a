"""Throughput: samples a second of all peers together."""

from __future__ import annotations

import math

import numpy as np

from kungfu.compiler.replay import Replay
from kungfu.monitor import throughput
from tests.compiler.small import plan_showing

PLAN = plan_showing(lambda t: throughput(t, decay=0.5))


def watched(replay: Replay, *, samples: list[float], seconds: list[float], pending: bool = False) -> float:
    local = [{"samples": b, "step_seconds": s} for b, s in zip(samples, seconds, strict=True)]
    return float(replay.step(local, {"step": 1, "pending": pending}).watched[0])


def test_it_adds_up_what_each_peer_did_in_the_step_that_was_timed() -> None:
    replay = Replay(PLAN, size=2)
    assert math.isnan(watched(replay, samples=[8, 4], seconds=[math.nan, math.nan]))
    # The seconds are those of the step before, with its 8 and 4 samples.
    assert watched(replay, samples=[100, 100], seconds=[0.5, 0.25]) == 8 / 0.5 + 4 / 0.25


def test_it_is_smoothed() -> None:
    replay = Replay(PLAN, size=1)
    values = [watched(replay, samples=[10], seconds=[s]) for s in (math.nan, 1.0, 0.5)]
    np.testing.assert_allclose(values, [math.nan, 10, (10 * 0.5 + 20) / 1.5], rtol=1e-6)


def test_steps_while_a_change_is_pending_do_not_count() -> None:
    replay = Replay(PLAN, size=1)
    watched(replay, samples=[10], seconds=[math.nan])
    before = watched(replay, samples=[10], seconds=[1.0])
    assert watched(replay, samples=[10], seconds=[9.0], pending=True) == before


def test_a_peer_that_cannot_tell_yet_makes_the_step_not_count() -> None:
    replay = Replay(PLAN, size=2)
    watched(replay, samples=[10, 10], seconds=[1.0, 1.0])
    before = watched(replay, samples=[10, 10], seconds=[1.0, 1.0])
    assert watched(replay, samples=[10, 10], seconds=[0.1, math.nan]) == before == 20


def test_a_rescale_starts_it_again() -> None:
    replay = Replay(PLAN, size=1)
    for seconds in (math.nan, 1.0):
        watched(replay, samples=[10], seconds=[seconds])
    replay.rescale(2)
    assert math.isnan(watched(replay, samples=[10, 10], seconds=[1.0, 1.0]))
    assert watched(replay, samples=[10, 10], seconds=[1.0, 1.0]) == 20


def test_it_costs_one_float_and_no_message() -> None:
    assert (PLAN.piggybacked.floats(5), PLAN.messages_per_step) == (1, 0)
