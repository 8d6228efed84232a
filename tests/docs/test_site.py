"""The documentation site: built strictly, with every public name, and from nothing but itself."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.lean_start import environment
from tools.docs_site import command_line, doctest_blocks, flowchart
from tools.docs_site.pages import ROOT

PACKAGES = ("ops", "monitor", "control", "worth", "policies", "keras", "data", "testing", "trace")
PLANNING = ("kungfu_planning.schedule", "kungfu_planning.tune")
LOADING = {"script", "img", "iframe", "source", "audio", "video", "embed"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "modulepreload", "manifest", "dns-prefetch"}

RETURNED = re.compile(r"Returns:</span>.*?<ul>(.*?)</ul>", re.DOTALL)


class Loads(HTMLParser):
    """What a browser loads for a page, and the anchors of it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        self.classes |= set(given.get("class", "").split())
        if tag in LOADING and "src" in given:
            self.found.append(given["src"])
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.found.append(given.get("href", ""))
        if "style" in given:
            self.found += of_style(given["style"])


def of_style(text: str) -> list[str]:
    """What a style sheet loads."""
    return re.findall(r"""(?:url\(|@import\s+)["']?([^"')\s;]+)""", text)


def is_outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


@pytest.mark.slow
def test_the_site_is_built_strictly_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    """The site is built strictly, has every public name and loads nothing from outside."""
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    lean = environment()
    ran = subprocess.run(build, cwd=ROOT, env=lean, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, f"a page, a link or a docstring is wrong:\n{ran.stdout}{ran.stderr}"
    pages = {path: Loads(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        assert not [one for one in page.found if is_outside(one)], path
        assert "mermaid" not in page.classes, f"{path}: the theme would load Mermaid from outside to draw it"
        lost = [one for one in page.found if not is_there(one, page=path, site=site)]
        assert path.name == "404.html" or not lost, f"{path}: {lost}"
    for sheet in site.rglob("*.css"):
        assert not [one for one in of_style(sheet.read_text()) if is_outside(one)], sheet
    anchors = {anchor for path, page in pages.items() if "reference" in path.parts for anchor in page.anchors}
    sections = {name for path, page in pages.items() if "reference" in path.parts for name in page.classes}
    assert {"cost", "on-rescale", "undefined", "reference"} <= sections, "our own sections of docstrings are told apart"
    missing = [name for name, home in public_names().items() if not {name, home} & anchors]
    assert not missing, "docs/reference/ has no place for these, or they have no docstring"
    returned = [one for path in site.glob("reference/*.html") for one in RETURNED.findall(path.read_text())]
    assert returned, "Returns sections are told apart"
    assert all(one.count("<li") == 1 for one in returned), "the lines of a Returns section say one thing"


def test_the_page_of_the_command_line_has_every_command_with_its_options() -> None:
    page = command_line.page()
    assert {"explain", "why", "draw", "plan", "plan simulate", "plan tuning", "resize", "stop"} <= {
        *command_line.commands()
    }
    for name in ("kungfu-run", "kungfu", *(f"kungfu {one}" for one in command_line.commands())):
        assert f"\n## {name}\n\n```text\nusage: {name} " in page
    assert "\n  --max B  " in page


def is_there(address: str, *, page: Path, site: Path) -> bool:
    path = urlsplit(address).path
    return not path or ((page.parent / path).resolve().is_relative_to(site) and (page.parent / path).exists())


def public_names() -> dict[str, str]:
    """Those of kungfu and of the packages that a program may import from, each with where it is defined."""
    found: dict[str, str] = {}
    names = ("kungfu", *(f"kungfu.{package}" for package in PACKAGES), *PLANNING)
    for module in map(importlib.import_module, names):
        for name in module.__all__:
            one = getattr(module, name)
            found[f"{module.__name__}.{name}"] = (
                f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', name)}"
            )
    return {name: home for name, home in found.items() if name.removeprefix("kungfu.") not in PACKAGES}


def test_examples_in_docstrings_become_blocks_of_code() -> None:
    shown = doctest_blocks.fenced("Adds.\n\n>>> 1 + 1\n2\n\nArgs:\n    x: As in\n\n        >>> f(x)")
    block = "```pycon\n>>> 1 + 1\n2\n```"
    assert shown == f"Adds.\n\n{block}\n\nArgs:\n    x: As in\n\n        ```pycon\n        >>> f(x)\n        ```"


def test_a_flowchart_is_drawn_with_each_box_below_those_that_point_to_it() -> None:
    boxes = "a\n b[more & more]\n subgraph c\n d\n e\n end\n"
    text = f"flowchart TB\n {boxes} d --> e\n a --> b\n b --> c\n a --> c\n"
    chart = flowchart.parse(text)
    assert chart.edges == [("a", "b"), ("b", "c"), ("a", "c")]
    assert chart.inner["c"].edges == [("d", "e")]
    drawing = flowchart.layered(dict.fromkeys(chart.labels, (50.0, 20.0)), chart.edges)
    heights = {name: y for name, (_, y) in drawing.centres.items()}
    assert heights["a"] < heights["b"] < heights["c"]
    assert [len(route) for route in drawing.routes] == [2, 2, 4], "the last one passes beside the box between"
    drawn = flowchart.svg(text)
    assert "\n\n" not in drawn
    assert "more &amp; more" in drawn
    assert drawn.count("<rect") == 5


def test_a_flowchart_with_something_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be drawn: 'a -.-> b'"):
        flowchart.parse("flowchart TB\n  a -.-> b\n")
