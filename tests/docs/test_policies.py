"""The cookbook: every block of the page runs, and shows what it says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import kungfu
from kungfu.compiler import compile_policies
from kungfu.policy_definition import Policy
from tests.docs.page import assert_shows_what_it_says, blocks, executed, failures

PAGE = Path(kungfu.__file__).parent.parent / "docs" / "policies.md"
RECIPE = re.compile(r"^## (\d+)\. ", re.MULTILINE)


def recipes() -> list[str]:
    """The text of each recipe, without what stands before the first one."""
    text = PAGE.read_text()
    starts = [one.start() for one in RECIPE.finditer(text)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_the_page_has_twelve_recipes_each_with_a_program_and_what_it_decides() -> None:
    kinds = [[kind for kind, _ in blocks(text)] for text in recipes()]
    assert kinds == [["python", "pycon"]] * 12


@pytest.mark.slow
def test_every_block_shows_what_it_says() -> None:
    assert_shows_what_it_says(PAGE, flags=doctest.NORMALIZE_WHITESPACE)


def test_a_recipe_is_one_to_ten_lines_and_costs_no_message() -> None:
    found = executed([PAGE.read_text()], page=PAGE)
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
    assert "Expected:\n    4" in failures(">>> 1 + 2\n4\n", {}, name="wrong", page=PAGE)
