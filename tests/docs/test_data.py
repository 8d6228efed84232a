"""The page on data is one program that shows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import kungfu
from tests.docs.page import assert_shows_what_it_says, blocks

PAGE = Path(kungfu.__file__).parent.parent / "docs" / "data.md"


@pytest.mark.slow
def test_every_block_shows_what_it_says() -> None:
    kinds = ["python", "python", "pycon", "pycon", *["python", "pycon"] * 3, "pycon", "pycon"]
    assert [kind for kind, _ in blocks(PAGE.read_text())] == kinds
    assert_shows_what_it_says(PAGE)
