"""Which variables differ between peers, and what counts as rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kungfu.runtime.state.compare import differing_variables, gap_of

ONES = [1.0, -2.0, 0.5]


def test_every_index_is_told_with_all_ranks_that_differ_there() -> None:
    assert differing_variables({0: [1, 2, 3], 1: [1, 5, 4], 2: [1, 2, 4]}) == {1: [1], 2: [1, 2]}
    assert differing_variables({3: [1, 2]}) == differing_variables({0: [1, 2], 1: [1, 2]}) == {}


@pytest.mark.parametrize(
    ("own", "reference", "dtype", "is_rounding"),
    [
        (ONES, ONES, np.float32, True),
        ([1.0, -2.0, 0.5001], ONES, np.float32, True),
        ([1.0, -2.0, 0.5003], ONES, np.float32, False),
        ([1.0, -2.0, 0.5001], ONES, np.float64, True),
        ([0.0], [-0.0], np.float32, True),
        ([1e-9], [0.0], np.float32, False),
        ([np.nan, 1.0], [np.nan, 1.0], np.float32, True),
        ([np.nan, 1.0], [1.0, 1.0], np.float32, False),
        ([1.0, 1.0], [np.nan, 1.0], np.float32, False),
        ([np.inf, 1.0], [-np.inf, 1.0], np.float32, False),
        ([np.inf, 1.0], [3e38, 1.0], np.float32, False),
        ([1.0009765625], [1.0], np.float16, True),
        ([1.01], [1.0], np.float16, False),
        ([1.0078125], [1.0], ml_dtypes.bfloat16, True),
        ([1.02], [1.0], ml_dtypes.bfloat16, False),
        ([3], [3], np.int64, True),
        ([3], [4], np.int64, False),
        ([True], [False], np.bool_, False),
        ([], [], np.float32, True),
        ([1.0 + 1e-5j], [1.0 + 0j], np.complex64, True),
    ],
)
def test_only_floats_that_are_close_beside_the_largest_differ_by_rounding(
    own: Any, reference: Any, dtype: Any, is_rounding: bool
) -> None:
    found = gap_of(3, np.array(own, dtype), np.array(reference, dtype))
    assert (found.index, found.is_rounding) == (3, is_rounding)


def test_the_difference_and_the_largest_value_are_told_in_pieces_of_any_number() -> None:
    reference = np.zeros((1025, 1025), np.float32)
    reference[0, 0], own = -8.0, reference.copy()
    own[0, 0], own[-1, -1] = -8.0, 1e-4
    found = gap_of(0, own, reference)
    assert (found.difference, found.largest, found.is_rounding) == (pytest.approx(1e-4), 8.0, True)
