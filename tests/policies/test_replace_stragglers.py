"""Slow peers are replaced."""

from __future__ import annotations

import pytest

from kungfu.control import Replace
from kungfu.policies import replace_stragglers
from kungfu.testing import ClusterModel, FiredRule, Start, run_policy


def decisions(speeds: dict[int, float], *, steps: int = 200, **settings: float) -> list[FiredRule]:
    model = ClusterModel({1: 100, 8: 800}, steps=steps, start=Start(size=4), speed_by_peer=speeds)
    return list(run_policy(replace_stragglers(every=20, **settings), model))


def test_a_persistent_straggler_is_replaced_once() -> None:
    (one,) = decisions({2: 0.5})
    assert isinstance(one.action, Replace)
    assert (one.step, one.ranks, one.inputs) == (20, (2,), {"size": 4, "marked": 1, "rescales_left": 8})


def test_a_replacement_that_is_slow_too_is_replaced_again() -> None:
    # Peer 4 is the first that joins; it comes behind the three that stayed, so its rank is 3.
    assert [one.ranks for one in decisions({1: 0.5, 4: 0.5})] == [(1,), (3,)]


@pytest.mark.parametrize(("speed", "threshold", "found"), [(0.7, 0.8, 1), (0.9, 0.8, 0), (0.9, 0.95, 1), (0.7, 0.5, 0)])
def test_the_threshold_says_who_is_too_slow(speed: float, threshold: float, found: int) -> None:
    assert len(decisions({2: speed}, threshold=threshold)) == found


def test_where_all_are_alike_nobody_is_replaced() -> None:
    assert decisions({}) == []
