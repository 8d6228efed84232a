"""Growth while each added peer contributes enough."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

import kungfu as kf
from benchmarks.scaling_settings import amdahl, true_efficiencies
from kungfu.policies import autoscale, replace_stragglers, schedule
from kungfu.testing import ClusterModel, PeerSpeeds, Rescaling, SlowPeer, Start, run_on_model, run_policy


def saturating(size: int) -> float:
    """Samples / s that grow ever more slowly: from 1 peer on, one more has the efficiency 0.62, 0.52, 0.45, 0.39."""
    return 100 * size / (1 + 0.235 * (size - 1))


def efficiency(size: int, unit: int = 1) -> float:
    """The paper's s of `unit` more peers."""
    return (saturating(size + unit) - saturating(size)) / unit / (saturating(size) / size)


def sizes(*, start: int = 2, steps: int = 400, max_size: int = 16, **settings: Any) -> list[int]:
    even = Start(size=start, max_size=max_size, global_batch_size=8 * start)
    model = ClusterModel(saturating, steps=steps, start=even)
    return [int(one.value) for one in run_policy(autoscale(**settings), model)]


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.24, 0.34, 0.42, 0.6])
def test_it_settles_at_the_last_size_whose_peers_were_efficient(threshold: float) -> None:
    last = max(size for size in range(2, 13) if efficiency(size - 1) > threshold)
    assert sizes(max_peers=12, efficiency=threshold)[-1] == last


@pytest.mark.parametrize("first", [0, 1])
def test_it_grows_beside_a_hook_that_is_called_as_often_as_can_be(first: int) -> None:
    def ignore(control: Any) -> None:
        """Asks for nothing."""

    calling = kf.Policy("calling", lambda training: kf.control.always().after(first).call(ignore))
    model = ClusterModel(saturating, steps=120, start=Start(size=2, max_size=4))
    run = run_on_model([calling, autoscale(max_peers=4, efficiency=0.1)], model)
    assert run.size == 4
    # The hook does not fire while a change is pending.
    assert len([one for one in run.decisions if one.rule == "ignore"]) > 40


def test_a_decision_shows_the_rates_that_were_compared_and_the_efficiency() -> None:
    model = ClusterModel(saturating, steps=120, start=Start(size=2, max_size=4, global_batch_size=16))
    grown, returned = run_policy(autoscale(min_peers=2, max_peers=4, efficiency=0.6), model)
    assert list(grown.inputs)[:7] == [
        "efficiency_from_peers", "efficiency_to_peers", "throughput_before", "throughput_after", "efficiency",
        "efficiency_error", "efficiency_asked",
    ]  # fmt: skip
    assert not {"settled", "pending"} & set(grown.inputs)
    assert grown.inputs["efficiency_from_peers"] == 2
    assert grown.inputs["throughput_before"] == pytest.approx(saturating(2), rel=1e-3)
    assert math.isnan(grown.inputs["efficiency_to_peers"]), "nothing was compared yet"
    shown = returned.inputs
    assert (shown["efficiency_from_peers"], shown["efficiency_to_peers"], shown["target"]) == (2, 3, 2)
    found = [shown["throughput_before"], shown["throughput_after"], shown["efficiency"], shown["efficiency_asked"]]
    assert found == pytest.approx([saturating(2), saturating(3), efficiency(2), 0.6], rel=1e-3)
    assert 0 <= shown["efficiency_error"] < 0.01


def test_the_error_of_an_efficiency_is_that_of_rates_that_jitter() -> None:
    start, speeds = Start(size=2, max_size=3, global_batch_size=12), PeerSpeeds(jitter=0.05, seed=1)
    model = ClusterModel({2: 100, 3: 150}, steps=400, start=start, speeds=speeds)
    _, returned = run_policy(autoscale(max_peers=3, efficiency=1.5), model)
    error = returned.inputs["efficiency_error"]
    assert 0.005 < error < 0.2
    assert abs(returned.inputs["efficiency"] - 1) < 4 * error


def test_a_job_with_more_peers_than_the_policy_allows_shrinks_to_its_limit() -> None:
    """A job with more peers than the policy allows shrinks to its limit, and walks from there."""
    assert sizes(start=6, steps=60, max_peers=4, efficiency=0.1)[:2] == [4, 3]
    # Below the fewest of the job it asks for nothing: such a size cannot be had.
    least = ClusterModel(saturating, steps=60, start=Start(size=6, min_size=6, max_size=8))
    assert run_policy(autoscale(max_peers=4), least) == ()


