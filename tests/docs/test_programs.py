"""Pages that are one program each, among them the cookbook of policies: every block runs, and shows what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import kungfu
from kungfu import policies
from kungfu.compiler import compile_policies
from kungfu.policy_definition import Policy

DOCS = Path(kungfu.__file__).parent.parent / "docs"
COOKBOOK = DOCS / "policies.md"
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    "data": ["python", "python", "pycon", "pycon", *["python", "pycon"] * 3, "pycon", "pycon"],
    "from-horovod": ["python"],
    "from-multiworker": ["python"],
    "keeping": ["python", "pycon", "pycon"],
    "keras": ["python", "pycon", *["python"] * 4, "pycon"],
    "steps": ["python", "pycon"] * 2,
    "synchronisation": ["python", "pycon", "python"],
}


def blocks(text: str) -> list[tuple[str, str]]:
    """The kind and the source of each block."""
    return BLOCK.findall(text)


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
    for number, (kind, source) in enumerate(blocks(page.read_text())):
        if kind == "python":
            exec(compile(source, str(page), "exec"), namespace)
        else:
            shown = failures(source, namespace, name=f"block {number}", page=page, flags=flags)
            assert not shown, shown


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_shows_what_it_says(page: str) -> None:
    text = DOCS / f"{page}.md"
    assert [kind for kind, _ in blocks(text.read_text())] == PAGES[page]
    assert_shows_what_it_says(text)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["policies", "recipes", *(f"policies/{name}" for name in policies.__all__)])
def test_every_block_of_a_page_on_policies_shows_what_it_says(page: str) -> None:
    assert {kind for kind, _ in blocks((DOCS / f"{page}.md").read_text())} == {"python", "pycon"}
    assert_shows_what_it_says(DOCS / f"{page}.md", flags=doctest.NORMALIZE_WHITESPACE)


@pytest.mark.parametrize(("page", "recipes", "calls"), [("policies", 15, 18), ("recipes", 16, 16)])
def test_a_page_has_recipes_each_short_and_with_what_it_decides(page: str, recipes: int, calls: int) -> None:
    """A recipe is a program of one to ten lines, which costs no message, and what it decides."""
    text, found = (DOCS / f"{page}.md").read_text(), dict[str, Any]()
    programs = "\n".join(source for kind, source in blocks(text) if kind == "python")
    exec(compile(programs, page, "exec"), found)
    made = {name: one for name, one in found.items() if isinstance(one, Policy)}
    sections = re.split(r"^(?=## \d+\. )", text, flags=re.MULTILINE)[1:]
    assert len(sections) == recipes
    for recipe in sections:
        (kind, source), (shown, _) = blocks(recipe)
        assert (kind, shown) == ("python", "pycon")
        assert 1 <= len([one for one in source.splitlines() if one.strip()]) <= 10, source
        for name in re.findall(r"^def (\w+)\(training", source, re.MULTILINE):
            made[name] = found[name]()
    assert len(made) == calls
    for name, policy in made.items():
        assert compile_policies([policy], sync=None).messages_per_step == 0, name


def test_a_block_that_shows_something_else_is_found() -> None:
    assert "Expected:\n    4" in failures(">>> 1 + 2\n4\n", {}, name="wrong", page=COOKBOOK)
