"""The barriers of a modelled job: decided as those of real peers, and in one decision each."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kungfu as kf
from kungfu.compiler import FiredRule, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Evict, Replace, Rescale, SetGlobalBatchSize
from kungfu.policies import replace_stragglers, schedule
from kungfu.policy_definition import Policy, shadow
from kungfu.signal import Constant
from kungfu.testing import ClusterModel, HostSlots, PeerSpeeds, Rescaling, Start
from kungfu.testing.simulated_barrier import SimulatedBarrier
from kungfu.testing.simulated_job import SimulatedJob
from kungfu.testing.simulated_run import run_on_model, simulate
from tests.testing.recorded_run import recorded_run


def barrier_of(size: int, *, joining_steps: int = 2) -> SimulatedBarrier:
    start, rescaling = Start(size=size, max_size=6), Rescaling(joining_steps=joining_steps)
    model = ClusterModel({1: 100}, steps=40, start=start, rescaling=rescaling)
    return SimulatedBarrier(SimulatedJob.started(model), Replay(compile_policies([]), size=size))


def asks_for(size: int, *, step: int = 1) -> FiredRule:
    return FiredRule(step, "grow", Rescale(Constant(float(size)), "local_batch_size"), float(size), {})


def names(*ranks: int, action: type[Evict | Replace] = Replace) -> FiredRule:
    return FiredRule(1, "slow", action(Constant(False)), math.nan, {}, ranks)


def hold(barrier: SimulatedBarrier, *posts: list[FiredRule]) -> list[int]:
    """The sizes after barriers that follow each other, and in whose steps these rules fired."""
    sizes = []
    for fired in posts:
        barrier.job.step += 1
        barrier.hold(fired)
        sizes.append(barrier.job.size)
    return sizes


def test_an_offer_and_a_newer_request_are_decided_together() -> None:
    barrier = barrier_of(2)
    # Two peers are on their way when a smaller size is asked for; one of those who come is enough for it.
    assert hold(barrier, [asks_for(4)], [], [asks_for(3, step=3)], []) == [2, 2, 2, 3]
    assert (barrier.job.view, barrier.job.terms.target_size) == (2, 0), "it is one change of the view"


def sets(samples: int, *, step: int = 1) -> FiredRule:
    return FiredRule(step, "batch", SetGlobalBatchSize(Constant(float(samples))), float(samples), {})


def test_a_setting_brings_a_barrier_and_leaves_no_change_pending() -> None:
    barrier = barrier_of(2)
    hold(barrier, [sets(80)])
    assert (barrier.job.change_due, barrier.job.barrier_due) == (False, True)
    hold(barrier, [])
    assert (barrier.job.terms.global_batch_size, barrier.job.barrier_due) == (80, False)
    hold(barrier, [asks_for(3)])
    assert (barrier.job.change_due, barrier.job.barrier_due) == (True, True)


def test_a_barrier_answers_what_fires_in_its_own_step_in_the_view_in_which_it_fired() -> None:
    barrier = barrier_of(4)
    assert hold(barrier, [names(0, action=Evict), sets(80)]) == [4]
    # Ranks 0 and 2 leave together: a barrier later, rank 2 would be another peer.
    assert hold(barrier, [names(2, action=Evict)]) == [2]
    assert (barrier.job.peers, barrier.job.barrier_due) == ([1, 3], False), "nothing is left to answer"


def test_the_first_of_two_sizes_asked_for_before_a_barrier_wins() -> None:
    barrier = barrier_of(2)
    hooked = FiredRule(2, "other", Rescale(Constant(3.0), "local_batch_size"), 3.0, {})
    hold(barrier, [asks_for(4)], [hooked])
    assert (barrier.unmet, barrier.job.terms.target_size) == ({("other", 2): "grow came before it"}, 4)


posts = st.lists(
    st.one_of(
        st.builds(asks_for, st.integers(-1, 8)),
        st.builds(
            lambda ranks, action: names(*ranks, action=action),
            st.sets(st.integers(0, 6)).map(sorted),
            st.sampled_from([Evict, Replace]),
        ),
    ),
    max_size=3,
)


@given(st.integers(1, 6), st.integers(0, 3), st.lists(posts, max_size=12))
def test_whatever_fires_a_barrier_changes_the_view_once_and_the_job_comes_to_rest(
    size: int, joining_steps: int, history: list[list[FiredRule]]
) -> None:
    barrier = barrier_of(size, joining_steps=joining_steps)
    for fired in history:
        before, peers = barrier.job.view, {*barrier.job.peers}
        hold(barrier, fired)
        assert barrier.job.view - before in (0, 1)
        assert peers & {*barrier.job.peers}, "nobody would hold the state"
        assert barrier.replay.size == barrier.job.size == len({*barrier.job.peers})
    hold(barrier, *[[]] * 8)
    assert (barrier.joining, barrier.job.terms.target_size, barrier.job.terms.departing) == (None, 0, ())
    assert not barrier.job.change_due


@pytest.mark.parametrize(("replacements", "replaced"), [(1, [(3,)]), (2, [(1, 3)]), (8, [(1, 2, 3)])])
def test_a_decision_names_the_slowest_peers_that_its_budget_lets_it_replace(
    replacements: int, replaced: list[tuple[int, ...]]
) -> None:
    model = ClusterModel({1: 100, 8: 800}, steps=40, start=Start(size=8), speed_by_peer={1: 0.5, 2: 0.6, 3: 0.4})
    budget = kf.Budget(rescales=1, per_steps=10_000, replacements=replacements)
    run = run_on_model(replace_stragglers(every=20), model, budget=budget)
    assert [one.ranks for one in run.decisions] == replaced
    assert [one.left for one in run.changes] == replaced, "of peers that have not moved ids are ranks"


def test_the_time_of_a_step_after_a_barrier_is_not_known() -> None:
    """The time of a step after a barrier is not known, whatever the barrier came to.

    As in a job: tests/training/graph/test_step.py.
    """
    hooked = Policy("hooked", lambda training: kf.control.always().when(training.step == 4).call(lambda control: None))
    model = ClusterModel({1: 100}, steps=20, rescaling=Rescaling(joining_steps=2))
    trace, _ = recorded_run(compile_policies([hooked, schedule({10: 3})]), model)

    def unknown(source: str) -> list[int]:
        return [one.step for one in trace.steps if math.isnan(one.local[0][source])]

    # The barriers are held after step 5 for the hook, after 11 to ask for a third peer, and after 13 to take it in.
    assert unknown("busy_seconds") == [1, 6, 12, 14]
    assert unknown("step_seconds") == [1, 2, 7, 13, 14, 15]


def left_of(policies: list[Policy], **model: Any) -> list[tuple[int, ...]]:
    """Who left a modelled job, change by change."""
    start = Start(size=4, max_size=6)
    run = run_on_model(policies, ClusterModel({1: 100, 8: 800}, steps=120, start=start, **model))
    return [one.left for one in run.changes if one.left]


WATCHED = shadow(replace_stragglers(every=10))


def test_a_modelled_job_lets_its_slow_peers_go_first() -> None:
    shrinking = schedule({60: 3, 80: 2, 100: 1})
    assert left_of([shrinking], speed_by_peer={0: 0.5, 2: 0.7}) == [(3,), (2,), (1,)], (
        "nobody measures how fast they are"
    )
    assert left_of([shrinking, WATCHED], speed_by_peer={0: 0.5, 2: 0.7}) == [(0,), (2,), (3,)]
    assert left_of([schedule({60: 2}), WATCHED], speed_by_peer={0: 0.5, 2: 0.7}) == [(0, 2)]
    assert left_of([shrinking, WATCHED]) == [(3,), (2,), (1,)]


def test_a_peer_that_has_just_joined_is_no_slow_one_though_its_host_is() -> None:
    # Peers 4 and 5 join at step 63, and the job shrinks before either's average has fallen far.
    slow = {"speed_by_peer": {4: 0.95, 5: 0.95}}
    assert left_of([schedule({60: 6, 66: 4}), WATCHED], **slow) == [(4, 5)]


def test_a_hook_that_shrinks_a_modelled_job_lets_the_slow_go_first_too() -> None:
    def ask(control: Any) -> None:
        control.rescale(2)

    hooked = Policy("hooked", lambda training: kf.control.every(60).when(training.step < 61).call(ask))
    assert left_of([hooked, WATCHED], speed_by_peer={1: 0.6}) == [(1, 3)]


def test_jitter_alone_sends_nobody_away_but_the_newest() -> None:
    for seed in range(20):
        speeds = PeerSpeeds(jitter=0.05, seed=seed)
        assert left_of([schedule({60: 3}), WATCHED], speeds=speeds) == [(3,)]


def test_names_of_checkpoints_are_known_to_the_model_as_to_a_real_job() -> None:
    """A restore of a name that no rule has written has no effect; a restore comes before a checkpoint of its step."""

    @kf.policy
    def keeping(training: Any) -> Any:
        at = kf.control.always()
        return (
            at.when((training.step == 2) | (training.step == 5)).restore("best"),
            at.when(training.step == 2).checkpoint("best"),
            at.when((training.step == 5) | (training.step == 9)).restore("worst"),
        )

    model = ClusterModel({1: 100}, steps=9)
    decisions = kf.testing.run_policy(keeping(), model)
    found = [(one.step, type(one.action).__name__, one.unmet) for one in decisions]
    first, second = (one.rule for one in decisions if one.step == 5)
    assert found == [
        (2, "Restore", "no rule has written the checkpoint 'best'"),
        (2, "Checkpoint", ""),
        (5, "Restore", ""),
        (5, "Restore", f"{first} came before it"),
        (9, "Restore", "no rule has written the checkpoint 'worst'"),
    ]
    assert first != second


# ---- a batch and a rate that come with a size ------------------------------------------------------------------------


@kf.policy
def grows_in_one_decision(training: Any, *, peers: int = 5) -> Any:
    return kf.control.every(5).after(9).rescale(peers, batch=100, rate=0.4, over_steps=4)


def seen_steps(policy: Any, model: ClusterModel) -> list[tuple[int, int, float]]:
    """The size, the samples and the rate of each step."""
    seen = list[tuple[int, int, float]]()
    simulate(compile_policies([policy]), model, seen=lambda at: seen.append((at.size, at.samples, at.learning_rate)))
    return seen


START = Start(size=2, max_size=8, global_batch_size=20, learning_rate=0.1)


def test_a_modelled_growth_brings_its_batch_and_its_rate_with_its_peers() -> None:
    model = ClusterModel({1: 100, 8: 800}, steps=40, start=START, rescaling=Rescaling(joining_steps=8))
    seen = seen_steps(grows_in_one_decision(), model)
    joined = next(index for index, (size, _, _) in enumerate(seen) if size == 5)
    assert joined > 17
    assert seen[:joined] == [(2, 20, 0.1)] * joined
    rates = [rate for _, _, rate in seen[joined:]]
    assert rates[:6] == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4])
    assert {(size, samples) for size, samples, _ in seen[joined:]} == {(5, 100)}
    (decision,) = run_on_model(grows_in_one_decision(), model).decisions
    assert (decision.step, decision.value, decision.unmet) == (10, 5.0, "")


def test_a_modelled_growth_of_which_a_part_comes_says_that_its_batch_does_not() -> None:
    model = ClusterModel({1: 100, 8: 800}, steps=40, start=START, hosts=HostSlots(slots=(4,)))
    run = run_on_model(grows_in_one_decision(), model)
    assert [one.unmet for one in run.decisions] == ["its batch and rate were to come with 5 peers, and 4 are there"]
    assert seen_steps(grows_in_one_decision(), model)[-1] == (4, 40, 0.1), "the local batch is kept"
    full = ClusterModel({1: 100, 8: 800}, steps=40, start=START, hosts=HostSlots(slots=(2,)))
    assert [one.unmet for one in run_on_model(grows_in_one_decision(), full).decisions] == ["no host has a free slot"]
    assert seen_steps(grows_in_one_decision(), full)[-1] == (2, 20, 0.1)
