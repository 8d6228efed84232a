"""Slow peers and jitter: what is drawn, what it does to a step, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu.errors import UsageError
from kungfu.testing.peer_speeds import PeerSpeeds, SlowPeer, SpeedSampler

NAN = math.nan


def drawn(speeds: PeerSpeeds, peer: int, steps: int) -> list[float]:
    sampler = SpeedSampler(speeds)
    return [sampler.durations([peer])[0] for _ in range(steps)]


def test_draws_are_normal_around_one_and_cut_at_three_standard_deviations() -> None:
    values = np.array(drawn(PeerSpeeds(jitter=0.1), 0, 20_000))
    assert abs(values.mean() - 1) < 0.003
    assert abs(values.std() - 0.1) < 0.003
    assert values.min() >= 0.7
    assert values.max() <= 1.3
    assert np.mean(np.abs(values - 1) < 0.1) == pytest.approx(0.683, abs=0.015), "normal"


def test_a_peer_draws_the_same_whoever_else_is_there() -> None:
    alone, together = SpeedSampler(PeerSpeeds(0.1, 7)), SpeedSampler(PeerSpeeds(0.1, 7))
    expected = [alone.durations([3])[0] for _ in range(300)]
    assert [together.durations([0, 3] if step % 2 else [3, 5, 0])[step % 2] for step in range(300)] == expected
    assert (
        len({*drawn(PeerSpeeds(0.1, 7), 3, 9), *drawn(PeerSpeeds(0.1, 8), 3, 9), *drawn(PeerSpeeds(0.1, 7), 4, 9)})
        == 27
    )


def test_the_draws_of_a_seed_are_these_for_good() -> None:
    np.testing.assert_allclose(
        drawn(PeerSpeeds(jitter=0.1, seed=1), 2, 3), DRAWN, rtol=1e-12, err_msg="records of benchmarks would change"
    )


DRAWN = [0.8454732400628148, 1.0540845924507067, 1.1528611027900157]


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (SlowPeer(0.5, peer=3), [0.5, 0.5, 0.5]),
        (SlowPeer(0.5, peer=4), [1, 1, 1]),
        (SlowPeer(0.5, host=1), [0.5, 0.5, 0.5]),
        (SlowPeer(0.5, host=1, slot=2), [0.5, 0.5, 0.5]),
        (SlowPeer(0.5, host=1, slot=1), [1, 1, 1]),
        (SlowPeer(0.5, host=0), [1, 1, 1]),
        (SlowPeer(0.5, peer=3, from_step=2), [1, 0.5, 0.5]),
        (SlowPeer(0.5, peer=3, from_step=2, until_step=3), [1, 0.5, 1]),
    ],
)
def test_a_slow_peer_is_named_by_itself_or_by_its_place_and_from_when_on(slow: SlowPeer, expected: list[float]) -> None:
    speeds = PeerSpeeds(slow=[slow])
    assert [speeds.factor(3, (1, 2), step) for step in (1, 2, 3)] == expected


def test_entries_about_one_peer_multiply() -> None:
    assert PeerSpeeds(slow=[SlowPeer(0.5, peer=3), SlowPeer(0.5, host=0)]).factor(3, (0, 0), 1) == 0.25


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: PeerSpeeds(jitter=NAN), r"PeerSpeeds\(jitter=nan\): takes a fraction of at least 0 and below 1/3"),
        (lambda: PeerSpeeds(jitter=-0.1), "jitter=-0.1"),
        (lambda: PeerSpeeds(jitter=0.34), "jitter=0.34"),
        (lambda: PeerSpeeds(seed=-1), "seed=-1"),
        (lambda: PeerSpeeds(seed=2**32), "takes a whole number from 0 to"),
        (lambda: SlowPeer(0, peer=1), "speed=0"),
        (lambda: SlowPeer(NAN, peer=1), "speed=nan"),
        (lambda: SlowPeer(math.inf, peer=1), "speed=inf"),
        (lambda: SlowPeer(0.5), "takes a peer, or a host, or a host and a slot"),
        (lambda: SlowPeer(0.5, peer=1, host=0), "takes a peer, or a host, or a host and a slot"),
        (lambda: SlowPeer(0.5, peer=1, slot=0), "takes a peer, or a host, or a host and a slot"),
        (lambda: SlowPeer(0.5, peer=-1), r"peer=-1\): takes a whole number from 0 on"),
        (lambda: SlowPeer(0.5, host=True), "host=True"),
        (lambda: SlowPeer(0.5, peer=1, from_step=0), "takes whole numbers with 1 <= from_step < until_step"),
        (lambda: SlowPeer(0.5, peer=1, from_step=5, until_step=5), "until_step=5"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()
