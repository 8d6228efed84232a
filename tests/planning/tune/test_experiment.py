"""Successive halving and Hyperband, against the tables of the papers and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.tune import Experiment, Stage, hyperband, successive_halving


@pytest.mark.parametrize(
    ("trials", "least", "most", "eta", "stages"),
    [
        (32, 1, 50, 3, [(32, 1), (10, 3), (3, 9), (1, 37)]),
        (4, 1, 7, 2, [(4, 1), (2, 2), (1, 4)]),
        (8, 1, 4, 2, [(8, 1), (4, 2), (2, 1)]),
        (64, 4, 508, 2, [(64, 4), (32, 8), (16, 16), (8, 32), (4, 64), (2, 128), (1, 256)]),
        (1, 3, 3, 2, [(1, 3)]),
        (5, 1, 9, 10, [(5, 9)]),
    ],
)
def test_the_stages_are_those_worked_out_by_hand(
    trials: int, least: int, most: int, eta: int, stages: list[tuple[int, int]]
) -> None:
    experiment = successive_halving(trials, least=least, most=most, eta=eta)
    assert [(stage.trials, stage.iterations) for stage in experiment.stages] == stages


@given(st.integers(1, 2000), st.integers(1, 50), st.integers(0, 5000), st.integers(2, 6))
def test_survivors_do_exactly_the_most_work_and_each_stage_keeps_its_share(
    trials: int, least: int, more: int, eta: int
) -> None:
    stages = successive_halving(trials, least=least, most=least + more, eta=eta).stages
    assert sum(stage.iterations for stage in stages) == least + more
    assert [stage.trials for stage in stages] == [trials // eta**i for i in range(len(stages))]
    assert all(stage.iterations == least * eta**i for i, stage in enumerate(stages[:-1]))


@given(st.integers(1, 9), st.integers(0, 3000), st.integers(2, 5))
def test_every_bracket_of_hyperband_ends_at_the_most_work(least: int, more: int, eta: int) -> None:
    brackets = hyperband(least + more, least=least, eta=eta)
    assert all(sum(stage.iterations for stage in bracket.stages) == least + more for bracket in brackets)
    assert brackets[-1] == Experiment((Stage(len(brackets), least + more),))
    assert all(bracket.stages[0].iterations >= least for bracket in brackets)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trials": 0}, "trials n is 0"),
        ({"least": 0}, "least iterations r is 0"),
        ({"most": 2}, "most iterations R is 2, below least iterations r = 3"),
        ({"eta": 1}, "eta is 1"),
    ],
)
def test_a_parameter_out_of_range_is_named_with_its_value(changed: dict[str, int], message: str) -> None:
    given_values = {"trials": 8, "least": 3, "most": 9, "eta": 2} | changed
    with pytest.raises(UsageError, match=message):
        successive_halving(given_values.pop("trials"), **given_values)


def test_hyperband_refuses_an_eta_of_one_instead_of_looping() -> None:
    with pytest.raises(UsageError, match="eta is 1"):
        hyperband(81, least=1, eta=1)


def test_an_experiment_or_stage_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no stage"):
        Experiment(())
    with pytest.raises(UsageError, match="trials of a stage is 0"):
        Stage(0, 1)
    with pytest.raises(UsageError, match="iterations of a stage is 0"):
        Stage(1, 0)
