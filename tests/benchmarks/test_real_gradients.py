"""Real gradients on emulated peers: the model, its training, and the figures of the benchmarks that use them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import adaptive_batch, hybrid, local_steps
from benchmarks.emulation.characters import CharacterModel, SourceText, source_text
from benchmarks.emulation.real_gradients import Devices, EmulatedTraining, LearningCurve, train
from kungfu.policies import schedule
from kungfu.testing import Start, run_on_model
from kungfu.testing.cluster_model import ClusterModel

MODEL = CharacterModel(context=2, embedding=3, hidden=5)
# A text with a rule: each character follows from the two before it.
TEXT = SourceText(*(np.cumsum(np.arange(400) % 7) % 11 for _ in range(2)))


def curve(losses: list[float], *, accuracies: list[float] | None = None, step_s: float = 1.0) -> LearningCurve:
    """A curve that is judged every ten steps."""
    steps = [10 * place for place in range(len(losses))]
    seconds = [step_s * step for step in steps]
    return LearningCurve(seconds, steps, steps, losses, accuracies or losses, [(1, 16, 32)])


# ---- the model -------------------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_loss() -> None:
    weights, samples = MODEL.started(1), TEXT.drawn(9, context=2, generator=np.random.default_rng(2))
    gradient, direction = np.empty_like(weights), np.random.default_rng(3).standard_normal(len(weights))
    MODEL.gradient(weights, samples, into=gradient)
    ahead, behind = (
        MODEL.loss_and_accuracy(weights + sign * 1e-4 * direction, samples)[0] for sign in (1.0, -1.0)
    )  # in float64: a float32 difference would be rounding
    assert float(gradient @ direction) == pytest.approx((ahead - behind) / 2e-4, rel=1e-3)


def test_a_sample_is_a_context_and_the_character_after_it() -> None:
    samples = SourceText(np.arange(20), np.arange(20)).drawn(500, context=3, generator=np.random.default_rng(0))
    assert (samples.contexts[:, 0] + 3 == samples.following).all()
    assert {*samples.following.tolist()} == {*range(3, 20)}


def test_the_text_is_source_of_python_without_the_held_out_files() -> None:
    text = source_text()
    assert len(text.training) > 5 * len(text.held_out) > 1_000_000
    letters = np.where(text.training[:100_000] > 0, text.training[:100_000] + 31, 10).astype(np.uint8).tobytes()
    assert b"from __future__ import annotations" in letters or b"import" in letters
    assert text.training.max() < 96


# ---- training --------------------------------------------------------------------------------------------------------


def job(samples: int = 640, **changed: Any) -> EmulatedTraining:
    start = Start(size=2, max_size=4, global_batch_size=32, learning_rate=0.1, job_samples=samples)
    return replace(EmulatedTraining(start, model=MODEL, judged_s=0.05), **changed)


def test_the_time_of_a_step_is_that_of_the_largest_share() -> None:
    found = train(job(devices=Devices(0.01, 0.001, 0.002)), seed=0, text=TEXT)
    assert (found.steps[-1], found.samples[-1], found.changes) == (20, 640, [(1, 2, 32)])
    assert found.seconds[-1] == pytest.approx(20 * (0.01 + 16 * 0.001 + 2 * 0.002))


def test_sgd_on_peers_is_sgd_on_the_whole_batch() -> None:
    """A policy that reads norms has each peer's gradient computed; their mean is that of all samples at once."""
    norms = adaptive_batch.Way(32, is_adaptive=True).policies[0]
    whole, shared = (train(job(policies=one), seed=3, text=TEXT) for one in ([], [norms]))
    assert shared.losses == pytest.approx(whole.losses, rel=1e-4)
    assert whole.losses[-1] < whole.losses[0] - 0.1


def test_the_programs_schedule_multiplies_the_rate() -> None:
    still = train(job(rate_factor=lambda samples: 0.0 if samples >= 320 else 1.0), seed=0, text=TEXT)
    assert still.losses[-1] == still.losses[-2] < still.losses[0]


def test_peers_that_join_are_counted_with_the_time_of_their_stop() -> None:
    found = train(job(policies=[schedule({5: 4}, keep="global_batch_size")]), seed=0, text=TEXT)
    assert found.changes == [(1, 2, 32), (9, 4, 32)]
    assert found.seconds[-1] == pytest.approx(8 * 0.0116 + 12 * 0.0108 + 0.1)


def test_averages_of_models_after_every_step_are_the_gradients_of_sgd() -> None:
    gradients, models = (train(job(average_every=every), seed=3, text=TEXT) for every in (0, 1))
    assert models.losses == pytest.approx(gradients.losses, rel=1e-5)
    assert models.weights == pytest.approx(gradients.weights, abs=1e-5)
    assert models.seconds == gradients.seconds


