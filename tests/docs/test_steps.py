"""The page on loops of one's own is one program that shows what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import kungfu
from tests.docs.page import assert_shows_what_it_says, blocks

PAGE = Path(kungfu.__file__).parent.parent / "docs" / "steps.md"


@pytest.mark.slow
def test_every_block_shows_what_it_says() -> None:
    assert [kind for kind, _ in blocks(PAGE.read_text())] == ["python", "pycon"] * 2
    assert_shows_what_it_says(PAGE)
