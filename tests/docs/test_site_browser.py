"""The documentation site in a real browser: no code block is cut on a desktop, and a search finds a guide first."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.jobs.browser import WIDE, Browser, browsing
from tests.jobs.harness import awaited
from tests.soak import SOAK
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


@contextmanager
def serving(site: Path) -> Iterator[str]:
    """The address at which a built site is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


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