def test_each_peer_descends_by_itself_and_counts_in_the_average_by_its_samples() -> None:
    """Ten steps of 33 samples and one of 3, of which the last window has two steps; all are done by hand here."""
    start = Start(size=2, max_size=2, global_batch_size=33, learning_rate=0.1, job_samples=333)
    found = train(EmulatedTraining(start, model=MODEL, judged_s=0.001, average_every=3), seed=5, text=TEXT)
    weights, generator = MODEL.started(5), np.random.default_rng([5, 1])
    gradient = np.empty_like(weights)
    for window in ((33, 33, 33),) * 3 + ((33, 3),):
        peers, samples = [weights.copy(), weights.copy()], np.zeros(2)
        for batch in window:
            drawn = TEXT.drawn(batch, context=MODEL.context, generator=generator)
            for peer, share in ((0, slice(0, -(-batch // 2))), (1, slice(-(-batch // 2), batch))):
                MODEL.gradient(peers[peer], drawn[share], into=gradient)
                peers[peer] -= np.float32(0.1) * gradient
                samples[peer] += len(drawn[share])
        weights = ((samples[0] * peers[0] + samples[1] * peers[1]) / samples.sum()).astype(np.float32)
    assert found.weights == pytest.approx(weights, abs=1e-6)
    assert found.steps == [0, 3, 6, 9, 11], "judged after averages only"


def test_an_adaptive_batch_follows_the_noise_of_real_gradients() -> None:
    """A model that has learned almost all that there is in noise has a large noise scale: the batch grows."""
    noise = np.random.default_rng(0).integers(0, 20, 4000)
    way = adaptive_batch.Way(32, is_adaptive=True)
    start = Start(size=16, max_size=16, global_batch_size=32, learning_rate=0.1, job_samples=20_000)
    found = train(EmulatedTraining(start, way.policies, model=MODEL), seed=0, text=SourceText(noise, noise))
    assert found.changes[0] == (1, 16, 32)
    assert max(batch for _, _, batch in found.changes) > 200


def test_the_time_to_a_loss_is_interpolated_between_means_of_three() -> None:
    # The means of three at the seconds 10, 20, 30 are 4, 3, 2.
    found = curve([5.0, 4.0, 3.0, 2.0, 1.0])
    assert found.at_loss(3.5) == pytest.approx((15.0, 15.0))
    assert found.at_loss(4.5) == pytest.approx((10.0, 10.0))
    assert all(map(math.isnan, found.at_loss(1.9)))
    assert all(map(math.isnan, curve([1.0, 1.0]).at_loss(3.0)))


# ---- adaptive_batch --------------------------------------------------------------------------------------------------


def ran(way: adaptive_batch.Way, seconds: float, *, seed: int = 0, steps: float = 3000) -> adaptive_batch.Run:
    return adaptive_batch.Run(way, seed, curve([3.0]), seconds, steps)


def test_one_rule_sets_the_rate_of_all_runs() -> None:
    assert [adaptive_batch.rate_for(batch) for batch in (16, 32, 256, 512)] == [0.05, 0.1, 0.8, 1.0]
    model = ClusterModel({16: 1000.0}, 40, Start(size=16, global_batch_size=32, learning_rate=0.1))
    way = adaptive_batch.Way(32, 512, after_steps=20)
    decided = [(one.step, one.value) for one in run_on_model(way.policies, model).decisions]
    assert decided == [(20, 512.0), (22, 1.0)]


def test_the_figures_compare_with_the_best_fixed_batch_and_with_the_start() -> None:
    way = adaptive_batch.Way
    seconds = {way(32): 40.0, way(512): 10.0, way(1024): 20.0, way(32, 512, 9): 8.0, way(32, is_adaptive=True): 12.0}
    runs = [ran(one, value * (1 + seed), seed=seed) for one, value in seconds.items() for seed in (0, 1)]
    found = adaptive_batch.figures(runs)
    assert (found["over_best_static"], found["best_static"]) == (1.2, 512)
    assert (found["faster_than_start_batch"], found["over_two_phase"]) == (0.7, 1.5)
    assert found["over_best_static_error"] == 0.0
    assert found["within_bounds"] == {"over_best_static": False, "faster_than_start_batch": True}
    assert adaptive_batch.figures(runs[:1] + runs[2:3] + runs[6:7] + runs[8:9])["over_best_static_error"] is None


def test_the_two_phases_change_where_the_fixed_batches_make_the_best_of_both() -> None:
    """One batch is fast to a loss of about 2 and then slow, the other is slow at first and fast after it."""
    falls = {64: [*np.linspace(4, 2, 6), *np.linspace(2, 1, 40)], 256: [*np.linspace(4, 2, 40), *np.linspace(2, 1, 6)]}
    runs = [adaptive_batch.Run(adaptive_batch.Way(batch), 0, curve(one), 0.0, 0.0) for batch, one in falls.items()]
    first, second = adaptive_batch.two_phase_ways(runs, loss=1.3)
    assert (first.batch, first.then) == (64, 256)
    assert first.after_steps == pytest.approx(65, abs=20)
    assert (second.batch, second.then) == (256, 64)


# ---- hybrid ----------------------------------------------------------------------------------------------------------


def test_the_elastic_job_doubles_batch_and_rate_with_its_peers() -> None:
    assert hybrid.optimal_peers() == {64: 3, 128: 4, 256: 5}
    elastic = hybrid.training("elastic")
    run = run_on_model(elastic.policies, ClusterModel({1: 100.0}, 10_000, elastic.start))
    second, third = hybrid.first_steps()
    assert [(one.step - second, one.size) for one in run.changes[:1]] == [(3, 4)]
    assert [(one.step - third, one.size) for one in run.changes[1:]] == [(3, 8)]
    settings = [one.value for one in run.decisions if one.rule != "schedule"]
    assert settings == [128, 2 * hybrid.RATE, 256, 4 * hybrid.RATE]
    assert run.samples == 3 * hybrid.PHASE_SAMPLES
    assert run.steps == pytest.approx(sum(hybrid.PHASE_SAMPLES / batch for batch in hybrid.BATCHES), abs=10)


def test_the_savings_are_at_the_accuracy_of_the_small_batch_within_an_error() -> None:
    def ran(job: str, seed: int, *accuracies: float, step_s: float) -> hybrid.Run:
        return hybrid.Run(job, seed, curve([0.0] * 4, accuracies=[*accuracies], step_s=step_s))

    runs = [
        *(ran("small", seed, 0.1, 0.3, 0.4, 0.5 + 0.02 * seed, step_s=1.0) for seed in (0, 1)),
        *(ran("large", seed, 0.1, 0.3, 0.6, 0.6, step_s=1.2) for seed in (0, 1)),
        *(ran("elastic", seed, 0.1, 0.3, 0.5, 0.5, step_s=0.9) for seed in (0, 1)),
    ]
    # Small ends at 0.51 with an error of 0.01: the target of 0.5 is reached after 30, 24 and 18 seconds.
    target, seconds = hybrid.times_to_target(runs)
    assert target == pytest.approx(0.5)
    assert seconds == pytest.approx({"small": 30.0, "large": 24.0, "elastic": 18.0})
    found = hybrid.figures(runs)
    assert (found["below_small"], found["below_large"]) == (0.4, 0.25)
    unlearned = curve([0.0] * 4, accuracies=[0.1] * 4)
    lost = [replace(one, curve=unlearned) if one.job == "elastic" else one for one in runs]
    assert hybrid.figures(lost)["below_small"] is None
    assert hybrid.figures(lost)["within_bounds"] == {"below_small": False, "below_large": False}


def test_the_error_of_a_saving_comes_from_leaving_out_each_seed() -> None:
    # For a mean it is the standard error: without each value in turn the means of 1, 2, 3 are 2.5, 2, 1.5.
    assert hybrid.jackknife_error([2.5, 2.0, 1.5]) == pytest.approx(math.sqrt(1 / 3))


# ---- local_steps -----------------------------------------------------------------------------------------------------


def test_a_synchronisation_takes_as_long_as_its_bytes_and_happens_every_h_steps() -> None:
    # A ring of 8 peers sends 14/8 of the 121,728 bytes of the model over each link.
    assert local_steps.message_s(10.0) == pytest.approx(0.001 + 14 / 8 * 121_728 * 8 / 10e6)
    assert local_steps.message_s(math.inf) == 0.0
    computed = local_steps.seconds(160, every=0, mbit=math.inf)
    assert computed == pytest.approx(160 * (0.01 + 0.0001 * 32))
    rest = {every: local_steps.seconds(160, every=every, mbit=10.0) - computed for every in local_steps.EVERY}
    assert rest == pytest.approx({every: local_steps.message_s(10.0) * 160 / max(every, 1) for every in rest})


def test_the_figures_weigh_more_steps_against_fewer_messages() -> None:
    """With H = 4 twice as many steps are needed, and half as many messages are sent."""
    falls = {0: [3.0, 2.0, 1.0], 1: [3.0, 2.0, 1.0], 4: [3.0, 2.5, 2.0, 1.5, 1.0], 16: [3.0, 3.0, 3.0]}
    runs = [
        local_steps.Run(every, seed, curve([losses[0]] * 2 + losses + [losses[-1]] * 2))
        for every, losses in falls.items()
        for seed in (0, 1)
    ]
    found = local_steps.summaries(runs, loss=1.5)
    told: Any = local_steps.figures(found, steps=60)
    ways, faster = told["ways"], told["faster"]
    assert [ways[name]["steps_to_loss"] for name in ("gradients", "H = 1", "H = 16")] == [37.5, 37.5, None]
    assert faster["no cost"]["H = 4"] == pytest.approx(1 - 50 / 37.5, abs=1e-3)
    assert faster["10 Mbit/s"]["H = 4"] > 0 == faster["10 Mbit/s"]["H = 1"]
    assert (faster["no cost"]["H = 16"], told["faster_error"]["no cost"]["H = 4"]) == (None, 0.0)
    assert [len(one.rows) for one in (table for table in local_steps.tables_of(found, steps=60, loss=1.5))] == [4, 4]


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--jobs", "0"], ["--seeds", "many"]])
@pytest.mark.parametrize("module", [adaptive_batch, hybrid, local_steps])
def test_bad_numbers_are_refused(module: Any, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        module.arguments(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
