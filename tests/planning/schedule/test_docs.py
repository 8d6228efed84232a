"""Every example of the page on scheduling gives what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "scheduling.md"


@pytest.mark.slow
def test_the_page_on_scheduling_tells_the_truth() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 30
    assert failed == 0
