"""The pages on the architecture: the files that they name exist, walks are short, and packages all there."""

from __future__ import annotations

import re

from tests.layers import PACKAGES, PLANNING, PLANNING_ROOT, ROOT, WITHIN

DOCS = ROOT.parent / "docs"
WALK = re.compile(r"^### (.*)\n\n((?:\d+\. .*\n)+)", re.MULTILINE)
STATION = re.compile(r"^(\d+)\. `([^`]+)`: .+\.$")


def test_each_of_nine_walks_has_at_most_a_dozen_stations_with_files_that_exist() -> None:
    walks = WALK.findall((DOCS / "architecture.md").read_text())
    assert len(walks) == 9
    for title, lines in walks:
        stations = [STATION.match(line) for line in lines.splitlines()]
        assert all(stations), f"{title}: a station is a number, a file and a sentence"
        assert [int(one.group(1)) for one in stations if one] == [*range(1, len(stations) + 1)]
        assert len(stations) <= 12, title
        missing = [one.group(2) for one in stations if one and not (ROOT.parent / one.group(2)).is_file()]
        assert not missing, f"{title}: these files have another name now"


def test_the_heart_is_fifteen_files_that_exist() -> None:
    section = (DOCS / "architecture.md").read_text().partition("## The heart\n")[2].partition("\n## ")[0]
    stations = [STATION.match(line) for line in section.splitlines() if line[:1].isdigit()]
    assert [int(one.group(1)) for one in stations if one] == [*range(1, 16)]
    assert all(stations)
    files = [one.group(2) for one in stations if one]
    assert len({*files}) == 15
    assert [one for one in files if not (ROOT.parent / one).is_file()] == []


def test_every_package_is_explained() -> None:
    page = (DOCS / "architecture.md").read_text()
    explained = {name for line in page.splitlines() if line.startswith("| `") for name in _names(line)}
    rooms = {*PACKAGES, *(f"runtime/{room}" for room in WITHIN["runtime"] if (ROOT / "runtime" / room).is_dir())}
    rooms |= {f"kungfu_planning/{room}" for room in PLANNING if (PLANNING_ROOT / room).is_dir()}
    assert rooms - explained - {"errors", "runtime", "runtime/checkpoints"} == set()
    assert explained - rooms == set(), "there is no such package any more"


def _names(line: str) -> list[str]:
    return re.findall(r"`([^`]+)`", line.split("|")[1])


def test_the_glossary_is_sorted_and_each_word_is_explained_once() -> None:
    lines = (DOCS / "glossary.md").read_text().splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:]
    assert words == sorted(set(words))
    assert len(words) >= 20


def test_readme_and_contributing_lead_to_the_pages() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        page = (ROOT.parent / name).read_text()
        assert "(docs/architecture.md)" in page, name
        assert "(docs/glossary.md)" in page, name
