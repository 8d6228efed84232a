"""Whose state differs, and where."""

from __future__ import annotations

import pytest

from kungfu.runtime.peer.replicate import differing


@pytest.mark.parametrize(
    ("digests", "difference"),
    [
        ({0: {"w": 1, "b": 2}, 1: {"b": 2, "w": 1}}, None),
        ({3: {"w": 1}}, None),
        ({0: {"w": 1}, 1: {"w": 1}, 2: {"w": 9}}, "w of rank 2 is not that of rank 0"),
        ({1: {"w": 1}, 2: {"w": 9}}, "w of rank 2 is not that of rank 1"),
        ({0: {"a": 1, "b": 1}, 1: {"a": 1, "b": 2}, 2: {"a": 2, "b": 1}}, "a of rank 2 is not that of rank 0"),
        ({0: {"w": 1, "b": 2}, 1: {"w": 1}}, "b of rank 1 is not that of rank 0"),
        ({0: {"w": 1}, 1: {"w": 1, "b": 2}}, "b of rank 1 is not there on rank 0"),
    ],
)
def test_the_first_variable_that_differs_is_named_with_its_rank(
    digests: dict[int, dict[str, int]], difference: str | None
) -> None:
    assert differing(digests) == difference
