"""Windows, and tables by cluster size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kungfu.signal import TrainingSignals
from tests.signal.fold.played import played, rescaled

training = TrainingSignals()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda x: x.window(3).mean(), [4, 3, 3, 10 / 3, 16 / 3]),
        (lambda x: x.window(3).median(), [4, 3, 3, 3, 5]),
        (lambda x: x.window(3).min(), [4, 2, 2, 2, 3]),
        (lambda x: x.window(3).max(), [4, 4, 4, 5, 8]),
    ],
)
def test_a_window_is_over_the_last_finite_values_that_were_seen(made: Any, expected: list[float]) -> None:
    np.testing.assert_allclose(played(made, [4, 2, 3, 5, 8]), expected, rtol=1e-6)
    with_gaps = [math.nan, 4, math.inf, 2, 3, 5, 8]
    np.testing.assert_allclose(played(made, with_gaps), [math.nan, 4, 4, *expected[1:]], rtol=1e-6)


def test_a_window_can_be_sampled() -> None:
    np.testing.assert_array_equal(
        played(lambda x: x.window(2).sampled(2).max(), [9, 1, 8, 2, 7, 0]), [math.nan, 1, 1, 2, 2, 2]
    )


def test_the_vector_of_a_window_has_its_oldest_value_first() -> None:
    values = training.mean_loss.window(3).values
    assert str(values.type) == "float32[3]"
    assert played(lambda x: x.window(3).values[0], [1, 2, 3, 4])[-1] == 2
    assert played(lambda x: x.window(3).values[-1], [1, 2, 3, 4])[-1] == 4


def by_size(sizes: Sequence[int], losses: Sequence[float], look: int, **given: Any) -> list[float]:
    """An entry of the table of the mean loss by size, step by step."""
    return rescaled(lambda training: training.mean_loss.by_size(3, **given)[look], sizes=sizes, losses=losses)


def test_a_table_remembers_what_was_seen_at_each_size() -> None:
    sizes, losses = [1, 2, 2, 1, 3], [5, 7, math.nan, 6, 9]
    np.testing.assert_array_equal(by_size(sizes, losses, 1), [5, 5, 5, 6, 6])
    np.testing.assert_array_equal(by_size(sizes, losses, 2), [math.nan, 7, 7, 7, 7])
    np.testing.assert_array_equal(by_size(sizes, losses, 3), [math.nan, math.nan, math.nan, math.nan, 9])


def test_a_table_smooths_what_it_saw_and_takes_the_first_value_as_it_is() -> None:
    np.testing.assert_allclose(by_size([2, 2, 2], [4, 8, 8], 2, decay=0.5), [4, 6, 7])


def test_a_size_beyond_the_table_is_not_recorded() -> None:
    assert all(math.isnan(one) for look in range(4) for one in by_size([4, 5], [1, 2], look))
