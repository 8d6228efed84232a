"""The gradient noise scale: by hand, without bias, and undefined where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kungfu import control
from kungfu.compiler import Outcome, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.monitor import gradient_noise_scale, noise_scale_estimate
from kungfu.policy_definition import Policy
from kungfu.signal import Fold, Map, Signal, TrainingSignals, topological
from kungfu.testing import ClusterModel, PeerSpeeds
from kungfu.testing.simulated_job import SimulatedJob, agreed_sources, local_sources, stepped

CALM = {"step": 1, "pending": False}


def parts(noise_scale: Signal) -> tuple[Fold, ...]:
    """The smoothed |G|² and S that the noise scale is made of."""
    return tuple(one for one in topological((noise_scale,)) if isinstance(one, Fold))


def watching(decay: float = 0.01) -> Policy:
    def body(training: Any) -> Any:
        noise = gradient_noise_scale(training, decay=decay)
        signal, spread = parts(noise)
        return control.always().call(lambda *_: None, noise, spread, signal)

    return Policy("watching", body)


def peers(*grads: Sequence[float], samples: Sequence[float] | None = None) -> list[dict[str, Any]]:
    given = samples or [1.0] * len(grads)
    return [{"grads": [np.array(g, np.float32)], "samples": np.float32(b)} for g, b in zip(grads, given, strict=True)]


def seen(local: list[dict[str, Any]], *, decay: float = 0.01) -> Outcome:
    return Replay(compile_policies([watching(decay)]), size=len(local)).step(local, CALM)


def test_the_hand_computed_case_is_exact() -> None:
    noise, spread, signal = seen(peers([3, 0], [1, 0])).inputs
    assert (spread, signal) == (2, 3)
    assert noise == np.float32(2) / np.float32(3)


def test_equal_slices_agree_with_the_formula_of_two_batch_sizes() -> None:
    rng = np.random.default_rng(0)
    b, size = 4, 3
    grads = rng.normal(size=(size, 5))
    mean = grads.mean(axis=0)
    small, large = (grads**2).sum(axis=1).mean(), (mean**2).sum()
    B = b * size
    signal = (B * large - b * small) / (B - b)
    spread = (small - large) / (1 / b - 1 / B)
    outcome = seen(peers(*grads.tolist(), samples=[b] * size))
    np.testing.assert_allclose(outcome.inputs[1:], [spread, signal], rtol=1e-4)


@pytest.mark.slow
def test_uneven_slices_and_an_empty_one_are_estimated_without_bias() -> None:
    """Averaged over many steps, S and |G|² are those that the gradients were drawn with."""
    rng = np.random.default_rng(1)
    samples, true, spread, dimensions = np.array([5.0, 2.0, 0.0, 1.0]), 3.0, 2.0, 40
    direction = np.zeros(dimensions)
    direction[0] = true
    scales = spread / np.sqrt(np.where(samples > 0, samples, np.nan) * dimensions)
    replay = Replay(compile_policies([watching(decay=0.002)]), size=4)
    for number in range(1, 3001):
        own = direction + rng.normal(size=(4, dimensions)) * scales[:, None]
        outcome = replay.step(peers(*own, samples=samples.tolist()), {**CALM, "step": number})
    np.testing.assert_allclose(outcome.inputs[1:], [spread**2, true**2], rtol=0.05)


@pytest.mark.parametrize("local", [peers([3, 0]), peers([3, 0], [1, 0], samples=[4, 0])])
def test_with_samples_on_one_peer_only_it_is_undefined(local: list[dict[str, Any]]) -> None:
    outcome = seen(local)
    assert np.isnan(outcome.inputs).all()
    assert np.isnan(outcome.watched).all()


def test_gradients_that_point_apart_leave_no_signal_and_no_number() -> None:
    noise, spread, signal = seen(peers([1, 0], [-1, 0])).inputs
    assert (spread, signal) == (2, -1)
    assert math.isnan(noise)


def test_a_negative_estimate_counts_in_the_averages() -> None:
    replay = Replay(compile_policies([watching(decay=0.5)]), size=2)
    replay.step(peers([3, 0], [1, 0]), CALM)  # S = 2, |G|² = 3
    outcome = replay.step(peers([1, 0], [-1, 0]), CALM)  # S = 2, |G|² = -1
    np.testing.assert_allclose(outcome.inputs[1:], [2, (3 * 0.5 - 1) / 1.5], rtol=1e-6)
    np.testing.assert_allclose(outcome.watched, [2 / ((3 * 0.5 - 1) / 1.5)], rtol=1e-6)


def test_a_step_whose_gradients_overflowed_is_skipped() -> None:
    replay = Replay(compile_policies([watching(decay=0.5)]), size=2)
    first = replay.step(peers([3, 0], [1, 0]), CALM)
    for broken in (np.nan, np.inf):
        assert replay.step(peers([3, 0], [broken, 0]), CALM).watched == first.watched


def test_it_costs_five_floats_and_no_message() -> None:
    plan = compile_policies([watching()])
    assert (plan.piggybacked.floats(7), plan.messages_per_step) == (5, 0)


def test_a_decay_out_of_range_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"ema\(decay=2\): the weight of the newest value must lie in \(0, 1\]"):
        gradient_noise_scale(TrainingSignals(), decay=2)


# ---- micro-batches ---------------------------------------------------------------------------------------------------


def test_one_peer_with_micro_batches_has_a_noise_scale() -> None:
    """Two micro-batches of one sample each, with the gradients [3, 0] and [1, 0]: S = 2, |G|² = 4 - 2 / 2."""
    alone = [{"grads": [np.array([2, 0], np.float32)], "samples": 2.0, "micro_batches": 2, "micro_batch_variance": 2.0}]
    noise, spread, signal = seen(alone).inputs
    assert (spread, signal, noise) == (2, 3, np.float32(2) / np.float32(3))


def test_estimates_within_and_between_shares_are_pooled() -> None:
    """Shares of three micro-batches and of one: S is 6 between the peers, 3 within the first, (1 * 6 + 2 * 3) / 3."""
    local = peers([3, 0], [1, 0], samples=[3.0, 3.0])
    local[0] |= {"micro_batches": 3, "micro_batch_variance": 3.0}
    local[1] |= {"micro_batches": 1, "micro_batch_variance": math.nan}
    _, spread, signal = seen(local).inputs
    assert spread == pytest.approx(4)
    assert signal == pytest.approx(4 - 4 / 6)


# ---- the estimate and its error --------------------------------------------------------------------------------------


def estimating(*, decay: float, every: int = 1) -> Replay:
    def body(training: Any) -> Any:
        found = noise_scale_estimate(training, decay=decay, every=every)
        return control.always().call(lambda *_: None, found.value, found.standard_error, found.estimates)

    return Replay(compile_policies([Policy("estimating", body)]), size=2)


def estimated(jitter: float, scales: Sequence[float], *, seed: int, decay: float = 0.005, every: int = 1) -> np.ndarray:
    """Value, standard error and number of the estimates in the steps of two peers with these noise scales."""
    model = ClusterModel(
        {1: 1}, steps=len(scales), noise_by_step=lambda step: scales[step - 1], noise_jitter=jitter,
        speeds=PeerSpeeds(seed=seed),
    )  # fmt: skip
    job, replay, found = SimulatedJob.started(model), estimating(decay=decay, every=every), []
    while not job.is_over:
        outcome = replay.step(local_sources(job, [1.0, 1.0]), agreed_sources(job))
        found.append([*outcome.inputs, *outcome.inputs_whole])
        stepped(job, [1.0] * job.size)
    return np.array(found)


@pytest.mark.slow
def test_the_standard_error_is_that_of_independent_runs() -> None:
    last = np.array([estimated(0.2, [60.0] * 120, seed=seed)[-1] for seed in range(25)])
    assert np.mean(last[:, 1]) == pytest.approx(np.std(last[:, 0], ddof=1), rel=0.35)
    assert abs(np.mean(last[:, 0]) - 60) < 4 * np.mean(last[:, 1]) / 25**0.5
    assert set(last[:, -1]) == {120}


@pytest.mark.slow
def test_after_a_change_the_averages_begin_again() -> None:
    found = estimated(0.2, [60.0] * 400 + [120.0] * 100, seed=5)
    assert found[399, 0] == pytest.approx(60, rel=0.1)
    assert found[-1, 0] == pytest.approx(120, rel=0.1)
    plain = 120 - 60 * (1 - 0.005) ** 100  # where an average of the same reach would be
    assert found[-1, 0] > plain + 15
    assert found[-1, 1] > 1.5 * found[399, 1], "fewer estimates, a larger error"


@pytest.mark.slow
def test_a_change_is_noticed_early_in_training_too() -> None:
    """The recent estimates are then most of all, so both averages vary together, and a small difference is telling."""
    found = [estimated(0.2, [60.0] * 60 + [120.0] * 40, seed=seed)[-1, 0] for seed in range(4)]
    assert np.mean(found) > 105, "an average over all steps would be about 84"


def test_estimates_every_few_steps_reach_back_as_far() -> None:
    found = estimated(0.0, [60.0] * 40 + [90.0] * 40, seed=0, decay=0.1, every=4)
    assert found[-1, -1] == 20
    assert found[-1, 0] == pytest.approx(90 - 30 * 0.9**40, rel=0.01)


def test_an_estimate_without_noise_has_no_error_and_one_estimate_none_at_all() -> None:
    found = estimated(0.0, [60.0] * 5, seed=0)
    assert math.isnan(found[0, 1])
    np.testing.assert_allclose(found[1:, 0], 60, rtol=1e-4)
    assert (found[1:, 1] < 0.01).all()


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1])
def test_a_weight_that_leaves_no_average_is_refused(decay: float) -> None:
    with pytest.raises(PolicyError, match=rf"noise_scale_estimate\(decay={decay}\): the newest step's weight"):
        noise_scale_estimate(TrainingSignals(), decay=decay)


def test_it_takes_each_norm_once() -> None:
    nodes = topological((gradient_noise_scale(TrainingSignals()),))
    assert [one.operation.name for one in nodes if isinstance(one, Map)].count("norm_squared") == 2
