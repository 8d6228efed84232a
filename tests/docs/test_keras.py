"""The page on Keras' fit is one program that shows what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import kungfu

PAGE = Path(kungfu.__file__).parent.parent / "docs" / "keras.md"
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_every_block_shows_what_it_says() -> None:
    names: dict[str, Any] = {}
    found = BLOCK.findall(PAGE.read_text())
    assert [kind for kind, _ in found] == ["python", "pycon", "python", "python", "python", "pycon"]
    for place, (kind, source) in enumerate(found):
        if kind == "python":
            exec(compile(source, str(PAGE), "exec"), names)
            continue
        report: list[str] = []
        test = doctest.DocTestParser().get_doctest(source, names, f"block {place}", str(PAGE), 0)
        doctest.DocTestRunner().run(test, out=report.append)
        assert not report, "".join(report)
