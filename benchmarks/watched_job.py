"""Observers of a job during its measurement: a scrape of its metrics each second, and a browser on its page."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

__all__ = ["WATCHED", "Watching"]

# The options of kungfu-run, besides a folder for TensorBoard.
WATCHED = ("--page", "0", "--metrics-port", "0")
_PAGE, _METRICS = re.compile(r"http://[^/\s]+/(?=\s)"), re.compile(r"http://[^/\s]+/metrics")
_SCRAPE_EVERY_S, _LOOK_EVERY_S = 1.0, 0.2
_ANSWER_WITHIN_S = 60.0


class Watching:
    """Observes a job while the context is entered.

    Args:
        console: The file with the output of the job's launcher.

    Attributes:
        scrapes: The number of reads of the metrics.
        updates: The number of updates that the browser received.
    """

    def __init__(self, console: Path) -> None:
        self._console, self._over = console, threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._scrape, self._browse)]
        self.scrapes = self.updates = 0

    def __enter__(self) -> Watching:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_ANSWER_WITHIN_S)

    def _scrape(self) -> None:
        """Reads the metrics every second, like Prometheus."""
        address = self._address(_METRICS)
        while address and not self._over.wait(_SCRAPE_EVERY_S):
            self.scrapes += self._read(address, lambda line: None)

    def _browse(self) -> None:
        """Reads all updates of the page on one connection until the job ends, like a browser."""
        if address := self._address(_PAGE):
            self._read(f"{address}updates", self._take)

    def _take(self, line: bytes) -> None:
        self.updates += line.startswith(b"event: ")

    def _read(self, address: str, take: Callable[[bytes], None]) -> bool:
        try:
            with urllib.request.urlopen(address, timeout=_ANSWER_WITHIN_S) as answer:
                for line in answer:
                    take(line)
        # The job has ended.
        except OSError:
            return False
        return True

    def _address(self, pattern: re.Pattern[str]) -> str:
        """The address that kungfu-run has printed; empty if there is none."""
        while not self._over.wait(_LOOK_EVERY_S):
            if found := pattern.search(self._console.read_text(errors="replace")):
                return found[0]
        return ""
