"""Pages that are one program each, which shows what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

import kungfu
from tests.docs.page import assert_shows_what_it_says, blocks

DOCS = Path(kungfu.__file__).parent.parent / "docs"
PAGES = {
    "data": ["python", "python", "pycon", "pycon", *["python", "pycon"] * 3, "pycon", "pycon"],
    "from-horovod": ["python"],
    "from-multiworker": ["python"],
    "keeping": ["python", "pycon", "pycon"],
    "keras": ["python", "pycon", *["python"] * 4, "pycon"],
    "steps": ["python", "pycon"] * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_shows_what_it_says(page: str) -> None:
    text = DOCS / f"{page}.md"
    assert [kind for kind, _ in blocks(text.read_text())] == PAGES[page]
    assert_shows_what_it_says(text)
