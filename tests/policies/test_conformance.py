"""What every policy and every monitor must hold to: one meaning in three interpreters, at any size, across rescales."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kungfu import control, monitor, policies, worth
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Budget
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy, at_least, at_most, compose, first, policy, shadow
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
    return Policy("watching", lambda training: control.every(2).call(ignore, made(training, decay=0.5)))


@policy
def every_action(training: Any) -> Any:
    speed = monitor.straggler_fractions(training, alpha=0.5)
    return (
        control.every(2).after(1).cooldown(steps=3).rescale(training.size % 3 + 1),
        control.always().when(training.mean_loss < 0.0).set_global_batch_size(training.step * 4),
        control.every(3).set_learning_rate(abs(training.mean_loss), over_steps=5),
        control.every(2).until(training.mean_loss > 1.0).evict(speed < 0.75),
        control.every(2).replace(speed > 1.0),
        control.every(4).checkpoint(),
        control.every(5).cooldown(steps=2, seconds=1.5).call(ignore, training.mean_loss),
        control.every(3).payback(training.mean_loss, horizon=8, at_first_s=0.5).stop(),
    )


@policy
def throughputs_by_size(training: Any) -> Any:
    measured = monitor.throughput_by_size(training, 3, forget_after=4)
    shown = (getattr(measured.statistics, name) for name in ("count", "mean", "variance", "age"))
    return control.every(2).call(ignore, measured.moves, *(one[training.size] for one in shown))


CONFORMING = {
    "gns_batch": gns_batch(max_peers=8, every=2, decay=0.5, min_estimates=2),
    "gns_batch by batch": gns_batch(grow="both", max_peers=3, max_batch=64, every=2, decay=0.5, min_estimates=2),
    "schedule": schedule({2: 3, 5: 1}),
    "at_most": at_most(gns_batch(max_peers=8, every=3, decay=0.5, min_estimates=2), schedule({2: 3, 5: 1})),
    "first": first(schedule({3: 2}), gns_batch(max_peers=4, every=2, decay=0.5, min_estimates=2)),
    "at_least": at_least(schedule({2: 3, 5: 1}), gns_batch(max_peers=8, every=3, decay=0.5, min_estimates=2)),
    "shadow": compose(shadow(gns_batch(max_peers=8, every=2, decay=0.5, min_estimates=2)), schedule({2: 3, 5: 1})),
    "hybrid_scaling": policies.hybrid_scaling({4: 2, 8: 4}),
    "linear_scaling": policies.linear_scaling(over_steps=5),
    "autoscale": policies.autoscale(max_peers=4, every=2),
    "stop_on_nan": policies.stop_on_nan(steps=2),
    "stop_on_nan of gradients": policies.stop_on_nan(steps=1, watch="gradients"),
    "replace_stragglers": policies.replace_stragglers(every=2, alpha=0.5),
    "replace_stragglers by the row": policies.replace_stragglers(every=2, criterion="slowest_in_a_row", times=2),
    "utility": policies.utility(worth=worth.points({10: 5, 60: 0}), price_per_hour=3600, max_peers=4, every=2),
    "utility, steps": policies.utility(worth=worth.steps({60: 5}), samples=20, price_per_hour=0, max_peers=4, every=2),
    "every_action": every_action(),
    "gradient_noise_scale": watching(monitor.gradient_noise_scale),
    "gradient_variance": watching(monitor.gradient_variance),
    "throughput": watching(monitor.throughput),
    "remaining_seconds": watching(monitor.remaining_seconds),
    "scaling_efficiency": watching(lambda training, decay: monitor.scaling_efficiency(training, 3)),
    "cost_so_far": watching(lambda training, decay: monitor.cost_so_far(training, price_per_hour=2.0)),
    "throughput_by_size": throughputs_by_size(),
}
UNASKED = {"schedule", "at_most", "at_least", "first", "shadow", "every_action"}
PLANS = {name: compile_policies([made], budget=Budget(3, 6, 2)) for name, made in CONFORMING.items()}


@functools.cache
def cluster_of(name: str, clusters: Callable[..., Cluster]) -> Cluster:
    """Three peers of a policy, traced once; a test gives them the states that it begins with."""
    return clusters(PLANS[name], size=3)


@pytest.mark.parametrize("name", CONFORMING)
@pytest.mark.parametrize("clusters", [eager_cluster, pytest.param(traced_cluster, marks=pytest.mark.slow)])
def test_a_policy_means_the_same_eagerly_traced_and_in_numpy(name: str, clusters: Callable[..., Cluster]) -> None:
    """A policy means the same eagerly, traced and in NumPy, across two, three and one peers."""
    plan, rng, number = PLANS[name], np.random.default_rng(3), 0
    replay, cluster = Replay(plan, size=2), cluster_of(name, clusters)
    for size in (2, 3, 1):
        replay.rescale(size)
        cluster.restore(replay)
        for _ in range(4):
            number += 1
            local, agreed = invented(rng, number=number, size=size)
            assert_same(step(cluster, local, agreed), replay.step(local, agreed))
        for rank, program in enumerate(cluster.programs[:size]):
            for one, other in zip(states(program), replayed_states(replay, rank=rank), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)


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
    for one, other in zip(states(cluster.programs[0]), replayed_states(replay, rank=0), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CONFORMING)
def test_alone_it_does_not_crash_and_asks_for_no_size_it_has_no_ground_for(name: str) -> None:
    plan, rng = PLANS[name], np.random.default_rng(7)
    cluster = cluster_of(name, traced_cluster)
    cluster.restore(Replay(plan, size=1))
    for number in range(1, 7):
        local, agreed = invented(rng, number=number, size=1)
        (outcome,) = step(cluster, local, agreed)
        noise = dict(zip(plan.watched_signals, outcome.watched, strict=True)).get("noise_scale", np.nan)
        assert np.isnan(noise)
        assert name in UNASKED or np.isnan(outcome.targets).all()


@pytest.mark.parametrize("name", CONFORMING)
def test_it_sends_no_message_of_its_own_in_any_step(name: str) -> None:
    assert not [one for one in PLANS[name].after if one.message]
