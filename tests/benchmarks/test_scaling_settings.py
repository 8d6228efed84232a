"""The benchmark of the scaling policy on modelled clusters: its settings, its figures, and that it runs."""

from __future__ import annotations

import json

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


@pytest.mark.slow
@SOAK
def test_it_gives_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick", "--jobs", "1", "--each"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads(lines[-1])
    assert figures["runs"] == len(bench.settings(quick=True))
    assert figures["within_bounds"] == {"final_size": True, "late_changes": True, "false_replacements": True}
    assert {"within_one_unit", "most_late_changes", "false_replacements", "wall_s", "ms_per_step"} <= {*figures}
