"""Every example of the pages on planning gives what its page says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "least"), [("scheduling.md", 30), ("tuning.md", 20)])
def test_the_page_tells_the_truth(page: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    told = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert told.attempted > least
    assert told.failed == 0
