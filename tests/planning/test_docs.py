"""The guide's examples are run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_every_example_of_the_guide_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "tuning.md"), module_relative=False)
    assert tried > 20
    assert failed == 0
