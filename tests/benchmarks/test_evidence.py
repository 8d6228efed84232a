"""The benchmarks that show what policies are good for: their twins and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import autoscaling, joining, stragglers, utility
from benchmarks.elasticity.stamps import Stamp
from benchmarks.emulation.jobs import RealRun
from kungfu.policy_definition.policy_path import load_policy


def ran(seconds: float, *, size: int, peer_seconds: float = 0.0, events: tuple[dict, ...] = ()) -> RealRun:
    """A job that ended so."""
    return RealRun(seconds, peer_seconds, (seconds / 2, seconds), (size, size), events=events)


def curves():
    """The stated ones, of a machine without the published files."""
    return autoscaling.measured_curves(Path("/no such folder"))


def test_autoscaling_has_a_job_for_each_start_and_a_policy_that_can_be_named() -> None:
    cases = autoscaling.cases(curves(), seconds=30.0, kind="majorant")
    assert [(one.application, one.start) for one in cases] == [
        ("CIFAR-10", 2), ("CIFAR-10", 4), ("CIFAR-10", 8), ("ImageNet", 2), ("ImageNet", 8), ("ImageNet", 16),
    ]  # fmt: skip
    assert {load_policy(one.task.policy).name for one in cases} == {"autoscale"}
    assert [one.best for one in cases] == [2, 2, 2, 16, 16, 16]
    fastest = [min(one.static_s for one in cases if one.application == name) for name in curves()]
    assert fastest == pytest.approx([30.0, 120.0], rel=1e-4)


def test_on_a_curve_with_a_dip_the_best_size_depends_on_the_start() -> None:
    dipped = dict(curves()["CIFAR-10"].throughput) | {3: 5000.0, 4: 5800.0, 5: 5600.0}
    measured = {**curves(), "CIFAR-10": replace(curves()["CIFAR-10"], throughput=dipped)}
    cases = autoscaling.cases(measured, seconds=30.0, kind="measured")
    assert [one.best for one in cases] == [2, 4, 6, 16, 16, 16]
    assert all("efficiency=0.1," in one.task.policy for one in cases)
    assert cases[0].task.work.curve.throughput[3] == pytest.approx(5000.0 * 20 / autoscaling.SAMPLES_EACH["CIFAR-10"])


def test_an_emulated_step_takes_as_long_as_its_samples_by_the_curve_divided_by_20() -> None:
    measured = curves()
    for case in autoscaling.cases(measured, seconds=30.0, kind="majorant"):
        batch = case.task.work.batch_at(case.start) * autoscaling.SAMPLES_EACH[case.application]
        expected = batch / measured[case.application].smoothed().throughput[case.start] / 20
        assert case.task.work.step_s(case.start) == pytest.approx(expected)


def test_the_distance_is_from_the_best_size_and_what_is_saved_from_the_static_twin() -> None:
    case = autoscaling.cases(curves(), seconds=30.0, kind="majorant")[2]
    result = autoscaling.Result(case, ran(case.static_s / 2, size=4, peer_seconds=2 * case.static_s), 0.01)
    assert (result.distance, result.time_saved, result.gpu_time_saved) == (2.0, 0.5, 0.75)
    told = autoscaling.figures([result, replace(result, run=replace(result.run, sizes=(8, 1)))])
    assert told["worst_distance_from_best"] == 2.0
    assert told["cifar10"]["worst_twin_error"] == 0.01


def test_the_sizes_of_a_job_are_told_with_what_was_asked_for_last() -> None:
    decision = {"event": "decision", "asked": 2.0, "step": 12}
    run = RealRun(4.0, 4.0, (1.0, 2.0, 3.0, 4.0), (2, 3, 3, 2), events=(decision,))
    assert autoscaling.told_sizes(run) == "2 3 2 in 4 steps, the last decision was for 2 after step 12"


def test_utility_has_four_corners_that_end_where_the_marginal_worth_meets_the_cost() -> None:
    corners = utility.corners()
    assert [(one.worth, one.price) for one in corners] == [
        ("linear", 0.01),
        ("linear", 10),
        ("step", 0.01),
        ("step", 10),
    ]
    assert all(load_policy(one.policy).name == "utility" for one in utility.cases())
    # Of Amdahl's law with the share s, k + 1 peers are worth it while k (k + 1) < U' (1 - s) / (s P), here 3.6.
    price_per_s = 10.0 * utility.FASTER / 3600
    bound = 20.0 / utility.ZERO_AT_S * (1 - utility.SERIAL) / (utility.SERIAL * price_per_s)
    assert 1 * 2 < bound < 2 * 3


def test_the_ratios_compare_the_highest_price_with_the_lowest() -> None:
    corners = utility.corners()
    runs = dict(
        zip(corners, (ran(60.0, size=8), ran(150.0, size=2), ran(70.0, size=6), ran(140.0, size=2)), strict=True)
    )
    assert utility.ratios(runs) == {"linear_low_ratio": 2.5, "step_low_ratio": 2.0}
    told = utility.figures(runs, runs)
    assert (told["worst_corner_size_difference"], told["worst_corner_time_difference"]) == (0, 0.0)


def test_the_joiners_of_the_model_take_the_median_of_the_real_ones() -> None:
    rescales = tuple(
        {"event": "rescale", "joined": [1], "parts": {"spawn_s": 0.5, "ready_s": one}} for one in (3, 4, 8)
    )
    leaving = {"event": "rescale", "joined": [], "parts": {}}
    assert utility.joining_s([ran(1.0, size=1, events=(*rescales, leaving))]) == 4.5
    assert utility.joining_s([ran(1.0, size=1, events=(leaving,))]) == utility.JOINING_S


def test_a_job_with_stragglers_waits_from_the_fourth_peer_on() -> None:
    """A job without stragglers takes its seconds, and one with them waits from the fourth peer on."""
    # 1 to 7 peers for 5 s each, then 8: 100 samples / s each.
    assert stragglers.samples_in(100.0) == 100 * (5 * sum(range(1, 8)) + 65 * 8)
    assert stragglers.seconds_for(stragglers.samples_in(100.0)) == pytest.approx(100.0)
    assert stragglers.seconds_for(stragglers.samples_in(12.0)) == pytest.approx(12.0)
    # The first 15 s are without a straggler, all that follows takes four times as long.
    samples = 100 * (5 * (1 + 2 + 3) + (5 * (4 + 5 + 6 + 7) + 10 * 8) / 4)
    assert stragglers.seconds_for(samples, factor=4.0) == pytest.approx(45.0)
    assert stragglers.samples_in(45.0, factor=4.0) == pytest.approx(samples)


def test_the_saving_is_that_of_the_run_whose_stragglers_stay() -> None:
    """The saving is that of the run whose stragglers stay, and the slowest run gives `within_no_stragglers`."""
    samples = stragglers.samples_in(100.0)
    told = stragglers.figures({"4x": ran(110.0, size=8), "2x": ran(105.0, size=8)}, samples=samples)
    assert told["reduction_4x"] == pytest.approx(1 - 110 / stragglers.seconds_for(samples, factor=4.0), abs=1e-4)
    assert told["within_no_stragglers"] == 0.1
    assert (
        load_policy(stragglers.task(4.0, samples=round(samples)).policy).name
        == "compose(one_more_every, replace_stragglers)"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("4x", 0.55), ("2x", 0.3), ("1_33x", 0.1)])
def test_on_a_model_whose_joiners_had_loaded_tensorflow_the_bounds_hold(name: str, least: float) -> None:
    samples, factor = round(stragglers.samples_in(100.0)), stragglers.FACTORS[name]
    seconds = stragglers.on_model(factor, samples=samples, joining_s=2.0)
    assert 1 - seconds / stragglers.seconds_for(samples, factor=factor) >= least
    assert seconds <= 112.5


def test_the_figures_of_joins_are_medians_and_a_spare_has_trained_once_it_has_joined() -> None:
    cold = joining.Joining((8.0, 6.0, 7.0), (9.0, 9.5, 10.0), (), (300_000_000,))
    spare = joining.Joining((0.2, 0.4, 0.3), (0.5, 0.6, 0.7), (240_000_000, 250_000_000), (310_000_000, 320_000_000))
    assert joining.figures({"cold": cold, "spare": spare}) == {
        "cold_s": 7.0, "cold_replaced_s": 9.5, "spare_s": 0.3, "replaced_s": 0.6, "spare_mb": 245.0, "peer_mb": 310.0
    }  # fmt: skip
    skipped, done = Stamp(1.0, 2.0, 7, 7, 3, 2), Stamp(2.0, 2.5, 7, 8, 3, 2)
    assert joining.first_steps({10: [], 11: [skipped], 12: [skipped, done]}) == {12: 2.5}


def test_the_lives_of_slow_peers_are_read_from_the_views() -> None:
    views = (
        {"event": "view", "time": 50.0, "peers": [0]},
        {"event": "view", "time": 60.0, "peers": [0, 1, 2, 3]},
        {"event": "view", "time": 75.0, "peers": [0, 1, 2, 4]},
        {"event": "view", "time": 80.0, "peers": [0, 1, 2, 4, 7]},
    )
    assert stragglers.lives_of_slow_peers(ran(100.0, size=8, events=views)) == [(3, 10.0, 25.0), (7, 30.0, 100.0)]
