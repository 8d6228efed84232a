"""The walk through cluster sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy

CALM = {"step": 1, "pending": False, "refused_size": 0}
NAN = math.nan


def walked(
    edges: dict[int, bool], *, start: int, unit: int = 1, limits: tuple[int, int] = (1, 8), refused: int = 0
) -> list[int]:
    """The sizes visited from `start` on, where `edges` says of each size whether the next `unit` peers are worth it."""
    seen, visited = {start}, [start]
    while len(visited) < 30:
        size = visited[-1]

        def advantage(peers: Any) -> Any:
            known: Any = ops.constant(NAN)
            for low, worth in edges.items():
                if {low, low + unit} <= seen:
                    known = ops.where(peers == low, 1.0 if worth else -1.0, known)
            return known

        def body(training: Any) -> Any:
            wanted = control.hill_climb(advantage, unit=unit, min_peers=limits[0], max_peers=limits[1])
            return control.always().rescale(wanted)

        agreed = {**CALM, "min_size": 1, "max_size": 99, "refused_size": refused}
        outcome = Replay(compile_policies([Policy("walk", body)]), size=size).step([{}] * size, agreed)
        if not outcome.fired[0]:
            return visited
        visited.append(int(outcome.targets[0]))
        seen.add(visited[-1])
    raise AssertionError(f"it never settles: {visited}")


def worth_up_to(last: int, *, unit: int = 1) -> dict[int, bool]:
    return {low: low + unit <= last for low in range(100)}


def test_it_grows_while_that_is_worth_it_and_returns_from_the_size_that_is_not() -> None:
    assert walked(worth_up_to(5), start=2) == [2, 3, 4, 5, 6, 5]


def test_it_jumps_below_where_already_the_first_peers_are_not_worth_it() -> None:
    # Figure 3 of the paper, right: from 8 up to 12 fails, so 4 is tried, and 8 turns out to be worth it.
    assert walked(worth_up_to(8, unit=4), start=8, unit=4, limits=(1, 16)) == [8, 12, 4, 8]


def test_it_goes_down_as_far_as_it_has_to() -> None:
    assert walked(worth_up_to(2), start=5) == [5, 6, 4, 3, 2, 1, 2]


def test_at_the_upper_limit_it_looks_down_first() -> None:
    assert walked(worth_up_to(8), start=8) == [8, 7, 8]
    assert walked(worth_up_to(4), start=8) == [8, 7, 6, 5, 4, 3, 4]


def test_between_equal_limits_it_stays() -> None:
    assert walked(worth_up_to(5), start=3, limits=(3, 3)) == [3]


def test_a_size_that_was_refused_is_not_tried_again() -> None:
    assert walked(worth_up_to(8), start=4, refused=5) == [4, 3, 4]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(last=st.integers(1, 9), start=st.integers(1, 8), unit=st.integers(1, 3))
def test_it_settles_at_the_last_size_of_its_grid_that_is_worth_it(last: int, start: int, unit: int) -> None:
    grid = [size for size in range(1, 9) if (size - start) % unit == 0]
    worth = [size for size in grid[1:] if size <= last]
    assert walked(worth_up_to(last, unit=unit), start=start, unit=unit)[-1] == (worth[-1] if worth else grid[0])


@pytest.mark.parametrize(("unit", "least", "most"), [(0, 1, 4), (True, 1, 4), (1, 0, 4), (1, 5, 4)])
def test_a_walk_that_leads_nowhere_is_refused(unit: int, least: int, most: int) -> None:
    with pytest.raises(PolicyError, match="takes a whole number of peers from 1 on"):
        control.hill_climb(lambda peers: peers * 1.0, unit=unit, min_peers=least, max_peers=most)
