"""The batch follows the gradient noise scale, by peers or by accumulation, once its error allows a decision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control import Rescale, SetGlobalBatchSize
from kungfu.errors import PolicyError
from kungfu.policies import gns_batch, linear_scaling, schedule
from kungfu.testing import ClusterModel, HostSlots, PeerSpeeds, SimulatedRun, Start, run_on_model, run_policy

LIMITS = {"min_size": 1, "max_size": 16, "refused_size": 0, "target_size": 0, "pending": False}


def pair(centre: float, spread: float) -> list[dict[str, Any]]:
    """Two peers with one sample each, at a distance from their mean: S = 2 spread², |G|² = centre² - spread²."""
    return [{"grads": [np.array([centre + one, 0], np.float32)], "samples": 1.0} for one in (spread, -spread)]


@pytest.mark.parametrize(
    ("scale", "local_batch", "expected"),
    [(6.0, 1.0, 6), (7.4, 1.0, 7), (3.0, 0.5, 6), (30.0, 1.0, 8), (1.0, 1.0, 2), (1e-3, 1.0, 2)],
)
def test_it_asks_for_the_peers_that_make_up_one_noise_scale(scale: float, local_batch: float, expected: float) -> None:
    replay = Replay(compile_policies([gns_batch(max_peers=8, every=2, min_peers=2, min_estimates=2)]), size=3)
    idle = {"grads": [np.zeros(2, np.float32)], "samples": 0.0}
    local = [*pair(math.sqrt(2.0 / scale + 1), 1.0), idle]
    for number in (1, 2):
        outcome = replay.step(local, {**LIMITS, "step": number, "local_batch_size": np.float32(local_batch)})
    assert (bool(outcome.fired[0]), float(outcome.targets[0])) == (expected != 3, expected)


@pytest.mark.parametrize(
    ("steps", "limits", "expected"),
    [
        ([pair(2.0, 1.0)] * 2, {}, None),  # S = 2 over |G|² = 3: two thirds of a sample, and two peers are there
        ([pair(1.5**0.5, 1.0)] * 2, {}, 4),  # 2 / 0.5
        ([pair(1.5**0.5, 1.0)], {}, None),  # one estimate says nothing about its error
        ([pair(1.5**0.5, 1.0)] * 2, {"max_size": 3}, 3),  # the most that the job may have
        ([pair(2.0, 0.0)] * 2, {}, None),  # equal gradients have no noise: the fewest peers, which are there
        ([pair(0.5, 1.0)] * 2, {}, None),  # |G|² is not positive: not known
        ([pair(math.nan, 1.0)] * 2, {}, None),
        # Averages with decay 0.5, corrected for their start: S = 2 / 3 + 8 * 2 / 3, |G|² = 1 / 3 + 0.625 * 2 / 3: 8
        # peers; but of two steps so unlike, the standard error is larger than the difference.
        ([pair(2**0.5, 1.0), pair(4.625**0.5, 2.0)], {}, None),
        ([pair(1.5**0.5, 1.0)] * 2 + [pair(math.nan, 1.0)], {}, 4),  # what is no number leaves the averages unchanged
        ([pair(1.5**0.5, 1.0)] * 2, {"target_size": 4}, None),  # four are coming
        ([pair(1.5**0.5, 1.0)] * 2, {"target_size": 3}, 4),  # the request is replaced
    ],
)
def test_it_decides_by_the_averages_of_numerator_and_denominator(
    steps: list[list[dict[str, Any]]], limits: dict[str, int], expected: int | None
) -> None:
    replay = Replay(compile_policies([gns_batch(max_peers=16, every=1, decay=0.5, min_estimates=2)]), size=2)
    agreed = {**LIMITS, **limits, "local_batch_size": np.float32(1)}
    for number, local in enumerate(steps, start=1):
        outcome = replay.step(local, {**agreed, "step": number})
    assert (int(outcome.targets[0]) if outcome.fired[0] else None) == expected


def test_it_looks_every_so_many_steps_only() -> None:
    replay = Replay(compile_policies([gns_batch(max_peers=8, every=3, min_peers=3, min_estimates=2)]), size=2)
    agreed = {**LIMITS, "local_batch_size": 1.0}
    fired = [bool(replay.step(pair(2.0, 1.0), {**agreed, "step": number}).fired[0]) for number in range(1, 7)]
    assert fired == [False, False, True, False, False, True]


@pytest.mark.parametrize(("least", "first"), [(2, 2), (5, 5), (20, 20)])
def test_no_decision_comes_before_the_least_number_of_estimates(least: int, first: int) -> None:
    model = ClusterModel({1: 100}, steps=40, noise_by_step=lambda step: 1600.0, start=Start(max_size=64))
    decisions = run_policy(gns_batch(max_peers=64, every=1, min_estimates=least), model)
    assert (decisions[0].step, decisions[0].value) == (first, 50)


# ---- a noisy estimate ------------------------------------------------------------------------------------------------


def jittered(jitter: float, *, seed: int, steps: int, doubles: int = 10**9, peers: float = 4.5) -> ClusterModel:
    """A job of 32 samples a peer, whose noise scale is worth so many peers, and twice as many from a step on."""
    start, speeds = Start(size=2, max_size=16, global_batch_size=64), PeerSpeeds(seed=seed)
    return ClusterModel(
        {1: 100, 16: 1600},
        steps=steps,
        start=start,
        noise_by_step=lambda step: 32 * peers * (2 if step >= doubles else 1),
        noise_jitter=jitter,
        speeds=speeds,
    )


def size_at(run: SimulatedRun, step: int) -> int:
    return [2, *(one.size for one in run.changes if one.step < step)][-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 102])
def test_between_two_sizes_it_stays_at_one(seed: int) -> None:
    """4.5 peers: rounding the average alone changed the size more than ten times in 2,000 steps."""
    run = run_on_model(gns_batch(max_peers=16), jittered(0.1, seed=seed, steps=2000))
    assert 1 <= len(run.changes) <= 2
    assert run.size in (4, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("jitter", "within", "seed"), [(0.1, 150, 104), (0.5, 400, 106)])
def test_it_follows_a_noise_scale_that_doubles(jitter: float, within: int, seed: int) -> None:
    run = run_on_model(gns_batch(max_peers=16), jittered(jitter, seed=seed, steps=1000 + within, doubles=1001))
    assert size_at(run, 1000) in (4, 5)
    assert 9 * 0.85 <= run.size <= 9 * 1.15


@pytest.mark.slow
def test_without_a_signal_in_the_gradients_it_holds() -> None:
    """A model that has trained out: |G|² is far below its standard error, and negative in about half of the steps."""
    watched = list[float]()

    @kf.policy
    def watching(training: Any) -> Any:
        noise = kf.monitor.gradient_noise_scale(training)
        return kf.control.every(10).call(lambda _, noise: watched.append(noise), noise)

    model = jittered(0.1, seed=107, steps=2000, peers=1e6)
    run = run_on_model([gns_batch(max_peers=16, min_peers=2), watching()], model)
    undefined = np.isnan(watched).mean()
    assert 0.2 < undefined < 0.8
    assert run.changes == ()


# ---- by accumulation -------------------------------------------------------------------------------------------------


def rising(top: float, *, size: int, steps: int = 1000, until: int = 10**9, **given: Any) -> ClusterModel:
    """A job of 32 samples a peer, at most four peers, whose noise scale rises to ``top``, and falls back at a step."""
    start = Start(size=size, max_size=4, global_batch_size=32 * size)
    return ClusterModel(
        {1: 100, 4: 400},
        steps=steps,
        start=start,
        noise_by_step=lambda step: min(top, 50 * math.exp(step / 100)) if step < until else 50.0,
        **given,
    )


def requests(policies: Any, model: ClusterModel) -> list[tuple[str, int]]:
    """What was asked for, in order: peers, or samples of a batch."""
    kinds = {Rescale: "peers", SetGlobalBatchSize: "batch"}
    return [(kinds[type(one.action)], round(one.value)) for one in run_policy(policies, model)]


@pytest.mark.parametrize(("size", "most"), [(4, 0), (4, 64), (1, 16)])
def test_where_peers_are_fixed_the_batch_grows(size: int, most: int) -> None:
    """To 4096 samples on four workers, as in the paper; on one peer too, whose micro-batches show the noise."""
    model = rising(6000.0, size=size, max_local_batch_size=most, noise_jitter=0.1 if most else 0.0)
    made = requests(gns_batch(grow="batch", max_batch=4096), model)
    assert {kind for kind, _ in made} == {"batch"}
    sizes = [samples for _, samples in made]
    assert (sizes == sorted(sizes), sizes[-1]) == (True, 4096)


def test_peers_come_first_and_leave_last() -> None:
    made = requests(gns_batch(grow="both", max_peers=4, max_batch=1000), rising(1e4, size=2, steps=1500, until=900))
    kinds = [kind for kind, _ in made]
    grown, shrunk = made[: made.index(("batch", 1000)) + 1], made[made.index(("batch", 1000)) + 1 :]
    assert [kind for kind, _ in grown] == sorted(kinds[: len(grown)], reverse=True), "peers, then batches"
    assert [value for kind, value in grown if kind == "peers"][-1] == 4
    # Back to 32 samples a peer, and only then to the two peers that make up 50 samples.
    assert [kind for kind, _ in shrunk] == sorted(kind for kind, _ in shrunk), "batches, then peers"
    assert ("batch", 128) in shrunk
    assert shrunk[-1] == ("peers", 2)


def test_a_size_that_cannot_be_had_counts_as_the_largest() -> None:
    model = rising(1e4, size=2, hosts=HostSlots((2,)))
    made = requests(gns_batch(grow="both", max_peers=4, max_batch=512), model)
    assert made[0][0] == "peers"
    assert made[-1] == ("batch", 512)


def test_the_batch_is_no_larger_than_it_may_be_with_peers_alone() -> None:
    assert run_on_model(gns_batch(max_peers=4, max_batch=96), rising(1e4, size=2)).size == 3


def test_beside_a_cap_and_a_rate_it_works_as_before() -> None:
    capped = kf.at_most(gns_batch(max_peers=4), schedule({1: 3}))
    run = run_on_model([capped, linear_scaling(over_steps=10)], rising(1e4, size=2))
    assert (run.size, next(one.rule for one in run.decisions if one.rule.startswith("linear"))) == (3, "linear_scaling")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"gns_batch\(grow='peers'\): max_peers is missing"),
        ({"grow": "both", "max_batch": 64}, r"gns_batch\(grow='both'\): max_peers is missing"),
        ({"grow": "batch"}, r"gns_batch\(grow='batch'\): max_batch is missing"),
        ({"grow": "size", "max_peers": 4}, r"gns_batch\(grow='size'\): write one of peers, batch, both"),
        ({"max_peers": 4, "max_batch": 0.5}, r"gns_batch\(max_batch=0.5\): takes a whole number of at least 1"),
        ({"max_peers": 4, "min_estimates": 1}, r"min_estimates=1\): takes a whole number of at least 2"),
        ({"max_peers": 4, "margin": -1.0}, r"margin=-1.0\): takes a number of standard errors, at least 0"),
        ({"max_peers": 4, "decay": 1.0}, r"decay=1.0\): the newest step's weight lies in \(0, 1\)"),
        ({"max_peers": 1}, "takes 1 <= min_peers <= max_peers"),
    ],
)
def test_a_bound_that_is_missing_or_wrong_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message) as refused:
        compile_policies([gns_batch(**given)])
    assert "test_gns_batch.py" in str(refused.value), "the user's line"
