"""What a modelled cluster shows to a policy: uneven steps, slow peers, joiners on their way, epochs, noise and loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu import control, ops
from kungfu.errors import UsageError
from kungfu.policies import linear_scaling, replace_stragglers, schedule
from kungfu.policy_definition import Policy
from kungfu.testing import ClusterModel, HostSlots, PeerSpeeds, Rescaling, SlowPeer, Start, run_on_model, run_policy

LINEAR = {1: 100, 12: 1200}
IN_SLOT_2 = PeerSpeeds(slow=[SlowPeer(0.5, host=0, slot=2)])


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def watching(*signals: Any, every: int = 1) -> Policy:
    """A policy that only looks: a hook in the shadow of nothing, which asks for nothing."""

    def body(training: Any) -> Any:
        return kf.control.every(every).call(ignore, *(one(training) for one in signals))

    return kf.shadow(Policy("watching", body))


def shown(model: ClusterModel, *signals: Any, beside: tuple[Policy, ...] = ()) -> list[tuple[float, ...]]:
    """By step, what these signals are."""
    decided = run_policy([*beside, watching(*signals)], model)
    return [tuple(one.inputs.values()) for one in decided if one.mode == "shadow"]


def busy_of(rank: int) -> Any:
    return lambda t: ops.all_gather(t.busy_seconds)[rank].named(f"busy_{rank}")


def test_with_jitter_each_peer_has_its_own_time_and_the_step_that_of_the_slowest() -> None:
    model = ClusterModel(LINEAR, 200, Start(size=3, global_batch_size=96), speeds=PeerSpeeds(jitter=0.1, seed=3))
    seen = np.array(shown(model, *(busy_of(rank) for rank in range(3)), lambda t: ops.all_gather(t.step_seconds)[0]))
    busy, steps = seen[1:, :3], seen[2:, 3]
    assert np.all(np.abs(busy / 0.32 - 1) <= 0.3 + 1e-6)
    assert busy.std(axis=0) == pytest.approx(0.032, rel=0.2)
    # The seconds of a whole step are those of the step before.
    np.testing.assert_allclose(steps, busy.max(axis=1)[:-1], rtol=1e-6)


def test_a_slow_peer_that_is_replaced_makes_room_for_one_of_full_speed() -> None:
    slow = PeerSpeeds(slow=[SlowPeer(0.5, peer=1, from_step=20)])
    model = ClusterModel(LINEAR, 200, Start(size=4), speeds=slow)
    run = run_on_model(replace_stragglers(every=20), model)
    assert [(one.joined, one.left, one.size) for one in run.changes] == [((4,), (1,), 4)]
    assert shown(model, lambda t: t.size, busy_of(3), beside=(replace_stragglers(every=20),))[-1] == (
        4,
        pytest.approx(0.16),
    )


def test_a_slow_peer_that_leaves_lets_the_others_go_at_full_speed() -> None:
    model = ClusterModel({1: 100, 4: 400}, 20, Start(size=4), speeds=PeerSpeeds(slow=[SlowPeer(0.25, peer=3)]))
    steps = shown(model, lambda t: ops.all_gather(t.step_seconds)[0], beside=(schedule({5: 3}),))
    assert steps[4] == (pytest.approx(0.64),)
    assert steps[-1] == (pytest.approx(0.16),)


def test_in_a_slow_place_whoever_comes_is_slow() -> None:
    # Two hosts of two slots: the second one is slow, so the newcomer is as slow as the one whose place it takes.
    slow = PeerSpeeds(slow=[SlowPeer(0.5, host=1)])
    model = ClusterModel(LINEAR, 100, Start(size=3, max_size=3), speeds=slow, hosts=HostSlots((2, 2)))
    run = run_on_model(replace_stragglers(every=20), model)
    assert [one.joined for one in run.changes][:2] == [(3,), (4,)], "it is replaced again and again"


@pytest.mark.parametrize(
    ("rescaling", "joined_after"),
    [
        (Rescaling(joining_steps=2), 13),
        (Rescaling(joining_steps=30), 41),
        (Rescaling(joining_steps=0), 12),
        (Rescaling(joining_steps=2, joining_s=3.2), 21),
        (Rescaling(joining_steps=30, joining_s=3.2), 41),
    ],
)
def test_joiners_take_their_steps_or_their_seconds_whichever_is_longer(rescaling: Rescaling, joined_after: int) -> None:
    model = ClusterModel(LINEAR, 60, Start(size=2), rescaling=rescaling)
    assert [one.step for one in run_on_model(schedule({10: 3}), model).changes] == [joined_after]
    looked = {
        one.step for one in run_policy([schedule({10: 3}), watching(lambda t: t.size)], model) if not one.value > 0
    }
    # No hook is called in a step whose barrier was asked for a change before it, as in a job.
    assert {11} <= {*range(1, 61)} - looked <= {11, joined_after}


def test_peers_are_slower_while_others_start_on_their_host_only() -> None:
    moments: list[float] = []
    hosts = HostSlots((2, 2), joining_speed=0.5)
    model = ClusterModel(
        LINEAR, 30, Start(size=3, max_size=4, global_batch_size=60), rescaling=Rescaling(5, stop_s=0.0), hosts=hosts,
        loss_by_step=lambda at: moments.append(at.seconds) or 0.0,
    )  # fmt: skip
    run_policy(schedule({10: 4}), model)
    steps = np.diff(sorted({*moments}))
    # Decided after step 11; the fourth peer starts beside the third one, and both hosts wait for it.
    np.testing.assert_allclose(steps, [0.2] * 11 + [0.4] * 5 + [0.2] * 13)


def test_each_peer_knows_of_the_joiners_on_its_own_host() -> None:
    model = ClusterModel(LINEAR, 30, Start(size=3, max_size=5), rescaling=Rescaling(5), hosts=HostSlots((2, 3)))
    ranks = [lambda t, rank=rank: ops.all_gather(t.host_joiners)[rank].named(f"beside_{rank}") for rank in range(3)]
    seen = shown(model, *ranks, beside=(schedule({10: 5}),))
    # Asked for after step 11; both of them start on the host of the third peer, and nobody starts any more when they
    # have joined.
    assert {*seen} == {(0, 0, 0), (0, 0, 2)}
    assert (seen[0], seen[-1]) == ((0, 0, 0), (0, 0, 0))


def test_a_size_for_which_no_host_has_room_is_refused_once_and_says_why() -> None:
    model = ClusterModel(LINEAR, 60, Start(size=3, max_size=8), hosts=HostSlots((2, 2)))
    decided = run_policy(schedule({10: 6}), model)
    # One of the three who were asked for found a place; the size that was out of reach is remembered.
    assert [(one.step, one.value, one.unmet) for one in decided] == [(10, 6.0, "")]
    run = run_on_model(schedule({10: 6}), model)
    assert (run.size, [one.joined for one in run.changes]) == (4, [(3,)])
    full = ClusterModel(LINEAR, 60, Start(size=4, max_size=8), hosts=HostSlots((2, 2)))
    assert [(one.step, one.unmet) for one in run_policy(schedule({10: 6}), full)] == [(10, "no host has a free slot")]


def test_a_replacement_without_room_is_asked_for_once_until_the_view_changes() -> None:
    slow, hosts = PeerSpeeds(slow=[SlowPeer(0.5, peer=1)]), HostSlots((2, 2))
    full = ClusterModel(LINEAR, 200, Start(size=4, max_size=8), speeds=slow, hosts=hosts)
    (asked,) = run_policy(replace_stragglers(every=20), full)
    assert asked.unmet == "no host has a free slot"
    # A smaller view has a slot, from which the straggler itself goes first.
    policies = [replace_stragglers(every=20), schedule({100: 3, 150: 4})]
    run = run_on_model(policies, full)
    assert [one.rule for one in run.decisions] == ["replace_stragglers", "schedule", "schedule"]
    assert [(one.joined, one.left) for one in run.changes] == [((), (1,)), ((4,), ())]


def test_the_last_step_of_an_epoch_is_smaller_and_the_job_ends_with_its_samples() -> None:
    start = Start(size=2, global_batch_size=64, epoch_samples=150, job_samples=400)
    model = ClusterModel({1: 100}, 100, start)
    seen = shown(model, lambda t: t.total_samples, lambda t: t.samples_done, lambda t: t.global_batch_size)
    assert [samples for samples, _, _ in seen] == [64, 64, 22, 64, 64, 22, 64, 36]
    assert seen[-1] == (36, 364, 64)
    run = run_on_model(schedule({1: 2}), model)
    assert (run.steps, run.samples, run.seconds) == (8, 400, pytest.approx(4.0))


def test_a_batch_grows_to_no_more_than_an_epoch() -> None:
    grown = Policy("grown", lambda t: control.always().set_global_batch_size(1000))
    model = ClusterModel({1: 100}, 6, Start(global_batch_size=64, epoch_samples=150))
    assert shown(model, lambda t: t.global_batch_size, beside=(grown,))[-1] == (150,)


def test_noise_and_loss_may_depend_on_batch_and_rate() -> None:
    model = ClusterModel(
        LINEAR, 40, Start(size=2, global_batch_size=64, learning_rate=0.5),
        noise_by_step=lambda at: 3 * at.samples,
        loss_by_step=lambda at: at.learning_rate + at.size + at / 1000,
    )  # fmt: skip
    seen = shown(
        model,
        lambda t: ops.norm_squared(t.mean_grads),
        lambda t: t.mean_loss,
        beside=(schedule({10: 4}), linear_scaling()),
    )
    assert seen[0] == (4, pytest.approx(2.501))
    assert seen[-1] == (4, pytest.approx(5.04)), "twice the peers, twice the rate"


def test_what_a_function_of_the_step_sees_cannot_be_changed_and_is_the_number() -> None:
    seen: list[Any] = []
    run_policy(schedule({1: 2}), ClusterModel({1: 100}, 3, loss_by_step=lambda at: seen.append(at) or 0.0))
    assert sorted(set(seen)) == [1, 2, 3]
    assert (seen[-1].samples_done, seen[-1].seconds) == (128, pytest.approx(1.28))
    with pytest.raises(AttributeError, match="does not change"):
        seen[0].size = 3


def test_the_clock_of_the_job_is_that_of_the_model() -> None:
    model = ClusterModel({1: 100}, 5, Start(size=1), rescaling=Rescaling(stop_s=1.0))
    assert shown(model, lambda t: ops.job_seconds()) == [(pytest.approx(0.64 * step),) for step in range(5)]
    run = run_on_model(schedule({2: 2}), ClusterModel({1: 100}, 9, Start(size=1), rescaling=Rescaling(0, 1.0)))
    before = 4 * 0.64
    assert run.seconds == pytest.approx(before + 1 + 5 * 1.28), "the batch of each peer stays"
    assert run.peer_seconds == pytest.approx(before + 2 * (1 + 5 * 1.28))


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
        (lambda: ClusterModel({1: 1}, 0), r"ClusterModel\(steps=0\)"),
        (lambda: ClusterModel({}, 5), "takes at least one size"),
        (lambda: ClusterModel({1: 100, 4: math.nan}, 5), r"throughput_by_size=\{4: nan\}\): takes .* is left out"),
        (lambda: ClusterModel({1: 100, 4: None}, 5), r"throughput_by_size=\{4: None\}"),  # type: ignore[dict-item]
        (lambda: ClusterModel({0: 100}, 5), r"throughput_by_size=\{0: 100\}"),
        (lambda: ClusterModel({1: 100, 2: 0}, 5), r"throughput_by_size=\{2: 0\}"),
        (lambda: ClusterModel(lambda size: 0, 5).throughput(2), "0.0 samples / s with 2 peers; takes a finite number"),
        (lambda: ClusterModel({1: 1}, 5, speed_by_peer={1: 0}), r"speed_by_peer={1: 0}\): takes a fraction above 0"),
        (lambda: Start(size=9, max_size=4), "takes 1 <= min_size <= size <= max_size"),
        (lambda: Start(global_batch_size=0), "takes at least 1 sample"),
        (lambda: Start(size=2.5), r"Start\(size=2.5"),  # type: ignore[arg-type]
        (lambda: Start(global_batch_size=64.5), "global_batch_size=64.5"),  # type: ignore[arg-type]
        (lambda: ClusterModel({1: 1}, 5, speed_by_peer={-1: 0.5}), "peers are numbered from 0 on"),
        (lambda: ClusterModel({1: 1}, 5, speed_by_peer={1: math.nan}), "takes a fraction above 0 of full speed"),
        (lambda: ClusterModel({1: 1}, 5, Start(size=5), hosts=HostSlots((2, 2))), "4 slots for the 5 peers"),
        (lambda: ClusterModel({1: 1}, 5, speeds=PeerSpeeds(slow=[SlowPeer(0.5, host=1)])), "is none of the places of"),
        (lambda: ClusterModel({1: 1}, 5, speeds=IN_SLOT_2, hosts=HostSlots((2,))), "is none of the places of"),
        (lambda: Start(epoch_samples=-1), "epoch_samples=-1"),
        (lambda: Start(job_samples=1.5), "job_samples=1.5"),  # type: ignore[arg-type] # refused
        (lambda: Start(learning_rate=math.nan), "learning_rate=nan"),
        (lambda: Rescaling(joining_steps=-1), "joining_steps=-1"),
        (lambda: Rescaling(stop_s=math.nan), "stop_s=nan"),
        (lambda: Rescaling(joining_s=math.inf), "joining_s=inf"),
        (
            lambda: PeerSpeeds(jitter=math.nan),
            r"PeerSpeeds\(jitter=nan\): takes a fraction of at least 0 and below 1/3",
        ),
        (lambda: PeerSpeeds(jitter=-0.1), "jitter=-0.1"),
        (lambda: PeerSpeeds(jitter=0.34), "jitter=0.34"),
        (lambda: PeerSpeeds(seed=-1), "seed=-1"),
        (lambda: PeerSpeeds(seed=2**32), "takes a whole number from 0 to"),
        (lambda: SlowPeer(0, peer=1), "speed=0"),
        (lambda: SlowPeer(math.nan, peer=1), "speed=nan"),
        (lambda: SlowPeer(math.inf, peer=1), "speed=inf"),
        (lambda: SlowPeer(0.5), "takes a peer, or a host, or a host and a slot"),
        (lambda: SlowPeer(0.5, peer=1, host=0), "takes a peer, or a host, or a host and a slot"),
        (lambda: SlowPeer(0.5, peer=1, slot=0), "takes a peer, or a host, or a host and a slot"),
        (lambda: SlowPeer(0.5, peer=-1), r"peer=-1\): takes a whole number from 0 on"),
        (lambda: SlowPeer(0.5, host=True), "host=True"),
        (lambda: SlowPeer(0.5, peer=1, from_step=0), "takes whole numbers with 1 <= from_step < until_step"),
        (lambda: SlowPeer(0.5, peer=1, from_step=5, until_step=5), "until_step=5"),
        (lambda: HostSlots((2, 0)), "takes a whole number of at least 1 for each host"),
        (lambda: HostSlots((2.5,)), "takes a whole number of at least 1 for each host"),  # type: ignore[arg-type] # refused
        (lambda: HostSlots(joining_speed=0), "joining_speed=0"),
        (lambda: HostSlots(joining_speed=1.5), "joining_speed=1.5"),
        (lambda: HostSlots(joining_speed=math.nan), "joining_speed=nan"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()
