"""A model made of a record: what was measured comes out again, and what was not is said to be a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kungfu import control, monitor
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.errors import UsageError
from kungfu.policies import schedule
from kungfu.policy_definition import Policy
from kungfu.testing import ClusterModel, PeerSpeeds, Rescaling, SlowPeer, Start
from kungfu.testing.recorded_model import RecordedJob, guesses_of, measure_job, model_of_job, throughput_between
from kungfu.testing.simulated_run import simulate
from kungfu.trace import RecordedStep
from tests.testing.recorded_run import recorded_run

CURVE = {2: 200.0, 4: 340.0, 6: 420.0}


def plan_of(*policies: Policy) -> CompiledPolicies:
    return compile_policies(list(policies))


def truth(**others: Any) -> ClusterModel:
    """A job of 20,000 samples whose speed is known."""
    start = Start(size=2, max_size=12, global_batch_size=64, job_samples=20_000)
    settings: dict[str, Any] = {"rescaling": Rescaling(1, stop_s=0.25, joining_s=4.0), **others}
    return ClusterModel(CURVE, 10_000, start, **settings)


GROWN = plan_of(schedule({40: 4, 80: 6, 120: 2}))


def test_what_was_measured_is_what_the_job_was_like() -> None:
    trace, events = recorded_run(GROWN, truth())
    job, run = measure_job(trace, events), simulate(GROWN, truth())
    assert {size: one.samples_per_s for size, one in job.sizes.items()} == pytest.approx(CURVE)
    assert all(one.spread == pytest.approx(0, abs=1e-6) for one in job.sizes.values())
    assert [size for _, size in job.changes] == [2, 4, 6, 2]
    assert (job.samples, job.seconds) == (20_000, pytest.approx(run.seconds, rel=1e-3))
    assert job.peer_seconds == pytest.approx(run.peer_seconds, rel=0.01)
    assert job.rescaling == Rescaling(1, stop_s=0.25, joining_s=4.0)
    assert (job.guesses, job.other_s) == ((), pytest.approx(0, abs=0.5))


def test_another_policy_takes_on_the_model_what_it_takes_in_truth() -> None:
    trace, events = recorded_run(GROWN, truth())
    other = plan_of(schedule({50: 6, 120: 3}))
    expected = simulate(other, truth())
    found = simulate(other, model_of_job(measure_job(trace, events), trace, other))
    assert (found.samples, [one.size for one in found.changes]) == (20_000, [6, 3])
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-3)
    assert found.peer_seconds == pytest.approx(expected.peer_seconds, rel=1e-3)


@pytest.mark.parametrize("jitter", [0.05, 0.2])
def test_jitter_is_measured_and_not_counted_twice(jitter: float) -> None:
    uneven = truth(speeds=PeerSpeeds(jitter, seed=3))
    trace, events = recorded_run(GROWN, uneven)
    model = model_of_job(measure_job(trace, events), trace, GROWN)
    assert model.speeds.jitter == pytest.approx(jitter, rel=0.25)
    assert simulate(GROWN, model).seconds == pytest.approx(simulate(GROWN, uneven).seconds, rel=0.02)


def test_noise_and_loss_follow_the_samples_that_were_trained_on() -> None:
    follows = truth(
        noise_by_step=lambda at: 50 + at.samples_done / 100, loss_by_step=lambda at: 2 - at.samples_done / 20_000
    )
    looks = Policy(
        "looks", lambda t: control.every(30).after(60).call(_ignore, monitor.gradient_noise_scale(t), t.mean_loss)
    )
    plan = plan_of(schedule({40: 4}), looks)
    trace, events = recorded_run(plan, follows)
    runs = simulate(plan, model_of_job(measure_job(trace, events), trace, plan)), simulate(plan, follows)
    found, expected = ([tuple(one.inputs.values()) for one in run.decisions if one.rule == "_ignore"] for run in runs)
    assert len(found) > 2
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0.15)


def throughput_at(job: RecordedJob, size: int) -> float:
    return throughput_between({one: measured.samples_per_s for one, measured in job.sizes.items()}, size)


def _ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def test_sizes_that_were_never_seen_are_between_the_others_or_a_guess() -> None:
    trace, events = recorded_run(GROWN, truth())
    job = measure_job(trace, events)
    found = [throughput_at(job, size) for size in (1, 2, 3, 5, 6, 8)]
    assert found == pytest.approx([100, 200, 270, 380, 420, 500])
    said = guesses_of(job, trace, [1, 2, 3, 6, 8, 9], [64, 96, 400])
    assert [one.split(":")[0] for one in said] == [
        "3 peers were never seen",
        "8, 9 peers were never seen, beyond the largest size that was (6)",
        "1 peer was never seen, below the smallest size that was (2)",
        "batches of 400 to 400 samples were never seen",
    ]
    assert guesses_of(job, trace, [2, 4, 6], [64, 128, 192]) == ()


def test_the_guesses_say_that_peers_are_alike_if_those_of_the_job_were_not() -> None:
    slow = truth(speeds=PeerSpeeds(0.02, slow=(SlowPeer(0.5, peer=3, from_step=60, until_step=110),)))
    trace, events = recorded_run(plan_of(schedule({40: 4, 110: 6})), slow)
    (said,) = guesses_of(measure_job(trace, events), trace, [2, 4, 6], [])
    assert said.startswith("a peer ran at 5")
    even, events = recorded_run(GROWN, truth(speeds=PeerSpeeds(0.05)))
    assert guesses_of(measure_job(even, events), even, [2, 4, 6], []) == ()


def test_a_curve_that_falls_is_not_carried_on_below_what_was_seen() -> None:
    falling = ClusterModel({2: 200.0, 4: 150.0}, 10_000, Start(size=2, job_samples=20_000))
    trace, events = recorded_run(plan_of(schedule({50: 4})), falling)
    assert throughput_at(measure_job(trace, events), 9) == pytest.approx(150)


def test_without_events_a_rescale_is_a_guess_and_said_to_be_one() -> None:
    trace, _ = recorded_run(GROWN, truth())
    job = measure_job(trace)
    assert [one.split(":")[0] for one in job.guesses] == ["no rescale is in the record", "no peer joined in the record"]


def test_pauses_that_are_not_the_policys_are_told_apart() -> None:
    trace, events = recorded_run(GROWN, truth())

    def paused(one: RecordedStep) -> RecordedStep:
        pause_s = 30 * (one.step > 20)
        return replace(one, local=tuple({**own, "clock_seconds": own["clock_seconds"] + pause_s} for own in one.local))

    job = measure_job(replace(trace, steps=tuple(map(paused, trace.steps))), events)
    assert job.other_s == pytest.approx(30, abs=0.5)


def test_one_size_tells_nothing_of_others() -> None:
    alone = plan_of(schedule({1: 2}))
    trace, events = recorded_run(alone, truth())
    with pytest.raises(UsageError, match="this record has one size only, 2 peers: nothing in it shows how fast"):
        model_of_job(measure_job(trace, events), trace, alone)


def test_a_record_of_few_steps_tells_nothing() -> None:
    trace, events = recorded_run(GROWN, ClusterModel(CURVE, 2, Start(size=2)))
    with pytest.raises(UsageError, match="no view of this record lasted for three steps"):
        model_of_job(measure_job(trace, events), trace, GROWN)
