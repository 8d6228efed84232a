"""A job's output on a terminal: one status that stays at the bottom, and everything else scrolls above it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from kungfu.cli.console.board import KUNGFU, News
from kungfu.cli.console.status import Status, decision_words, status_words
from kungfu.cli.report.values import duration

__all__ = ["LiveScreen"]

_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta", "bright_yellow")
_FIXED = "\N{NO-BREAK SPACE}"


class LiveScreen:
    """Paints on ``console``, only when told to: the caller decides how often."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._began = clock()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def open(self) -> None:
        """Hides the cursor until `close`."""
        self._live.start()

    def show(self, news: News) -> None:
        """Lets the new lines scroll by and paints the status anew."""
        if news.dropped:
            self._console.print(Text(f"{news.dropped:,} lines are not shown here; the log files have them", "dim"))
        if news.said:
            lines = [_line(said.who, said.text) for said in news.said]
            self._console.print(Text("\n").join(lines), highlight=False)
        self._live.update(self._painted(news.status), refresh=True)

    def close(self) -> None:
        """Leaves the last status on the screen and gives the cursor back."""
        self._live.stop()

    def _painted(self, status: Status) -> Group:
        pairs = Text("  ").join(_pair(name, value) for name, value in status_words(status))
        title = Text(f" {status.phase}, {duration(round(self._clock() - self._began, 1))} ", "bold")
        return Group(Rule(title, style="dim", characters="-"), pairs, Text(decision_words(status), "dim"))


def _pair(name: str, value: str) -> Text:
    """A name and its value, which never stand on two lines."""
    pair = Text()
    pair.append(name.replace(" ", _FIXED) + _FIXED, "dim")
    pair.append(value, "bold")
    return pair


def _line(who: str, text: str) -> Text:
    line = Text()
    if who == KUNGFU:
        return line.append(f"{KUNGFU}: ", "bold green").append(text)
    return line.append(f"[{who}] ", _colour(who)).append(text)


def _colour(who: str) -> str:
    """The same for a peer whenever it says something."""
    digits = "".join(sign for sign in who if sign.isdecimal()) or "0"
    return _COLOURS[int(digits) % len(_COLOURS)]
