"""A job's output where there is no terminal: one line after the other, a status now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from kungfu.cli.console.board import KUNGFU, News
from kungfu.cli.console.status import Status, decision_words, status_words

__all__ = ["PlainScreen"]

_STATUS_EVERY_S = 5.0


class PlainScreen:
    """Writes lines to ``stream``, and the status at most every five seconds, and only when a step was made since."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._told_at = clock()
        self._told = Status()

    def open(self) -> None:
        """Nothing to prepare."""

    def show(self, news: News) -> None:
        """Writes what is new. Raises ``OSError`` when nobody reads any more."""
        lines = [_line(said.who, said.text) for said in news.said]
        if news.dropped:
            lines.insert(0, _line(KUNGFU, f"{news.dropped:,} lines are not shown here; the log files have them"))
        lines += self._status(news.status)
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """The last line was written whole already."""

    def _status(self, status: Status) -> list[str]:
        now = self._clock()
        if not status.step or status.step == self._told.step or now - self._told_at < _STATUS_EVERY_S:
            return []
        decided = [decision_words(status)] if status.decision != self._told.decision else []
        self._told_at, self._told = now, status
        return [_line(KUNGFU, " | ".join([*(f"{name} {value}" for name, value in status_words(status)), *decided]))]


def _line(who: str, text: str) -> str:
    return f"[{who}] {text}" if who != KUNGFU else f"{KUNGFU}: {text}"
