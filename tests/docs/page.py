"""A page of the documentation as a program: its blocks in order, what they define, and what a shell would show."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """The kind and the source of each block."""
    return BLOCK.findall(text)


def executed(texts: Iterable[str], *, page: Path) -> dict[str, Any]:
    """What the programs of these texts define; one page is one program."""
    namespace: dict[str, Any] = {}
    for text in texts:
        for kind, source in blocks(text):
            if kind == "python":
                exec(compile(source, str(page), "exec"), namespace)
    return namespace


def failures(source: str, namespace: dict[str, Any], *, name: str, page: Path, flags: int = 0) -> str:
    """What a shell that is typed as in this block shows otherwise than the block; `flags` are those of doctest."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(source, namespace, name, str(page), 0)
    assert test.examples
    doctest.DocTestRunner(optionflags=flags).run(test, out=report.append, clear_globs=False)
    namespace |= test.globs
    return "".join(report)


def assert_shows_what_it_says(page: Path, *, flags: int = 0) -> None:
    """Runs every block of a page, from the first one to the last."""
    namespace: dict[str, Any] = {}
    for place, (kind, source) in enumerate(blocks(page.read_text())):
        if kind == "python":
            exec(compile(source, str(page), "exec"), namespace)
        else:
            shown = failures(source, namespace, name=f"block {place}", page=page, flags=flags)
            assert not shown, shown
