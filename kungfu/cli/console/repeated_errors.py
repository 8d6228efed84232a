"""Tracebacks that several peers print alike: shown in full once, and in one line for every other peer.

The lines of a traceback that may repeat another one are held until they differ from it, or until their peer has been
silent for a second. The log files of the peers have every line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

_BEGIN = "Traceback (most recent call last):"
# The tracebacks with which new ones are compared, and the lines of each.
_MOST_ERRORS, _MOST_LINES = 8, 300
_SILENT_S, _LONGEST_S = 1.0, 3.0


@dataclass(frozen=True)
class _Error:
    """A traceback in full, with the lines that its peer printed next."""

    source: str
    lines: list[str]


@dataclass
class _Held:
    """The lines that may repeat a traceback of another peer, and the times of the first and the newest line."""

    errors: list[_Error]
    lines: list[str]
    since: float
    at: float

    def common(self, error: _Error) -> int:
        """The number of first lines that equal those of a traceback."""
        pairs = zip(self.lines, error.lines, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    @property
    def is_decided(self) -> bool:
        """True if the lines differ from those of every traceback, or go on after one; another peer may be behind."""
        most = max(map(self.common, self.errors))
        if most == len(self.lines):
            return False
        # The other peer may have ended after its error; in the midst of a traceback, it is only behind.
        return _error_in(self.lines[:most]) is not None or all(self.common(one) < len(one.lines) for one in self.errors)


class RepeatedErrors:
    """Passes the lines of peers on to ``show_line``, with repeated tracebacks shortened; for many threads."""

    def __init__(self, show_line: Callable[[str, str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._show_line, self._clock = show_line, clock
        self._lock = threading.Lock()
        self._errors: list[_Error] = []
        self._held: dict[str, _Held] = {}

    def line(self, source: str, text: str) -> None:
        """Shows a line, or holds it as a part of a traceback that may repeat another one."""
        with self._lock:
            now, held = self._clock(), self._held.get(source)
            if held is not None:
                held.lines.append(text)
                held.at = now
                # Nobody else may release the lines: the painting thread ends with the reader of the output.
                if held.is_decided or now - held.since >= _LONGEST_S or len(held.lines) > _MOST_LINES:
                    self._release(source)
            elif text == _BEGIN and (others := [one for one in self._errors if one.source != source]):
                self._held[source] = _Held(others, [text], now, now)
            else:
                self._show(source, text)

    def release_due(self) -> None:
        """Shows the held lines of peers that have been silent for a second, or that print on and on."""
        with self._lock:
            now = self._clock()
            for source, held in [*self._held.items()]:
                if now - held.at >= _SILENT_S or now - held.since >= _LONGEST_S:
                    self._release(source)

    def release_all(self) -> None:
        """Shows all held lines."""
        with self._lock:
            for source in [*self._held]:
                self._release(source)

    def _release(self, source: str) -> None:
        held = self._held.pop(source)
        like = max(held.errors, key=held.common)
        same, rest = held.lines[: held.common(like)], held.lines[held.common(like) :]
        error = _error_in(same)
        # The lines differ before the end of the traceback.
        if error is None:
            rest = held.lines
        else:
            self._show_line(source, f"the same {len(same)} lines as {like.source}: {error}")
        for text in rest:
            self._show(source, text)

    def _show(self, source: str, text: str) -> None:
        """Shows a line, and remembers it as a part of each recent traceback of its peer, which another may follow."""
        self._show_line(source, text)
        if text == _BEGIN:
            self._errors = [*self._errors, _Error(source, [])][-_MOST_ERRORS:]
        for one in self._errors:
            if one.source == source and len(one.lines) < _MOST_LINES:
                one.lines.append(text)


def _error_in(lines: list[str]) -> str | None:
    """The error of the last traceback in these lines, as those before it were handled; None if it has no end yet."""
    error = None
    for line in lines:
        if line == _BEGIN:
            error = None
        elif error is None and line and not line.startswith(" "):
            error = line
    return error
