"""A modelled job under way: the draws of step times, and the places of peers and joiners on hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.control import average_models
from kungfu.runtime.core.cluster.placement import AVOIDED_S
from kungfu.testing import ClusterModel, HostSlots, PeerSpeeds, SlowPeer, Start, run_on_model
from kungfu.testing.simulated_job import GradientNorms, SimulatedHosts, SimulatedJob, SpeedSampler, gradient_norms


def drawn(speeds: PeerSpeeds, peer: int, steps: int) -> list[float]:
    sampler = SpeedSampler(speeds)
    return [sampler.durations([peer])[0] for _ in range(steps)]


def test_draws_are_normal_around_one_and_cut_at_three_standard_deviations() -> None:
    values = np.array(drawn(PeerSpeeds(jitter=0.1), 0, 20_000))
    assert abs(values.mean() - 1) < 0.003
    assert abs(values.std() - 0.1) < 0.003
    assert values.min() >= 0.7
    assert values.max() <= 1.3
    assert np.mean(np.abs(values - 1) < 0.1) == pytest.approx(0.683, abs=0.015), "normal"


def test_a_peer_draws_the_same_whoever_else_is_there() -> None:
    alone, together = SpeedSampler(PeerSpeeds(0.1, 7)), SpeedSampler(PeerSpeeds(0.1, 7))
    expected = [alone.durations([3])[0] for _ in range(300)]
    assert [together.durations([0, 3] if step % 2 else [3, 5, 0])[step % 2] for step in range(300)] == expected
    others = [drawn(PeerSpeeds(0.1, seed), peer, 9) for seed, peer in ((7, 3), (8, 3), (7, 4))]
    assert len({one for several in others for one in several}) == 27


def test_the_draws_of_a_seed_are_these_for_good() -> None:
    expected, found = [0.8454732400628148, 1.0540845924507067, 1.1528611027900157], drawn(PeerSpeeds(0.1, seed=1), 2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg="records of benchmarks would change")


# ---- the gradients ---------------------------------------------------------------------------------------------------


def norms_of(*, steps: int = 400, batch: int = 64, **given: Any) -> list[GradientNorms]:
    model = ClusterModel(
        {1: 1}, steps=steps, start=Start(size=2, global_batch_size=batch), noise_by_step=lambda step: 96.0,
        speeds=PeerSpeeds(seed=3), **given,
    )  # fmt: skip
    job, found = SimulatedJob.started(model), list[GradientNorms]()
    while not job.is_over:
        found.append(gradient_norms(job))
        job.step += 1
    return found


@pytest.mark.parametrize(("jitter", "batch", "most"), [(0.0, 64, 0), (0.0, 64, 16), (0.1, 64, 0), (0.5, 80, 16)])
def test_the_norms_have_the_expected_means(jitter: float, batch: int, most: int) -> None:
    found = norms_of(noise_jitter=jitter, batch=batch, max_local_batch_size=most)
    share = batch / 2
    assert np.mean([one.local for one in found]) == pytest.approx(1 + 96 / share, rel=0.06)
    assert np.mean([one.mean for one in found]) == pytest.approx(1 + 96 / batch, rel=0.06)
    variance = np.array([one.variance for one in found])
    assert np.isnan(variance).all() if not most else np.mean(variance) == pytest.approx(96, rel=0.06)
    expected = -(-int(share) // most) if most else 1
    assert {tuple(one.micro_batches) for one in found} == {(expected, expected)}


def test_the_noise_of_a_share_has_the_declared_jitter_and_two_calls_in_a_step_agree() -> None:
    local = np.array([one.local for one in norms_of(noise_jitter=0.2, batch=8)])  # little signal beside the noise
    assert local.std() / local.mean() == pytest.approx(0.2, rel=0.15)
    assert norms_of(noise_jitter=0.2, steps=3) == norms_of(noise_jitter=0.2, steps=3)


# ---- hosts -----------------------------------------------------------------------------------------------------------


def test_the_first_peers_fill_host_after_host() -> None:
    hosts = SimulatedHosts.filled(HostSlots((2, 1, 2)), range(4))
    assert hosts.places == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (2, 0)}


def test_a_joiner_starts_on_another_host_than_the_one_where_a_peer_was_let_go() -> None:
    hosts = SimulatedHosts.filled(HostSlots((2, 2)), range(2))
    hosts.stop([1], 10.0)
    assert hosts.start(2, 11.0)
    assert hosts.places[2] == (1, 0)


def test_a_joiner_starts_on_another_host_than_the_peer_that_leaves_for_it() -> None:
    hosts = SimulatedHosts.filled(HostSlots((3, 2)), range(2))
    assert [hosts.start(peer, 1.0, leaving=[1]) and hosts.places[peer] for peer in (2, 3)] == [(1, 0), (1, 1)]
    # There is no other host: it is another slot at least.
    assert hosts.start(4, 1.0, leaving=[1])
    assert hosts.places[4] == (0, 2)


def test_and_in_another_slot_while_there_is_one() -> None:
    hosts = SimulatedHosts.filled(HostSlots((4,)), range(2))
    hosts.stop([1], 10.0)
    assert [hosts.start(peer, 11.0) and hosts.places[peer] for peer in (2, 3, 4)] == [(0, 2), (0, 3), (0, 1)]


def test_a_slot_is_given_out_as_any_other_after_a_time() -> None:
    hosts = SimulatedHosts.filled(HostSlots((4,)), range(2))
    hosts.stop([1], 10.0)
    hosts.start(2, 10.0 + AVOIDED_S)
    assert hosts.places[2] == (0, 1)


def test_where_no_host_has_a_free_slot_nobody_starts_until_somebody_is_dismissed() -> None:
    hosts = SimulatedHosts.filled(HostSlots((1, 1)), range(2))
    assert not hosts.start(2, 0.0)
    hosts.dismiss([1, 2])
    assert hosts.start(2, 0.0)
    assert hosts.places[2] == (1, 0)
    assert hosts.joiners_beside([0, 2], joiners=[2, 7]) == [0, 1]


def test_one_host_has_room_for_all_where_none_are_declared() -> None:
    hosts = SimulatedHosts.filled(HostSlots(), range(3))
    assert {host for host, _ in hosts.places.values()} == {0}
    assert hosts.start(99, 0.0)


# ---- averages of models ----------------------------------------------------------------------------------------------


def test_peers_that_average_models_wait_for_each_other_in_steps_that_average_only() -> None:
    """Peer 0 is slow in steps 5, 6, 9 and 10, peer 1 in steps 7 and 8; a step of 1 s takes a slow peer 2 s."""
    seen = list[tuple[float, ...]]()

    @kf.policy
    def looking(training: Any) -> Any:
        busy = kf.ops.all_reduce(training.busy_seconds, "mean")
        seconds = kf.ops.all_reduce(training.step_seconds, "mean")
        fed = kf.ops.all_reduce(training.fed("price"), "mean")
        values = (training.step, training.mean_loss, busy, seconds, fed)
        return kf.control.every(11).call(lambda _, *now: seen.append(now), *values)

    times = ((0, 5), (1, 7), (0, 9))
    slow = [SlowPeer(0.5, peer=peer, from_step=step, until_step=step + 2) for peer, step in times]
    model = ClusterModel(
        {2: 64}, steps=12, loss_by_step=float, speeds=PeerSpeeds(slow=slow),
        fed_by_step={"price": lambda step: 7.0 if step == 10 else float("nan")},
    )  # fmt: skip
    gradients = run_on_model(kf.policies.stop_on_nan(), model)
    averages = run_on_model(looking(), model, sync=average_models(every=4))
    assert (gradients.seconds, averages.seconds) == (4 + 8 + 6, 4 + 6 + 6)
    # The call is due in step 11: the mean loss of steps 9 to 12, the time of a step in them, and in steps 5 to 8.
    np.testing.assert_allclose(seen, [(12, 10.5, (1.5 + 1.0) / 2, 1.5, 7.0)])
