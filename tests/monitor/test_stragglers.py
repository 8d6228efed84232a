"""Stragglers: peers that are persistently slower than the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import CompiledPolicies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.monitor import slowest_in_a_row, straggler_fractions, stragglers
from kungfu.signal import TrainingSignals
from tests.compiler.small import plan_of

PLAN = plan_of(lambda t: control.always().replace(stragglers(t)))
IN_A_ROW = plan_of(lambda t: control.always().replace(slowest_in_a_row(t) >= 3))
FAR_BEHIND = plan_of(lambda t: control.always().replace(slowest_in_a_row(t, threshold=0.8) >= 3))


def algorithm_1(speeds: list[list[float]], *, alpha: float, threshold: float) -> list[list[bool]]:
    """The paper's algorithm, with every average at 1 before the first step; who straggles after each step."""
    averages, found = np.ones(len(speeds[0])), []
    for now in speeds:
        averages = alpha * (np.array(now) / np.median(now)) + (1 - alpha) * averages
        found.append((averages < threshold).tolist())
    return found


def marked(
    replay: Replay,
    seconds: list[float],
    *,
    beside: tuple[int, ...] | None = (),
    pending: bool = False,
    samples: float = 8.0,
) -> list[int]:
    """The ranks that are marked in a step in which the peers took so long; it knows of the steps before it.

    A joiner gets ready on the host of the ranks `beside`; with None the record tells of none.
    """
    local = [{"samples": samples, "busy_seconds": one, "rank": rank} for rank, one in enumerate(seconds)]
    if beside is not None:
        local = [{**one, "host_joiners": int(rank in beside)} for rank, one in enumerate(local)]
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


EVEN, SLOW, QUICK = [1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 0.9, 1.0]
# By a name: the plan, the seconds of the peers step by step, and who is marked in the last steps, nobody before.
CASES: dict[str, tuple[CompiledPolicies, list[list[float]], list[list[int]]]] = {
    "half speed is marked behind the fifth step": (PLAN, [SLOW] * 6, [[1]]),
    "one slow step marks nobody": (PLAN, [EVEN] * 5 + [[1.0, 5.0, 1.0]] + [EVEN] * 5, []),
    "alone nobody is slow": (PLAN, [[1.0], *[[9.0]] * 6], []),
    "the slowest of three steps in a row is marked in the next one": (IN_A_ROW, [[1.0, 1.01, 1.0]] * 5, [[1], [1]]),
    "one step in which it is not the slowest ends the row": (IN_A_ROW, [SLOW, SLOW, QUICK, *[SLOW] * 4], [[1]]),
    "no row is long enough": (IN_A_ROW, [SLOW, SLOW, QUICK] * 10, []),
    "of equally fast ones nobody is the slowest": (IN_A_ROW, [[1.0] * 4] * 20, []),
    "alone nobody is the slowest": (IN_A_ROW, [[9.0]] * 20, []),
    "of two equally slow ones the lower rank is marked": (IN_A_ROW, [[1.0, 2.0, 1.0, 2.0]] * 4, [[1]]),
    "a small lag is above the threshold": (FAR_BEHIND, [[1.0, 1.2, 1.0]] * 20, []),
    "a large lag is below the threshold": (FAR_BEHIND, [[1.0, 1.3, 1.0]] * 4, [[1]]),
}


@pytest.mark.parametrize("case", CASES)
def test_who_is_slow_for_long_enough_is_marked(case: str) -> None:
    plan, steps, last = CASES[case]
    replay = Replay(plan, size=len(steps[0]))
    assert [marked(replay, one) for one in steps] == [[]] * (len(steps) - len(last)) + last


def test_by_the_average_it_is_a_straggler_though_no_row_is_long_enough() -> None:
    replay = Replay(PLAN, size=3)
    assert [marked(replay, one) for one in [SLOW, SLOW, QUICK] * 10][-1] == [1]


