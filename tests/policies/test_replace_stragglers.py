"""Slow peers are replaced."""

from __future__ import annotations

from typing import Any

import pytest

import kungfu as kf
from kungfu.control import Replace
from kungfu.policies import autoscale, replace_stragglers, schedule
from kungfu.testing import (
    ClusterModel,
    FiredRule,
    HostSlots,
    PeerSpeeds,
    Rescaling,
    SlowPeer,
    Start,
    run_on_model,
    run_policy,
)

LINEAR = {1: 100, 8: 800}


def decisions(speeds: dict[int, float], *, steps: int = 200, size: int = 4, **settings: Any) -> list[FiredRule]:
    model = ClusterModel(LINEAR, steps=steps, start=Start(size=size), speed_by_peer=speeds)
    return list(run_policy(replace_stragglers(**{"every": 20, **settings}), model))


def on_arrays(busy: list[list[float]], **settings: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Step and ranks of each decision over steps in which the peers take so long; nothing comes of any."""
    arrays = {"samples": [[8.0] * len(row) for row in busy], "busy_seconds": busy}
    return [(one.step, one.ranks) for one in run_policy(replace_stragglers(**{"every": 1, **settings}), arrays)]


def changes(policies: Any, model: ClusterModel) -> list[tuple[int, tuple[int, ...], tuple[int, ...], int]]:
    """Of each change of the view the last step before it, who joined, who left, and the new size."""
    return [(one.step, one.joined, one.left, one.size) for one in run_on_model(policies, model).changes]


# ---- by the average: algorithm 1 ------------------------------------------------------------------------------------


def test_a_persistent_straggler_is_replaced_once() -> None:
    (one,) = decisions({2: 0.5})
    assert isinstance(one.action, Replace)
    assert (one.step, one.ranks, one.inputs) == (20, (2,), {"size": 4, "marked": 1, "replacements_left": 8})


BY_ROW = {"criterion": "slowest_in_a_row"}


@pytest.mark.parametrize(
    ("speeds", "given", "found"),
    [
        # Peer 4 is the first that joins; it comes behind the three that stayed, so its rank is 3.
        ({1: 0.5, 4: 0.5}, {}, [(20, (1,)), (40, (3,))]),
        ({0: 0.5, 4: 0.5}, BY_ROW, [(20, (0,)), (40, (3,))]),
        ({1: 0.5, 2: 0.4}, BY_ROW, [(20, (2,)), (40, (1,))]),  # the slower one of two goes first
        # The threshold says who is too slow.
        ({2: 0.7}, {"threshold": 0.8}, [(20, (2,))]),
        ({2: 0.9}, {"threshold": 0.8}, []),
        ({2: 0.9}, {"threshold": 0.95}, [(20, (2,))]),
        ({2: 0.7}, {"threshold": 0.5}, []),
        ({0: 0.1}, {"size": 1}, []),  # alone, however slow the steps become
    ],
)
def test_who_is_too_slow_is_replaced(
    speeds: dict[int, float], given: dict[str, Any], found: list[tuple[int, tuple[int, ...]]]
) -> None:
    assert [(one.step, one.ranks) for one in decisions(speeds, **given)] == found


# ---- in a job -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "speeds", "sizes", "expected"),
    [
        (Start(size=3), {0: 0.5}, {}, [(23, (3,), (0,), 3)]),  # rank 0; the next one leads
        # One that joins: at step 20 its average is that of seven steps, and below 0.8.
        (Start(size=3), {3: 0.5}, {10: 4}, [(13, (3,), (), 4), (23, (4,), (3,), 4)]),
        (Start(size=6, max_size=6), {1: 0.5, 4: 0.25}, {}, [(23, (6, 7), (1, 4), 6)]),  # several at one barrier
        (Start(size=4, min_size=4, max_size=4), {2: 0.5}, {}, [(23, (4,), (2,), 4)]),  # at the most peers of the job
        (Start(size=3), {1: 0.5}, {20: 5}, [(23, (3, 4, 5), (1,), 5)]),  # a growth in the same step is one change
        (Start(size=4), {1: 0.5}, {20: 3}, [(21, (), (1,), 3)]),  # it leaves if the job shrinks in the same step
    ],
)
def test_a_straggler_of_a_job_is_replaced_beside_what_a_schedule_asks_for(
    start: Start, speeds: dict[int, float], sizes: dict[int, int], expected: list[Any]
) -> None:
    model = ClusterModel(LINEAR, 120, start, speed_by_peer=speeds)
    scheduled = [schedule(sizes)] if sizes else []
    assert changes([*scheduled, replace_stragglers(every=20)], model) == expected


def test_the_newcomer_starts_on_another_host_where_there_is_one() -> None:
    # The straggler's whole host is slow; there is room on it and on another one.
    slow = PeerSpeeds(slow=[SlowPeer(0.5, host=0, slot=0)])
    model = ClusterModel(LINEAR, 300, Start(size=3, max_size=6), speeds=slow, hosts=HostSlots((2, 4)))
    assert changes(replace_stragglers(every=20), model) == [(23, (3,), (0,), 3)]


def test_on_unlike_machines_those_within_the_threshold_stay() -> None:
    slower = PeerSpeeds(jitter=0.05, seed=1, slow=[SlowPeer(0.9, host=1)])
    model = ClusterModel(LINEAR, 1000, Start(size=8, max_size=8), speeds=slower, hosts=HostSlots((4, 8)))
    assert changes(replace_stragglers(), model) == []


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.2])
def test_jitter_makes_no_straggler(jitter: float) -> None:
    for seed in range(3):
        model = ClusterModel(LINEAR, 1000, Start(size=8), speeds=PeerSpeeds(jitter=jitter, seed=seed))
        assert changes(replace_stragglers(), model) == []


# ---- while the job grows --------------------------------------------------------------------------------------------


def fraction_after_growing(hosts: HostSlots, *, straggler: int) -> float:
    """The lowest fraction of a peer that becomes slow while a job of four waits for a fifth one for forty steps."""
    seen = []

    def look(control: Any, size: int, fraction: float) -> None:
        seen.append((size, fraction))

    @kf.policy
    def watching(training: Any) -> Any:
        fractions = kf.monitor.straggler_fractions(training)
        # A hook that is called brings a barrier, and the step after it has no time: the lowest one is told at the end.
        lowest = kf.fold(kf.ops.minimum, 1.0, fractions[straggler])
        return kf.control.always().when(training.size == 5).call(look, training.size, lowest)

    run_policy([schedule({10: 5}), watching()], growing_for_forty_steps(hosts, straggler=straggler, steps=60))
    return next(fraction for size, fraction in seen if size == 5)


def test_a_straggler_is_seen_while_the_job_grows_unless_the_joiner_is_beside_it() -> None:
    """A straggler that appears while the job grows is seen unless the joiner starts beside it."""
    # Peers 0 and 1 run on the first host, 2 and 3 on the second one, where the fifth peer starts.
    hosts = HostSlots((2, 3))
    assert fraction_after_growing(hosts, straggler=1) < 0.55
    assert fraction_after_growing(hosts, straggler=3) >= 0.94, "of one step after the joiner has come"


def growing_for_forty_steps(hosts: HostSlots, *, straggler: int, steps: int) -> ClusterModel:
    """A job of four whose joiners take forty steps, and in which one is slow from step 12 on."""
    slow = PeerSpeeds(slow=[SlowPeer(0.5, peer=straggler, from_step=12)])
    start, rescaling = Start(size=4, max_size=5), Rescaling(joining_steps=40)
    return ClusterModel(LINEAR, steps, start, speeds=slow, hosts=hosts, rescaling=rescaling)


def changes_of_growing(hosts: HostSlots, *, straggler: int) -> Any:
    """The changes of such a job, which asks for a fifth peer at step 10."""
    model = growing_for_forty_steps(hosts, straggler=straggler, steps=160)
    return changes([schedule({10: 5}), replace_stragglers(every=20)], model)


def test_a_straggler_of_a_growing_job_leaves_with_the_wave_that_brings_the_others() -> None:
    # It is found at step 20: both joiners are awaited together from then on.
    assert changes_of_growing(HostSlots((2, 5)), straggler=1) == [(61, (4, 5), (1,), 5)]


def test_a_straggler_beside_the_joiner_is_found_when_that_one_has_come() -> None:
    later = [(51, (4,), (), 5), (101, (5,), (3,), 5)]
    assert changes_of_growing(HostSlots((2, 5)), straggler=3) == later
    # On the one host of a job every peer is beside it.
    assert changes_of_growing(HostSlots(), straggler=3) == later


def test_joiners_that_slow_their_host_make_no_straggler_of_those_beside_them() -> None:
    hosts = HostSlots((4, 8), joining_speed=0.4)
    model = ClusterModel(LINEAR, 400, Start(size=6, max_size=12), hosts=hosts, rescaling=Rescaling(joining_steps=30))
    found = changes([schedule({10: 7, 60: 8, 110: 9, 160: 10}), replace_stragglers(every=20)], model)
    assert [left for _, _, left, _ in found if left] == []


@pytest.mark.slow
def test_beside_autoscale_the_job_reaches_its_limit_without_the_straggler() -> None:
    slow = PeerSpeeds(jitter=0.05, seed=2, slow=[SlowPeer(0.5, peer=1, from_step=60)])
    model = ClusterModel(
        lambda size: 100.0 * size, 900, Start(size=2, max_size=8), speeds=slow, hosts=HostSlots((3, 3, 4)),
        rescaling=Rescaling(joining_steps=30),
    )  # fmt: skip
    run = run_on_model([autoscale(max_peers=8), replace_stragglers()], model)
    assert run.size == 8
    assert [one.left for one in run.changes if one.left] == [(1,)]


# ---- the slowest in a row -------------------------------------------------------------------------------------------


def test_by_hand_the_slowest_ten_times_in_a_row_is_replaced() -> None:
    assert on_arrays([[1.0, 2.0, 1.0]] * 11, **BY_ROW) == [(11, (1,))]
    assert on_arrays([[1.0, 2.0, 1.0]] * 10, **BY_ROW) == []
    interrupted = [[1.0, 2.0, 1.0]] * 9 + [[1.0, 1.0, 1.0]]
    assert on_arrays(interrupted * 5, **BY_ROW) == []
    assert on_arrays(interrupted, times=9, **BY_ROW) == [(10, (1,))]
