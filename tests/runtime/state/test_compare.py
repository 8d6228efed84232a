"""Whose state differs, and where."""

from __future__ import annotations

import pytest

from kungfu.runtime.state import differing, first_difference


@pytest.mark.parametrize(
    ("digests", "difference"),
    [
        ({0: [1, 2], 1: [1, 2]}, None),
        ({3: [1, 2]}, None),
        ({0: [1, 5], 1: [1, 5], 2: [9, 5]}, "w of rank 2 is not that of rank 0"),
        ({1: [1, 5], 2: [9, 5]}, "w of rank 2 is not that of rank 1"),
        ({0: [1, 1], 1: [1, 2], 2: [2, 1]}, "w of rank 2 is not that of rank 0"),
        ({0: [1, 2], 1: [1]}, "b of rank 1 is not that of rank 0"),
        ({0: [1, 2], 1: [1, 2, 3]}, "variable 2 of rank 1 is not that of rank 0"),
    ],
)
def test_the_first_variable_that_differs_is_named_with_its_rank(
    digests: dict[int, list[int]], difference: str | None
) -> None:
    assert first_difference(["w", "b"], digests) == difference


def test_every_place_is_told_with_all_who_differ_there() -> None:
    assert differing({0: [1, 2, 3], 1: [1, 5, 4], 2: [1, 2, 4]}) == {1: [1], 2: [1, 2]}
