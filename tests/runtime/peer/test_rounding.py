"""Peers whose states differ by rounding: they go on with rank 0's values, and say so; anything more ends the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kungfu.errors import PeerFailure
from tests.runtime.peer.held import Numbers
from tests.runtime.peer.running import Job, barrier, errors_of, job

WEIGHTS = np.linspace(-2.0, 2.0, 5, dtype=np.float32)
TABLE = np.arange(1 << 16, dtype=np.float32)  # 256 KiB: a barrier compares one slice of it


def numbers(by: float = 0.0, *, count: int = 7) -> Numbers:
    """Weights that are off by so much, a count, and a table."""
    return Numbers(WEIGHTS + np.float32(by), np.int64(count), TABLE)


def same(running: Job) -> bool:
    first, *others = [member.state.digest() for member in running.members]
    return all(one == first for one in others)


def test_weights_that_differ_by_rounding_become_those_of_rank_0_and_it_is_told() -> None:
    with job(numbers(), numbers(), numbers()) as running:
        running.members[1].state.variables[0] += np.float32(1e-5)
        running.members[2].state.variables[0] *= np.float32(1 + 1e-6)
        results = running.all_do(barrier())
        assert [result.rank for result in results] == [0, 1, 2]
        assert same(running)
        np.testing.assert_array_equal(running.members[2].state.variables[0], WEIGHTS)
        (event,) = running.events("rounded")
    assert (event["view"], event["ranks"], event["variables"]) == (1, [1, 2], 1)
    (widest,) = event["widest"]
    assert widest["name"] == "v0"
    assert widest["difference"] == pytest.approx(1e-5, rel=0.05)
    assert widest["largest"] == 2.0


def test_a_slice_that_differs_brings_the_whole_variable_with_it() -> None:
    """What other slices hold may differ as well, and is not compared before its turn."""
    with job(numbers(), numbers()) as running:
        running.members[1].state.variables[2] *= np.float32(1 + 1e-6)
        running.all_do(barrier())
        assert same(running)


@pytest.mark.parametrize(("compared", "barriers"), [("part", 32), ("all", 1)])
def test_what_differs_in_one_slice_is_found_in_its_turn_or_where_all_is_compared(compared: str, barriers: int) -> None:
    with job(numbers(), numbers()) as running:
        running.members[1].state.variables[2][-1] += np.float32(0.01)  # in the last slice
        for _ in range(barriers):
            running.hold_each(compared=[compared] * 2)
        assert same(running)
        assert len(running.events("rounded")) == 1


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, lambda one: np.add(one, 1e-3, out=one), "v0 of rank 1 is not that of rank 0, by up to 0.001, where the"),
        (0, lambda one: np.copyto(one[:1], np.nan), "v0 of rank 1 is not that of rank 0"),
        (1, lambda one: np.add(one, 1, out=one), "v1 of rank 1 is not that of rank 0"),
    ],
    ids=["more", "nan", "whole"],
)
def test_what_differs_by_more_or_is_whole_ends_the_job_on_all(
    place: int, change: Callable[[Any], None], words: str
) -> None:
    with job(numbers(), numbers()) as running:
        change(running.members[1].state.variables[place])
        outcomes = running.all_do(barrier())
        for error in errors_of(outcomes):
            assert error.startswith(f"UsageError: the peers of view 1 do not hold the same state: {words}")
        assert running.events("rounded") == []


def test_peers_of_a_new_view_even_out_differences_in_uncompared_slices() -> None:
    with job(numbers(), numbers()) as running:
        running.members[1].state.variables[2][-1] += np.float32(0.01)
        _, joining = running.grow(numbers(5.0, count=1))
        assert joining.result(10.0).after.view.size == 3
        assert same(running)
        np.testing.assert_array_equal(running.members[2].state.variables[2], TABLE)
        assert [event["view"] for event in running.events("rounded")] == [2]


def test_the_last_barrier_evens_out_too() -> None:
    with job(numbers(), numbers()) as running:
        running.members[1].state.variables[0] += np.float32(1e-6)
        terms = running.all_do(barrier())[0].after.terms
        running.members[1].state.variables[0] += np.float32(1e-6)
        running.hold_each("final_barrier", terms=[terms] * 2)
        assert same(running)
        assert len(running.events("rounded")) == 2


def test_a_peer_that_is_lost_while_values_are_compared_is_a_lost_peer() -> None:
    with job(numbers(), numbers()) as running:
        running.members[1].expect_within(1.0)
        running.members[1].state.variables[0] += np.float32(1e-6)

        def gone(places: Any) -> Any:
            raise PeerFailure("it died here")

        running.members[0].state.values = gone
        outcomes = running.all_do(barrier())
        assert [type(one).__name__ for one in outcomes] == ["PeerFailure", "DeadlineExceeded"]
        assert "rank 0" in str(outcomes[1])
