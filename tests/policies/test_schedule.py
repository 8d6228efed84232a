"""A fixed schedule of cluster sizes."""

from __future__ import annotations

import numpy as np
import pytest

from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Rescale
from kungfu.policies import schedule
from kungfu.testing import ClusterModel, Rescaling, Start, run_on_model

CALM = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False}


def test_each_size_is_asked_for_from_its_step_on_until_it_is_reached() -> None:
    replay = Replay(compile_policies([schedule({5: 2, 3: 4})]), size=2)
    targets = []
    for number in range(1, 8):
        outcome = replay.step([{}] * replay.size, {**CALM, "step": number})
        targets.append(float(outcome.targets[0]))
        if outcome.fired[0] and number != 3:  # the first request is not served at once
            replay.rescale(int(outcome.targets[0]))
    np.testing.assert_array_equal(targets, [np.nan, np.nan, 4, 4, 2, np.nan, np.nan])


def test_a_moment_missed_because_the_barrier_may_change_the_size_is_made_up_for() -> None:
    replay = Replay(compile_policies([schedule({2: 4})]), size=2)
    fired = [
        bool(replay.step([{}] * 2, {**CALM, "step": number, "change_due": number < 4}).fired[0])
        for number in range(1, 6)
    ]
    assert fired == [False, False, False, True, True]


def test_joiners_that_never_come_hold_up_no_later_size() -> None:
    never = ClusterModel(
        {1: 100, 3: 300}, steps=400, start=Start(size=1, max_size=3), rescaling=Rescaling(joining_steps=100_000)
    )
    run = run_on_model(schedule({10: 3, 200: 1, 300: 2}), never)
    assert [(one.step, one.value) for one in run.decisions] == [(10, 3.0), (200, 1.0), (300, 2.0)]
    assert (run.size, run.changes) == (1, ())


@pytest.mark.parametrize(
    ("sizes", "size", "limits", "expected"),
    [
        ({2: 1}, 1, (1, 8), [None, None, None]),  # it has one peer already
        ({2: 4}, 1, (1, 8), [None, 4, 4]),
        ({1: 9}, 2, (1, 4), [4, 4, 4]),  # the most that the job may have
        ({1: 1}, 3, (2, 4), [2, 2, 2]),  # the fewest
        ({3: 4}, 2, (1, 8), [None, None, 4]),  # before the first step of the table nothing is wanted
        ({1: 9}, 4, (1, 4), [None, None, None]),  # at the limit already
        ({0: 3}, 2, (1, 8), [3, 3, 3]),  # step 0 holds from the start
    ],
)
def test_it_asks_for_what_is_not_so_within_the_limits_of_the_job(
    sizes: dict[int, int], size: int, limits: tuple[int, int], expected: list[int | None]
) -> None:
    replay = Replay(compile_policies([schedule(sizes)]), size=size)
    agreed = {**CALM, "min_size": limits[0], "max_size": limits[1]}
    outcomes = [replay.step([{}] * size, {**agreed, "step": number}) for number in (1, 2, 3)]
    assert [int(one.targets[0]) if one.fired[0] else None for one in outcomes] == expected


def test_a_size_that_was_refused_is_not_asked_for_again() -> None:
    replay = Replay(compile_policies([schedule({1: 4})]), size=2)
    assert not replay.step([{}] * 2, {**CALM, "step": 1, "refused_size": 4}).fired[0]


def test_it_keeps_the_batch_size_that_it_was_told_to() -> None:
    action = compile_policies([schedule({1: 2}, keep="global_batch_size")]).rules[0].action
    assert isinstance(action, Rescale)
    assert action.keep == "global_batch_size"


def test_it_needs_no_message_no_rider_and_remembers_what_it_wanted_last() -> None:
    plan = compile_policies([schedule({1: 2, 10: 4, 20: 1})])
    assert (plan.messages_per_step, plan.piggybacked.floats(9), len(plan.folds)) == (0, 0, 1)
