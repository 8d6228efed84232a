"""Statistics of a signal by cluster size."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import PolicyError
from kungfu.signal import SizeStatistics, TrainingSignals
from kungfu.testing import run_policy

training = TrainingSignals()


def told(look: int, *, strike_above: float = math.inf, **arrays: Any) -> list[tuple[float, ...]]:
    """Of one size, step by step: count, mean, variance, standard error and age."""
    forget_after = arrays.pop("forget_after", None)

    @kf.policy
    def watching(training: Any) -> Any:
        loss = training.mean_loss
        table = loss.statistics_by_size(3, forget_after=forget_after, strike_all=loss > strike_above)
        shown = (table.count, table.mean, table.variance, table.standard_error, table.age)
        return kf.control.always().call(lambda control, *values: None, *(one[look] for one in shown))

    return [tuple(one.inputs.values()) for one in run_policy(watching(), arrays)]


def test_the_entry_of_the_present_size_holds_number_mean_and_variance_of_its_samples() -> None:
    values = [4.0, 2.0, 3.0, 7.0]
    shown = told(2, mean_loss=values, size=[2] * 4)
    for number, (count, mean, variance, error, _) in enumerate(shown, start=1):
        seen = values[:number]
        assert count == number
        assert mean == pytest.approx(statistics.mean(seen))
        expected = statistics.variance(seen) if number > 1 else math.nan
        np.testing.assert_allclose([variance, error], [expected, math.sqrt(expected / number)], rtol=1e-6)


def test_what_is_not_finite_is_no_sample_and_only_makes_the_others_older() -> None:
    shown = told(2, mean_loss=[4.0, math.nan, math.inf, 6.0], size=[2] * 4)
    assert [one[0] for one in shown] == [1, 1, 1, 2]
    assert [one[1] for one in shown] == [4, 4, 4, 5]
    assert [one[4] for one in shown] == [0, 0, 1, 2]


def test_each_size_has_its_own_entry_and_is_taken_up_again() -> None:
    shown = told(1, mean_loss=[4.0, 9.0, 6.0], size=[1, 2, 1], view=[1, 2, 3])
    assert [one[:2] for one in shown] == [(1, 4), (1, 4), (2, 5)]


def test_an_entry_is_struck_when_a_peer_was_replaced_at_its_size_and_the_others_stay() -> None:
    arrays = {"mean_loss": [3.0, 4.0, 8.0, 10.0], "size": [1, 2, 2, 2], "view": [1, 2, 3, 3]}
    assert [one[:2] for one in told(2, **arrays)] == [(0, pytest.approx(math.nan, nan_ok=True)), (1, 4), (1, 8), (2, 9)]
    assert [one[0] for one in told(1, **arrays)] == [1, 1, 1, 1]


def test_an_entry_is_struck_when_a_peer_was_replaced_by_way_of_another_size() -> None:
    """The job shrinks to one peer and grows to two: only at two there is somebody new."""
    arrays = {"mean_loss": [4.0, 6.0, 3.0, 8.0, 10.0], "size": [2, 2, 1, 2, 2], "view": [1, 1, 2, 3, 3]}
    assert [one[:2] for one in told(2, **arrays)] == [(1, 4), (2, 5), (2, 5), (1, 8), (2, 9)]
    arrays = {"mean_loss": [4.0, 6.0, 3.0, 8.0], "size": [1, 1, 2, 1], "view": [1, 1, 2, 3]}
    assert [one[:2] for one in told(1, **arrays)] == [(1, 4), (2, 5), (2, 5), (3, 6)]


def test_an_entry_is_struck_although_nothing_is_measured_after_the_exchange() -> None:
    shown = told(2, mean_loss=[4.0, math.nan, math.nan], size=[2] * 3, view=[1, 2, 2])
    assert [one[0] for one in shown] == [1, 0, 0]


def test_an_entry_is_forgotten_after_a_time_and_begins_anew() -> None:
    arrays = {"mean_loss": [4.0, 9.0, 9.0, 9.0, 6.0], "size": [1, 2, 2, 2, 1], "view": [1, 2, 2, 2, 3]}
    shown = told(1, forget_after=2, **arrays)
    assert [one[0] for one in shown] == [1, 1, 1, 1, 1]
    assert [one[1] for one in shown] == [4, 4, 4, 4, 6]
    shown = told(1, forget_after=1, **arrays)
    assert [one[0] for one in shown] == [1, 1, 1, 0, 1]
    np.testing.assert_equal([one[1] for one in shown], [4, 4, 4, math.nan, 6])


def test_all_entries_are_struck_on_request_and_the_step_gives_the_first_sample() -> None:
    """All entries are struck where it is asked, and the sample of that step is the first."""
    arrays = {"mean_loss": [4.0, 5.0, 50.0, 5.0], "size": [1, 2, 2, 2], "view": [1, 2, 2, 2]}
    assert [one[0] for one in told(1, strike_above=10, **arrays)] == [1, 1, 0, 0]
    assert [one[0] for one in told(2, strike_above=10, **arrays)] == [0, 1, 1, 2]


def test_a_size_beyond_the_table_has_no_entry() -> None:
    assert [one[0] for one in told(3, mean_loss=[1.0, 2.0], size=[4, 5])] == [0, 0]


def test_it_gives_vectors_of_one_entry_a_size() -> None:
    table = training.mean_loss.statistics_by_size(4)
    assert isinstance(table, SizeStatistics)
    assert {one.placement for one in (table.count, table.mean, table.variance, table.age)} == {"agreed"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"largest": one}, "largest size") for one in (0.5, True, 0, -1)),
        *(({"forget_after": one}, "forget_after") for one in (0, -1, True)),
    ],
)
def test_a_size_or_a_number_of_steps_that_is_none_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        training.mean_loss.statistics_by_size(**{"largest": 4, **given})
