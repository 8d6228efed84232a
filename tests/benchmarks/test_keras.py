"""The benchmark of Keras' ``fit``: its figures from given turns, and that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import keras as bench
from tests.benchmarks.test_runs import figures_of
from tests.soak import SOAK

# Seconds of two turns of ten steps, by the clock and the processor.
TURNS: bench.Blocks = {
    "plain_fit": [(2.0, 1.0), (4.0, 1.0)],
    "plain_loop": [(1.0, 1.0), (2.0, 1.0)],
    "fit": [(5.0, 2.0), (10.0, 2.0)],
    "loop": [(2.0, 1.0), (4.0, 1.0)],
    "fit_10": [(2.0, 1.0), (4.0, 1.0)],
    "horovod": [(4.0, 1.0), (8.0, 1.0)],
    "horovod_quick": [(3.0, 1.0), (6.0, 1.0)],
}


def test_the_network_has_the_weights_that_the_text_names() -> None:
    weights = sum((one + 1) * other for one, other in zip(bench.WIDTHS, bench.WIDTHS[1:], strict=False))
    assert f"{weights:,} weights" in bench.__doc__


def test_a_rate_is_of_the_samples_of_all_processes() -> None:
    found = bench.rates(TURNS, steps=10, clock=0)
    assert found["plain_loop"] == [320.0, 160.0]
    assert found["loop"] == [320.0, 160.0]


def test_the_cost_of_fit_is_that_over_the_cost_that_it_has_without_a_job() -> None:
    found = bench.figures(bench.rates(TURNS, steps=10, clock=0))
    # In a job fit takes 2.5 times as long as the loop, alone twice as long.
    assert found["fit_cost"] == [0.8, 0.8, 0.8]
    assert found["fit_over_loop"] == [1.0, 1.0, 1.0]
    # Over the better one of Horovod's.
    assert found["fit_over_horovod"] == [1.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("missing", "null"),
    [
        ("plain_fit", {"fit_cost"}),
        ("loop", {"fit_cost", "fit_over_loop"}),
        ("fit_10", {"fit_over_loop", "fit_over_horovod"}),
    ],
)
def test_a_figure_without_one_of_its_ways_is_null(missing: str, null: set[str]) -> None:
    rest = {name: turns for name, turns in TURNS.items() if name != missing}
    found = bench.figures(bench.rates(rest, steps=10, clock=0))
    assert {name for name, value in found.items() if value is None} == null


def test_a_way_that_was_refused_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rest = {name: turns for name, turns in TURNS.items() if name != "fit_10"}
    told = bench.show(rest, {"fit_10": "a job does one step per execution so far"}, steps=10)
    assert told["fit_over_loop"] is None
    assert told["processor"]["fit_cost"] == 0.5
    shown = capsys.readouterr().out
    assert "fit_10: refused: a job does one step per execution so far" in shown
    assert "fit_over_loop: not measured" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("ways", "figure"), [(["plain_fit", "fit"], None), ([*bench.WAYS], "fit_cost")])
@SOAK
def test_it_gives_its_figures(ways: list[str], figure: str | None, tmp_path: Path) -> None:
    told = figures_of("keras", "--rounds", "2", "--steps", "20", "--ways", *ways, folder=tmp_path)
    assert {*told["samples_per_second"], *told["refused"]} == {*ways}
    assert all(rate > 0 for rate in told["samples_per_second"].values())
    assert figure is None or told[figure] > 0
