"""The pages of the prebuilt policies: complete, true to the signatures, plans and runs, and shown in the README."""

from __future__ import annotations

import inspect
import json
import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import kungfu
from kungfu import policies

ROOT = Path(kungfu.__file__).parent.parent
PAGES = ROOT / "docs" / "policies"
SECTIONS = ["What for", "What it watches", "What it does", "When not to use it", "Parameters", "What it costs", "Paper"]
WRITE = "run `make plots`, and look at what it changes"
COSTS = runpy.run_path(str(ROOT / "tools" / "policy_costs.py"))
PLOTS = runpy.run_path(str(ROOT / "tools" / "policy_plots.py"))


def text_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def sentence_of(name: str) -> str:
    """What a page says first, in one line."""
    return " ".join(text_of(name).split("\n\n")[1].split())


def test_every_prebuilt_policy_has_a_page_and_a_plot() -> None:
    for suffix in ("md", "svg"):
        assert sorted(one.stem for one in PAGES.glob(f"*.{suffix}")) == sorted(policies.__all__)


@pytest.mark.parametrize("name", policies.__all__)
def test_a_page_has_its_plot_and_all_sections_in_order(name: str) -> None:
    text = text_of(name)
    assert text.startswith(f"# {name}\n\n{text.split(chr(10))[2]}\n\n![")
    assert f"]({name}.svg)\n" in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("name", policies.__all__)
def test_the_parameters_are_those_of_the_policy_with_its_defaults(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", text_of(name), re.MULTILINE)
    _, *given = inspect.signature(getattr(policies, name)).parameters.values()
    expected = [(one.name, "required" if one.default is one.empty else f"`{one.default!r}`") for one in given]
    assert [(parameter, default) for parameter, default, _, _ in rows] == expected
    assert all(unit and advice for _, _, unit, advice in rows)


@pytest.mark.parametrize("name", policies.__all__)
def test_the_budget_is_the_one_that_the_policy_brings(name: str) -> None:
    (budget,) = (one.budget for one in COSTS["POLICIES"].values() if one.name == name)
    text = text_of(name)
    if budget is None:
        assert "\nIt has no budget: " in text
    else:
        every = budget.per_steps // budget.rescales
        pattern = rf"\nIf the job sets no budget, {budget.rescales} \w+ are allowed, and one more every {every} steps\."
        assert re.search(pattern, text)
        assert (" are counted separately." in text) == (budget.replacements is not None)


@pytest.mark.parametrize("name", policies.__all__)
def test_the_cost_is_that_of_the_plan(name: str) -> None:
    assert text_of(name) == COSTS["with_cost"](text_of(name), name), WRITE


@pytest.mark.slow
@pytest.mark.parametrize("name", policies.__all__)
def test_the_plot_is_that_of_what_the_policy_decides_today(name: str) -> None:
    picture = (PAGES / f"{name}.svg").read_text()
    description = ElementTree.fromstring(picture).find(".//{http://purl.org/dc/elements/1.1/}description")
    assert description is not None
    shown = json.loads(description.text or "")
    assert alike(shown, PLOTS["drawing"](name)), WRITE
    assert picture == PLOTS["svg"](shown), WRITE
    assert len(picture.encode()) < 40_000


def alike(one: Any, other: Any) -> bool:
    """Whether two trees of values are the same, up to what another processor rounds."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return one is not None and other is not None and one == pytest.approx(other, rel=2e-3)
    return bool(one == other)


def test_numbers_that_differ_by_more_than_rounding_are_not_alike() -> None:
    assert alike({"points": [[1, 2.0], [3, None]]}, {"points": [[1, 2.001], [3, None]]})
    for other in ([[1, 2.1], [3, None]], [[2, 2.0], [3, None]], [[1, 2.0]], [[1, 2.0], [3, 0.0]]):
        assert not alike({"points": [[1, 2.0], [3, None]]}, {"points": other})


def test_the_gallery_of_the_readme_shows_every_policy_with_its_sentence() -> None:
    cell = r'^\| <a href="docs/policies/(\w+)\.md"><img src="docs/policies/(\w+)\.svg" width="\d+" alt="(.+?)"></a> \| '
    rows = re.findall(
        cell + r"\[`(\w+)`\]\(docs/policies/(\w+)\.md\) \| (.*) \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert [name for name, *_ in rows] == sorted(policies.__all__)
    for page, plot, _, name, link, sentence in rows:
        assert page == plot == name == link
        assert sentence == sentence_of(name), name


@pytest.mark.parametrize(
    "page", ["README.md", "docs/policies.md", *(f"docs/policies/{one}.md" for one in policies.__all__)]
)
def test_every_link_to_a_page_leads_to_a_heading_that_is_there(page: str) -> None:
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        path, _, heading = target.partition("#")
        if path.startswith("http"):
            continue
        found = (here.parent / path).resolve() if path else here
        assert found.is_file(), target
        if heading:
            assert heading in {_anchor(one) for one in re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)}, (
                target
            )


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_table_of_costs_has_every_prebuilt_policy_and_none_adds_a_message() -> None:
    page = (ROOT / "docs" / "policy-costs.md").read_text()
    assert page == COSTS["page"](), "run python tools/policy_costs.py"
    lines = [one for one in page.splitlines() if one.startswith("| `")]
    assert [one.partition("(")[0].removeprefix("| `") for one in lines] == sorted(policies.__all__)
    assert [one.split(" | ")[1:3] for one in lines] == [["0", "0"]] * len(lines)
