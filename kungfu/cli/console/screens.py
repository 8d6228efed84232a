"""The two screens for the output of a job: a live status on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from kungfu.cli.console.packed_lines import packed
from kungfu.cli.console.screen_state import KUNGFU, ScreenUpdate, activity_words, decision_words, status_words
from kungfu.event_log.job import Job
from kungfu.event_log.values import duration

_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta", "bright_yellow")
_FIXED = "\N{NO-BREAK SPACE}"
_GAP = "  "


class LiveScreen:
    """A screen that paints on ``console`` only when `show` is called, so that the caller decides how often."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._began = clock()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def open(self) -> None:
        """Hides the cursor until `close`."""
        self._live.start()

    def show(self, update: ScreenUpdate) -> None:
        """Prints the new lines above the status, and paints the status again."""
        if update.dropped:
            self._console.print(Text(f"{update.dropped:,} lines are not shown here; the log files have them", "dim"))
        if update.lines:
            lines = [_coloured_line(line.source, line.text) for line in update.lines]
            self._console.print(Text("\n").join(lines), highlight=False)
        self._live.update(self._painted(update.job), refresh=True)

    def close(self) -> None:
        """Leaves the last status on the screen and restores the cursor."""
        self._live.stop()

    def _painted(self, job: Job) -> Group:
        named = [_pair(name, value) for name, value in status_words(job)]
        pairs = packed(named, width=self._console.width, gap=_GAP)
        title = Text(f" {activity_words(job)}, {duration(round(self._clock() - self._began, 1))} ", "bold")
        decision = Text(f"last decision: {decision_words(job) or 'none yet'}", "dim")
        return Group(Rule(title, style="dim", characters="-"), pairs, decision)


def _pair(name: str, value: str) -> Text:
    """A name and its value, kept on one line."""
    pair = Text()
    pair.append(name.replace(" ", _FIXED) + _FIXED, "dim")
    pair.append(value.replace(" ", _FIXED), "bold")
    return pair


def _coloured_line(source: str, text: str) -> Text:
    line = Text()
    if source == KUNGFU:
        return line.append(f"{KUNGFU}: ", "bold green").append(text)
    return line.append(f"[{source}] ", _colour(source)).append(text)


def _colour(source: str) -> str:
    """The colour of a peer, the same for all of its lines."""
    digits = "".join(sign for sign in source if sign.isdecimal()) or "0"
    return _COLOURS[int(digits) % len(_COLOURS)]


_STATUS_EVERY_S = 5.0


class PlainScreen:
    """A screen that writes lines to ``stream``, and the status after a new step, at most every five seconds."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._told_at = clock()
        self._told = Job()

    def open(self) -> None:
        """Does nothing."""

    def show(self, update: ScreenUpdate) -> None:
        """Writes the new lines. Raises ``OSError`` when the stream has no reader any more."""
        lines = [_plain_line(line.source, line.text) for line in update.lines]
        if update.dropped:
            lines.insert(
                0, _plain_line(KUNGFU, f"{update.dropped:,} lines are not shown here; the log files have them")
            )
        lines += self._status(update.job)
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Does nothing, since every line is already complete."""

    def _status(self, job: Job) -> list[str]:
        now, told = self._clock(), self._told
        if not job.newest or job.newest == told.newest or now - self._told_at < _STATUS_EVERY_S:
            return []
        decided = [f"last decision: {decision_words(job)}"] if job.change != told.change else []
        words = (f"{name} {value}" for name, value in status_words(job))
        self._told_at, self._told = now, job
        return [_plain_line(KUNGFU, " | ".join([*words, *decided]))]


def _plain_line(source: str, text: str) -> str:
    return f"[{source}] {text}" if source != KUNGFU else f"{KUNGFU}: {text}"
