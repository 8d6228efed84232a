"""The page of examples: a section for each, with its command; and each of them runs (in `make soak`)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.soak import SOAK
from tools.docs_site.pages import ROOT

TOOL = runpy.run_path(str(ROOT / "tools" / "example_outputs.py"), run_name="tool")
EXAMPLES = TOOL["EXAMPLES"]
SECTION = re.compile(r"^## ([^\n]*)\n\n([^\n]*)\n\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_is_shown_with_its_command_and_what_it_printed() -> None:
    found = SECTION.findall((ROOT / "docs" / "examples.md").read_text())
    assert [title for title, _, _ in found] == [one.title for one in EXAMPLES], "run `make examples`"
    for example, (_, text, shown) in zip(EXAMPLES, found, strict=True):
        assert f"(../examples/{example.file})" in text
        assert shown.startswith("".join(f"$ {line}\n" for line in example.command.splitlines()))
        assert all(re.search(one, shown) for one in example.shows)


def test_every_program_of_the_folder_is_shown_or_told_of() -> None:
    shown = {one.file for one in EXAMPLES}
    readme = (ROOT / "examples" / "keras" / "README.md").read_text()
    for path in (ROOT / "examples").rglob("*.py"):
        name = str(path.relative_to(ROOT / "examples"))
        others = {"__init__.py", "demo.py", "digits.py"}  # the demo of `make demo`
        assert name in shown | others or f"`{path.name}`" in readme, name


@SOAK
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: str(one.title))
def test_an_example_prints_what_the_page_says(example: Any, tmp_path: Path) -> None:
    assert TOOL["output_of"](example, tmp_path), "it exits where something else is printed"