@pytest.mark.slow
def test_an_efficiency_below_zero_lets_a_job_grow_that_becomes_slower() -> None:
    slower = ClusterModel(lambda size: 100 - size, steps=200, start=Start(size=2, max_size=5))
    assert [one.value for one in run_policy(autoscale(max_peers=5, efficiency=-1e9), slower)] == [3, 4, 5]
    assert run_on_model(autoscale(max_peers=5, efficiency=0.0), slower).size == 1


def test_it_waits_before_it_judges_a_size() -> None:
    model = ClusterModel(saturating, steps=130)
    steps = [one.step for one in run_policy(autoscale(max_peers=12, efficiency=0, every=40), model)]
    assert steps == [80]  # in step 40 there are fewer than 40 samples; after the joiners there are again


# ---- decisions on throughputs that were computed by hand ------------------------------------------------------------


def forty_steps_each(throughputs: dict[int, float], history: list[int], *, max_size: int) -> dict[str, list[Any]]:
    """What is offered by a job that has 40 steps at each of these sizes, with 2 samples a peer."""
    size = [one for one in history for _ in range(40)]
    seconds = [[2 * n / throughputs[n] if step % 40 > 1 else math.nan] * n for step, n in enumerate(size)]
    return {
        "size": size,
        "view": [step // 40 for step in range(len(size))],
        "max_size": [max_size] * len(size),
        "samples": [[2.0] * n for n in size],
        "step_seconds": seconds,
        "busy_seconds": seconds,
    }


def decided(throughputs: dict[int, float], history: list[int], **given: Any) -> list[tuple[int, int]]:
    """Step and target of each decision in a job of `forty_steps_each`."""
    arrays = forty_steps_each(throughputs, history, max_size=8) | given.pop("arrays", {})
    found = run_policy(autoscale(**{"max_peers": 8, "every": 10, "efficiency": 0.5, **given}), arrays)
    return [(one.step, int(one.value)) for one in found if one.step % 40 == 0]


NO_TIMES = {"step_seconds": [[math.nan] * 2] * 40, "busy_seconds": [[math.nan] * 2] * 40}
UNEVEN = {"busy_seconds": [[0.06, 0.06, 0.12]] * 40}


@pytest.mark.parametrize(
    ("throughputs", "history", "given", "last"),
    [
        ({1: 100.0}, [1], {}, (40, 2)),  # alone it begins by adding a peer
        # 4 peers: 400; a fifth with 450 has half of what each other one brings, one with 455 a bit more.
        ({4: 400.0, 5: 455.0}, [4, 5], {}, (80, 6)),
        ({3: 300.0, 4: 400.0, 5: 450.0}, [3, 4, 5], {}, (120, 4)),
        # Equal throughputs are no efficiency above zero.
        ({2: 100.0, 3: 100.0}, [2, 3], {"efficiency": 0.0}, (80, 1)),
        ({2: 100.0, 3: 100.0}, [2, 3], {"efficiency": -0.01}, (80, 4)),
        # At the upper limit it looks down, and at the lower one it stays.
        ({8: 800.0}, [8], {}, (40, 7)),
        ({2: 100.0, 3: 90.0, 1: 99.0}, [2, 3, 2], {"min_peers": 2}, (80, 2)),
        ({2: 100.0}, [2], {"min_peers": 2, "max_peers": 2}, None),
        ({2: 100.0}, [2], {"arrays": NO_TIMES}, None),  # without a throughput
        ({3: 100.0}, [3], {"arrays": UNEVEN}, None),  # while a peer is a straggler
        ({3: 100.0}, [3], {}, (40, 4)),
    ],
)
def test_its_last_decision_follows_from_the_throughputs(
    throughputs: dict[int, float], history: list[int], given: dict[str, Any], last: tuple[int, int] | None
) -> None:
    assert next(reversed(decided(throughputs, history, **given)), None) == last


# ---- batch sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_local_batch_stays_until_the_largest_global_one() -> None:
    """The local batch stays until the largest global one, and is what it was below it again."""
    seen = {}

    def batch(control: Any, size: int, samples: int) -> None:
        seen.setdefault(size, samples)

    @kf.policy
    def watching(training: Any) -> Any:
        return kf.control.every(7).call(batch, training.size, training.global_batch_size)

    model = ClusterModel(lambda size: 100.0 * size, steps=160, start=Start(size=2, max_size=6, global_batch_size=16))
    run = run_on_model([autoscale(max_peers=6, max_global_batch=36), watching()], model)
    assert run.size == 6
    assert seen == {2: 16, 3: 24, 4: 32, 5: 36, 6: 36}


def test_the_largest_global_batch_holds_before_the_first_decision() -> None:
    seen = {}

    def grow(control: Any, size: int, samples: int) -> None:
        seen.setdefault(size, samples)
        control.rescale(4 if size == 2 else 5)

    calling = kf.Policy("calling", lambda t: kf.control.every(3).call(grow, t.size, t.global_batch_size))
    model = ClusterModel(saturating, steps=30, start=Start(size=2, max_size=6, global_batch_size=16))
    deciding = autoscale(max_peers=6, every=1000, max_global_batch=28)
    assert run_on_model([calling, deciding], model).size == 5
    assert seen == {2: 16, 4: 28, 5: 28}


# ---- noise and stragglers -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("jitter", "speed", "joining", "threshold"), [(0.2, 0.75, 2, 0.5), (0.0, 0.5, 30, 0.1)])
def test_a_linear_job_with_jitter_and_one_slow_joiner_ends_at_its_limit(
    jitter: float, speed: float, joining: int, threshold: float
) -> None:
    model = ClusterModel(
        lambda size: 100.0 * size,
        steps=900,
        start=Start(size=2, max_size=8, global_batch_size=64),
        rescaling=Rescaling(joining_steps=joining),
        speeds=PeerSpeeds(jitter=jitter, seed=3, slow=(SlowPeer(speed, peer=4),)),
    )
    run = run_on_model([autoscale(max_peers=8, efficiency=threshold), replace_stragglers()], model)
    assert run.size == 8
    assert [one.left for one in run.changes if one.left] == [(4,)]
    assert all(one.step < 600 for one in run.changes)


@pytest.mark.slow
def test_a_settled_job_looks_again_when_its_throughput_moves() -> None:
    later = tuple(SlowPeer(0.5, peer=peer, from_step=300) for peer in range(12))
    model = ClusterModel(saturating, steps=600, start=Start(size=2, max_size=6), speeds=PeerSpeeds(slow=later))
    run = run_on_model(autoscale(max_peers=6, efficiency=0.42), model)
    steps = [one.step for one in run.changes]
    assert any(step < 250 for step in steps)
    assert not [step for step in steps if 250 <= step < 300]
    assert any(step > 300 for step in steps)


@pytest.mark.slow
def test_what_somebody_else_asks_for_is_walked_from() -> None:
    model = ClusterModel(lambda size: 100.0 * size, steps=500, start=Start(size=2, max_size=5))
    run = run_on_model(kf.first(schedule({300: 2}), autoscale(max_peers=5)), model)
    assert run.size == 2


@pytest.mark.slow
@pytest.mark.parametrize(("start", "seed"), [(2, 21), (2, 22), (16, 23)])
@pytest.mark.parametrize(("share", "threshold"), [(0.05, 0.6), (0.1, 0.47)])
def test_with_jitter_it_settles_beside_the_knee_of_amdahl(
    share: float, threshold: float, start: int, seed: int
) -> None:
    speeds = PeerSpeeds(jitter=0.1, seed=seed)
    model = ClusterModel(partial(amdahl, share), steps=900, start=Start(size=start, max_size=16), speeds=speeds)
    run = run_on_model(autoscale(max_peers=16, efficiency=threshold), model)
    true = true_efficiencies(share, 0.1)
    assert true[run.size] >= threshold - 0.07
    assert true[run.size + 1] <= threshold + 0.07
    assert [one.step for one in run.changes if one.step > 640] == []


def test_one_peer_that_is_a_bit_slow_does_not_hold_up_the_walk() -> None:
    speeds = PeerSpeeds(jitter=0.02, seed=5, slow=(SlowPeer(0.85, peer=0),))
    model = ClusterModel(lambda size: 100.0 * size, steps=330, start=Start(size=2, max_size=6), speeds=speeds)
    run = run_on_model(autoscale(max_peers=6), model)
    # The steps count after 40: a size takes 60 to 80, not 300.
    assert [one.size for one in run.changes] == [3, 4, 5, 6]


def test_an_exponential_schedule_reaches_a_large_size_with_fewer_rescales() -> None:
    model = ClusterModel(saturating, steps=300, start=Start(size=2, max_size=16))
    grown = [one.size for one in run_on_model(autoscale(max_peers=16, growth="exponential"), model).changes]
    assert grown[:3] == [3, 5, 9]
    assert (grown[-1], len(grown)) == (16, 8), "of 14 by single peers"
