"""Headless Chromium from Debian, driven over WebDriver; ``tools/browser.sh`` installs it."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

__all__ = ["chromium", "is_installed", "look_at", "serving"]

_PROGRAMS = ("chromium", "chromedriver")
_WITHIN_S = 60
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # leaves nothing in /dev/shm
    "--hide-scrollbars",
)


def is_installed() -> bool:
    """True if the browser and its driver are installed."""
    return all(shutil.which(name) for name in _PROGRAMS)


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """Starts a browser with a fresh profile in a new folder, and ends it after the block."""
    program, driver_program = (str(shutil.which(name)) for name in _PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(driver_program))
    try:
        driver.set_script_timeout(_WITHIN_S)
        driver.set_page_load_timeout(_WITHIN_S)
        yield driver
    finally:
        driver.quit()


def look_at(driver: webdriver.Chrome, size: tuple[int, int], *, scheme: str = "light") -> None:
    """Sets the window's size, in pixels, and the preferred colour scheme, "light" or "dark"."""
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    likes = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen", "features": likes})


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves a folder of pages to browsers on this machine, and yields its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
