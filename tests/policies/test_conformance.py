"""What every policy and every monitor must hold to: one meaning in three interpreters, at any size, across rescales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kungfu import control, monitor
from kungfu.compiler import Plan, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.policies import gns_batch, schedule
from kungfu.policy import Policy, at_most, first
from tests.compiler.cluster import (
    Cluster,
    assert_same,
    eager_cluster,
    invented,
    replayed_states,
    states,
    step,
    traced_cluster,
)


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def watching(made: Callable[..., Any]) -> Policy:
    """A policy that shows a monitor to a hook."""
    return Policy(made.__name__, lambda training: control.every(2).call(ignore, made(training, decay=0.5)))


CONFORMING = {
    "gns_batch": gns_batch(max_peers=8, every=2, decay=0.5),
    "schedule": schedule({2: 3, 5: 1}),
    "at_most": at_most(gns_batch(max_peers=8, every=3, decay=0.5), schedule({2: 3, 5: 1})),
    "first": first(schedule({3: 2}), gns_batch(max_peers=4, every=2, decay=0.5)),
    "gradient_noise_scale": watching(monitor.gradient_noise_scale),
    "throughput": watching(monitor.throughput),
}
PLANS = {name: compile_policies([policy]) for name, policy in CONFORMING.items()}


def restored(cluster: Cluster, replay: Replay) -> Cluster:
    """The cluster with the states that the replay carried over a rescale, as a runtime would replicate them."""
    for rank, program in enumerate(cluster.programs):
        for one, value in zip(program.variables, replayed_states(replay, rank=rank), strict=True):
            one.variable.assign(value)
    return cluster


@pytest.mark.parametrize("name", CONFORMING)
@pytest.mark.parametrize("clusters", [eager_cluster, pytest.param(traced_cluster, marks=pytest.mark.slow)])
def test_it_means_the_same_eagerly_traced_and_in_numpy_across_two_three_and_one_peers(
    name: str, clusters: Callable[..., Cluster]
) -> None:
    plan, rng, number = PLANS[name], np.random.default_rng(3), 0
    replay = Replay(plan, size=2)
    for size in (2, 3, 1):
        replay.rescale(size)
        cluster = restored(clusters(plan, size=size), replay)
        for _ in range(4):
            number += 1
            local, agreed = invented(rng, number=number, size=size)
            assert_same(step(cluster, local, agreed), replay.step(local, agreed))
        for rank, program in enumerate(cluster.programs):
            np.testing.assert_allclose(states(program), replayed_states(replay, rank=rank), rtol=1e-5)


@pytest.mark.parametrize("name", CONFORMING)
def test_its_program_resets_on_a_rescale_what_the_replay_resets(name: str) -> None:
    plan, rng = PLANS[name], np.random.default_rng(5)
    replay, cluster = Replay(plan, size=1), eager_cluster(plan, size=1)
    for number in range(1, 5):
        local, agreed = invented(rng, number=number, size=1)
        step(cluster, local, agreed)
        replay.step(local, agreed)
    cluster.programs[0].reset_on_rescale()
    replay.rescale(1)
    np.testing.assert_array_equal(states(cluster.programs[0]), replayed_states(replay, rank=0))


@pytest.mark.parametrize("name", CONFORMING)
def test_alone_it_does_not_crash_and_asks_for_no_size_it_has_no_ground_for(name: str) -> None:
    plan, rng = PLANS[name], np.random.default_rng(7)
    cluster = traced_cluster(plan, size=1)
    for number in range(1, 7):
        local, agreed = invented(rng, number=number, size=1)
        (outcome,) = step(cluster, local, agreed)
        noise = dict(zip(plan.watched, outcome.watched, strict=True)).get("noise_scale", np.nan)
        assert np.isnan(noise)
        assert name in ("schedule", "at_most", "first") or np.isnan(outcome.targets).all()


@pytest.mark.parametrize("name", CONFORMING)
def test_it_sends_no_message_of_its_own_in_any_step(name: str) -> None:
    assert messages(PLANS[name]) == 0


def messages(plan: Plan) -> int:
    return sum(1 for one in plan.after if one.message)
