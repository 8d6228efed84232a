"""The documentation site in a real browser: no code block is cut on a desktop, and a search finds a guide first."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.browser import NARROW, WIDE, Browser, browsing
from tests.jobs.harness import awaited
from tests.soak import SOAK
from tools.chromium import serving
from tools.docs_site.pages import ROOT

pytestmark = SOAK

# A search of a user, and the pages one of which the first result has to be.
SEARCHES = {
    "add a worker": {"first-steps.html"},
    "batch size": {"keras.html"},
    "slow worker": {"policies.html", "policies/replace_stragglers.html"},
    "resume": {"keeping.html"},
    "kill": {"failures.html"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    built = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=280)
    return built


def cut(browser: Browser) -> list[str]:
    """The first lines of the code blocks of the page that are wider than their box."""
    script = """
      return [...document.querySelectorAll("pre > code")]
        .filter((block) => block.scrollWidth > block.clientWidth + 1).map((block) => block.textContent.slice(0, 60))
    """
    return list(browser.run(script))


def first_result(browser: Browser, address: str, words: str) -> str:
    """The page of the first result of a search."""
    browser.open(f"{address}index.html?q={words.replace(' ', '+')}")
    script = "return document.querySelector('.md-search-result__link')?.href ?? ''"
    link = awaited(lambda: browser.run(script), what=f"a result for {words!r}", deadline_s=20.0)
    return str(link).removeprefix(address).partition("#")[0].partition("?")[0]


def test_no_code_block_is_cut_and_a_search_finds_a_guide_first(site: Path, tmp_path: Path) -> None:
    with serving(site) as address, browsing(tmp_path / "profile") as browser:
        browser.look_at(WIDE)
        pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html"))
        found = {}
        for page in pages:
            browser.open(address + page)
            if wide := cut(browser):
                found[page] = wide
        assert found == {}
        firsts = {words: first_result(browser, address, words) for words in SEARCHES}
        assert {words: page for words, page in firsts.items() if page not in SEARCHES[words]} == {}


def test_axe_finds_nothing_serious_on_the_first_pages(site: Path, tmp_path: Path) -> None:
    looks = itertools.product(("index", "readme", "keras"), (WIDE, NARROW), ("default", "slate"))
    with serving(site) as address, browsing(tmp_path / "profile") as browser:
        for page, size, scheme in looks:
            browser.look_at(size, scheme="light" if scheme == "default" else "dark")
            browser.open(f"{address}{page}.html")
            browser.run("localStorage.clear()")  # the site remembers the scheme of the first visit
            browser.driver.refresh()
            assert browser.run("return document.body.dataset.mdColorScheme") == scheme
            assert browser.findings() == [], f"{page}, {size[0]} pixels, {scheme}"
            assert browser.run("return document.documentElement.scrollWidth") <= size[0]
