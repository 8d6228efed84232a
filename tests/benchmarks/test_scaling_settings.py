"""The benchmark of the scaling policy on modelled clusters: its settings, its figures, and that it runs."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import scaling_settings as bench
from tests.soak import SOAK


def result(size: int, unit: int = 1, late: int = 0, jitter: float = 0.0) -> bench.Result:
    return bench.Result(bench.Setting(4, 0.5, 0.1, 2, jitter, unit, 0), size, late, 2, 1, 0.1)


def test_there_are_48_settings_each_at_every_jitter_unit_and_seed() -> None:
    made = bench.settings()
    kinds = {(one.slow_peer, one.speed, one.efficiency, one.joining_steps) for one in made}
    assert (len(kinds), len(made), len({*made})) == (48, 864, 864)
    assert 1 < len(bench.settings(quick=True)) < 10
    assert {*bench.settings(quick=True)} < {*made}


def test_a_run_counts_where_it_ends_within_one_unit_of_the_limit() -> None:
    figures = bench.summarised([result(12), result(11), result(10), result(10, unit=2, late=3), result(9, unit=2)])
    assert figures["within_one_unit"] == pytest.approx(3 / 5)
    assert (figures["least_size"], figures["most_late_changes"], figures["runs_over_2_late_changes"]) == (9, 3, 1)
    assert (figures["replacements"], figures["false_replacements"]) == (10, 5)


@pytest.mark.parametrize(
    ("results", "missed"),
    [
        ([result(12), result(11), result(10, unit=2)], None),
        ([result(12), result(10)], "final_size"),
        ([result(12, late=3), result(12)], "late_changes"),
        ([result(12)] * 5, None),
        ([result(12)] * 6, "false_replacements"),
    ],
)
def test_each_bound_is_told_to_hold_or_not(results: list[bench.Result], missed: str | None) -> None:
    bounds = bench.within_bounds(bench.summarised(results))
    assert [name for name, holds in bounds.items() if not holds] == ([missed] if missed else [])


def beside_knee(size: int, *, least: int | None = None, late: int = 0, jitter: float = 0.1) -> bench.KneeResult:
    knee = bench.Knee(0.1, 0.47, jitter, 0)
    return bench.KneeResult(knee, size, size if least is None else least, late, 0.1)


def test_the_true_efficiencies_are_those_of_amdahl_and_of_the_slowest_peer() -> None:
    even = bench.true_efficiencies(0.1, 0.0)
    assert even == pytest.approx({size: 0.9 / (1 + 0.1 * (size - 1)) for size in range(2, 18)})
    # Two peers: the larger of two normal numbers is 1 / sqrt(pi) = 0.564 standard deviations above the mean.
    slower = 1 / (1 + 0.01 / math.sqrt(math.pi))
    assert bench.true_efficiencies(0.1, 0.01)[2] == pytest.approx(2 / 1.1 * slower - 1, abs=2e-4)
    assert bench.best_size(bench.Knee(0.1, 0.47, 0.0, 0)) == 10
    assert bench.best_size(bench.Knee(0.05, 0.5, 0.0, 0)) == bench.KNEE_LIMIT


def test_there_are_60_runs_with_a_knee_at_each_jitter() -> None:
    made = bench.knees()
    assert [sum(one.jitter == jitter for one in made) for jitter in bench.KNEE_JITTERS] == [60, 60]
    assert {*bench.knees(quick=True)} < {*made}


@pytest.mark.parametrize(
    ("results", "missed"),
    [
        # At size 10 the last peer adds 0.47, at size 14 it adds 0.39, and the sixth 0.6.
        ([beside_knee(size, jitter=0.0) for size in (8, 10, 13)], []),
        ([beside_knee(14, jitter=0.0)] * 2, []),
        ([beside_knee(14, jitter=0.0)] * 3, ["knees"]),
        ([beside_knee(5, jitter=0.0)] * 3, ["knees"]),
        ([beside_knee(14, jitter=jitter) for jitter in (0.0, 0.0, 0.01, 0.01)], []),
        ([beside_knee(10, least=5, jitter=0.0)], []),
        ([beside_knee(10, least=4, jitter=0.0)], ["half_of_best"]),
        ([beside_knee(10, late=3, jitter=0.0)], ["changes_after_walk"]),
    ],
)
def test_each_bound_beside_a_knee_is_told_to_hold_or_not(results: list[bench.KneeResult], missed: list[str]) -> None:
    bounds = bench.within_knee_bounds(bench.summarised_knees(results))
    assert [name for name, holds in bounds.items() if not holds] == missed


@pytest.mark.slow
@SOAK
def test_it_gives_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick", "--jobs", "1", "--each"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    assert figures["runs"] == len(bench.settings(quick=True))
    assert all(figures["within_bounds"].values())
    assert len(figures["within_bounds"]) == 6
    assert figures["knee_runs"] == len(bench.knees(quick=True))
    assert {"within_one_unit", "most_late_changes", "false_replacements", "wall_s", "ms_per_step"} <= {*figures}