@pytest.mark.parametrize(
    "skipped",
    [
        {"seconds": [1.0, math.nan, 1.0]},
        {"seconds": [1.0, 9.0, 1.0], "pending": True, "beside": None},
        {"seconds": [1.0, 9.0, 1.0], "beside": (1,)},
        {"seconds": [9.0, 9.0, 9.0], "beside": (0, 1, 2)},
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


# ---- joiners --------------------------------------------------------------------------------------------------------


def test_while_the_job_grows_a_straggler_on_another_host_than_the_joiner_is_marked() -> None:
    replay = Replay(PLAN, size=4)
    steps = [marked(replay, [1.0, 1.0, 2.0, 1.0], beside=(0, 1)) for _ in range(6)]
    assert steps == [[], [], [], [], [], [2]]


def test_peers_beside_a_joiner_do_not_move_the_median_under_the_others() -> None:
    # Ranks 0 to 2 of 5 run at half speed beside a joiner: by their speeds now, the median would be theirs.
    replay = Replay(PLAN, size=5)
    marked(replay, [1.0, 1.0, 1.0, 1.0, 1.6])
    found = [marked(replay, [2.0, 2.0, 2.0, 1.0, 1.6], beside=(0, 1, 2)) for _ in range(8)]
    assert found[-1] == [4], "rank 4 is at 0.62 of the speed that the others have without a joiner"
    assert all(set(one) <= {4} for one in found)


def test_on_unlike_machines_the_joiner_makes_no_straggler_of_the_slower_ones() -> None:
    # The fast ranks 0 to 2, and the slow ones, of which 3 to 6 are beside the joiner. The median stays that of a slow
    # one; without those beside the joiner it would be that of a fast one, and rank 7 a straggler.
    replay = Replay(PLAN, size=8)
    alone = [0.75, 0.75, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    marked(replay, alone)
    crowded = [*alone[:3], 1.5, 1.5, 1.5, 1.5, 1.0]
    assert [marked(replay, crowded, beside=(3, 4, 5, 6)) for _ in range(40)] == [[]] * 40


def test_in_a_view_that_begins_with_a_joiner_its_neighbours_count_as_they_are() -> None:
    replay = Replay(PLAN, size=3)
    found = [marked(replay, [2.0, 2.0, 3.2], beside=(0, 1)) for _ in range(9)]
    assert found[-1] == [2]
    # With the joiner gone they are as fast as ever, and the straggler is twice as far behind.
    assert marked(replay, [1.0, 1.0, 3.2]) == [2]


def test_a_speed_from_before_a_rescale_is_not_held_against_those_after_it() -> None:
    replay = Replay(PLAN, size=3)
    marked(replay, [1.0, 1.0, 1.0])
    replay.rescale(4)
    # The shares are smaller now, and everybody is less efficient; ranks 0 to 2 are beside the next joiner.
    found = [marked(replay, [2.0, 2.0, 2.0, 2.0], beside=(0, 1, 2)) for _ in range(20)]
    assert found == [[]] * 20


def test_a_record_without_joiners_leaves_out_steps_with_a_pending_change() -> None:
    """A record without joiners leaves out what was measured while a change was pending."""
    replay = Replay(PLAN, size=3)
    for _ in range(20):
        assert marked(replay, [1.0, 9.0, 1.0], beside=None, pending=True) == []
    for _ in range(5):
        marked(replay, [1.0, 2.0, 1.0], beside=None)
    assert marked(replay, [1.0, 2.0, 1.0], beside=None) == [1]


# ---- the slowest in a row -------------------------------------------------------------------------------------------


def test_a_row_goes_along_with_its_peer_to_another_rank() -> None:
    replay = Replay(IN_A_ROW, size=3)
    for _ in range(2):
        marked(replay, [1.0, 1.0, 2.0])
    # Rank 0 leaves; who was rank 2 is rank 1 now, with two steps in its row. Another one joins.
    states = replay.states
    replay.states = {fold: tuple(values[1:] for values in fields) for fold, fields in states.items()}
    replay.rescale(2)
    replay.rescale(3)
    assert marked(replay, [1.0, 2.0, 1.0]) == []
    assert marked(replay, [1.0, 2.0, 1.0]) == [1]


@pytest.mark.parametrize(
    "between",
    [
        {"seconds": [1.0, math.nan, 1.0]},
        {"seconds": [9.0, 1.0, 1.0], "beside": (0, 1, 2)},
        {"seconds": [1.0, 9.0, 1.0], "samples": 0.0},
    ],
)
def test_a_step_that_says_nothing_neither_lengthens_nor_ends_a_row(between: dict[str, Any]) -> None:
    replay = Replay(IN_A_ROW, size=3)
    for _ in range(2):
        marked(replay, [1.0, 2.0, 1.0])
    for _ in range(5):
        assert marked(replay, **between) == []
    marked(replay, [1.0, 2.0, 1.0])
    assert marked(replay, [1.0, 2.0, 1.0]) == [1]


def test_both_monitors_share_the_speeds() -> None:
    plan = plan_of(lambda t: control.always().replace(stragglers(t) & (slowest_in_a_row(t) >= 3)))
    assert (plan.piggybacked.floats(5), plan.messages_per_step) == (15, 0)


# ---- cost, and numbers out of range ---------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, IN_A_ROW])
def test_it_costs_two_floats_a_peer_and_no_message(plan: CompiledPolicies) -> None:
    assert (plan.piggybacked.floats(5), plan.messages_per_step) == (10, 0)


@pytest.mark.parametrize(
    ("monitor", "name", "values", "bounds"),
    [
        *((monitor, "threshold", (-0.1, 1.5, math.nan), r"\[0, 1\]") for monitor in (stragglers, slowest_in_a_row)),
        (straggler_fractions, "alpha", (0, 1.5, math.nan), r"\(0, 1\]"),
    ],
)
def test_a_number_out_of_range_is_refused(monitor: Any, name: str, values: tuple[float, ...], bounds: str) -> None:
    for value in values:
        with pytest.raises(PolicyError, match=rf"{monitor.__name__}\({name}=.*in {bounds}"):
            monitor(TrainingSignals(), **{name: value})
