"""A real browser: Debian's Chromium, driven over WebDriver; `tools/browser.sh` brings it, and axe-core."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.jobs.harness import awaited
from tools.chromium import chromium, is_installed, look_at

AXE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "kungfu" / "axe.min.js"
WIDE, NARROW = (1280, 900), (390, 844)  # a desk, a phone
LOOK_WITHIN_S = 60.0


class Browser:
    """One window of a browser with a fresh profile."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Loads a page."""
        self.driver.get(address)

    def look_at(self, size: tuple[int, int], *, scheme: str = "light") -> None:
        """The size of the window, in pixels, and whether its user likes it dark."""
        look_at(self.driver, size, scheme=scheme)

    def get(self, selector: str) -> WebElement:
        """The first element of a selector of CSS."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of an element, shown or not; empty where there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements of a selector."""
        return list(
            self.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script gives in the page."""
        return self.driver.execute_script(script, *arguments)

    def shows(self, selector: str, wanted: str | Callable[[str], bool], *, within_s: float = LOOK_WITHIN_S) -> str:
        """Waits until an element has a text."""
        is_there = wanted if callable(wanted) else lambda text: text == wanted
        found = awaited(
            lambda: [text for text in [self.text(selector)] if is_there(text)],
            what=lambda: f"{wanted} in {selector}, which has {self.text(selector)!r}; {self.complaints()}",
            deadline_s=within_s,
        )
        return str(found[0])

    def press(self, *keys: str) -> None:
        """Presses keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def retype(self, *keys: str) -> None:
        """Presses keys in place of what stands in the field with the focus."""
        self.press(Keys.CONTROL + "a")  # the key is held until the end of a call
        self.press(*keys)

    @property
    def focused(self) -> str:
        """The id of the element with the focus."""
        return str(self.run("return document.activeElement?.id ?? ''"))

    def complaints(self) -> list[str]:
        """The errors and warnings of the page since the last call: of its scripts, its loading, and its policy."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]

    def findings(self) -> list[str]:
        """What axe-core finds on the page as it is now, as far as it is serious or critical."""
        self.run(AXE.read_text())
        script = "const done = arguments[0]; axe.run(document).then(done, (error) => done({ error: String(error) }))"
        found = self.driver.execute_async_script(script)
        assert "error" not in found, found
        assert len(found["passes"]) > 10, "it looked at something"
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        return [
            f"{one['id']}: {node['html'][:200]}: {node['failureSummary']}" for one in serious for node in one["nodes"]
        ]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser, which is ended after the block."""
    if not is_installed() or not AXE.exists():
        pytest.skip("no Chromium with its driver and axe-core here: bash tools/browser.sh")
    with chromium(profile) as driver:
        yield Browser(driver)


def assert_in_order(browser: Browser, *, but: Sequence[str] = ()) -> None:
    """In every look axe-core finds nothing serious, nothing sticks out, and nothing complains."""
    for size, scheme in itertools.product((WIDE, NARROW), ("light", "dark")):
        look = f"{size[0]} pixels, {scheme}"
        browser.look_at(size, scheme=scheme)
        assert browser.findings() == [], look
        wide = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide[0] <= wide[1], f"{look}: the page is wider than its window"
    assert [one for one in browser.complaints() if not any(part in one for part in but)] == []
