"""The cookbook: every block of the page runs, and shows what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import kungfu
from kungfu.compiler import compile_policies
from kungfu.policy_definition import Policy

PAGE = Path(kungfu.__file__).parent.parent / "docs" / "policies.md"
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RECIPE = re.compile(r"^## (\d+)\. ", re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    return BLOCK.findall(text)


def recipes() -> list[str]:
    """The text of each recipe, without what stands before the first one."""
    text = PAGE.read_text()
    starts = [one.start() for one in RECIPE.finditer(text)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def executed(texts: list[str]) -> dict[str, Any]:
    """What the programs of these texts define; one page is one program."""
    namespace: dict[str, Any] = {}
    for text in texts:
        for kind, source in blocks(text):
            if kind == "python":
                exec(compile(source, str(PAGE), "exec"), namespace)
    return namespace


def failures(source: str, namespace: dict[str, Any], *, name: str) -> str:
    """What a shell that is typed as in this block shows otherwise than the block."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(source, namespace, name, str(PAGE), 0)
    assert test.examples
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.append, clear_globs=False)
    namespace |= test.globs
    return "".join(report)


def test_the_page_has_twelve_recipes_each_with_a_program_and_what_it_decides() -> None:
    kinds = [[kind for kind, _ in blocks(text)] for text in recipes()]
    assert kinds == [["python", "pycon"]] * 12


@pytest.mark.slow
def test_every_block_shows_what_it_says() -> None:
    text = PAGE.read_text()
    namespace: dict[str, Any] = {}
    for place, (kind, source) in enumerate(blocks(text)):
        if kind == "python":
            exec(compile(source, str(PAGE), "exec"), namespace)
        else:
            shown = failures(source, namespace, name=f"block {place}")
            assert not shown, shown


def test_a_recipe_is_one_to_ten_lines_and_costs_no_message() -> None:
    found = executed([PAGE.read_text()])
    made = {name: one for name, one in found.items() if isinstance(one, Policy)}
    for text in recipes():
        (source,) = (one for kind, one in blocks(text) if kind == "python")
        assert 1 <= len([one for one in source.splitlines() if one.strip()]) <= 10, source
        for name in re.findall(r"^def (\w+)\(training", source, re.MULTILINE):
            made[name] = found[name]()
    assert len(made) == 14
    for name, policy in made.items():
        assert compile_policies([policy]).messages_per_step == 0, name


def test_a_block_that_shows_something_else_is_found() -> None:
    assert "Expected:\n    4" in failures(">>> 1 + 2\n4\n", {}, name="wrong")
