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
from kungfu.cli.console.screen_state import (
    KUNGFU,
    OutputLine,
    ScreenUpdate,
    activity_words,
    decision_words,
    status_words,
)
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
            self._console.print(Text(_dropped_words(update), "dim"))
        if update.lines:
            self._console.print(Text("\n").join(map(_coloured_line, update.lines)), highlight=False)
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
    return Text.assemble((name.replace(" ", _FIXED) + _FIXED, "dim"), (value.replace(" ", _FIXED), "bold"))


def _coloured_line(line: OutputLine) -> Text:
    if line.source == KUNGFU:
        return Text.assemble((f"{KUNGFU}: ", "bold green"), line.text)
    # All lines of a peer have the same colour.
    digits = "".join(sign for sign in line.source if sign.isdecimal()) or "0"
    return Text.assemble((f"[{line.source}] ", _COLOURS[int(digits) % len(_COLOURS)]), line.text)


_STATUS_EVERY_S = 5.0


class PlainScreen:
    """A screen that writes lines to ``stream``, and the status after a new step, at most every five seconds."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._written_at, self._written = clock(), Job()

    def open(self) -> None:
        """Does nothing."""

    def show(self, update: ScreenUpdate) -> None:
        """Writes the new lines. Raises ``OSError`` when the stream has no reader any more."""
        dropped = [f"{KUNGFU}: {_dropped_words(update)}"] if update.dropped else []
        lines = [*dropped, *(_plain_line(line) for line in update.lines), *self._status(update.job)]
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Does nothing, since every line is already complete."""

    def _status(self, job: Job) -> list[str]:
        now, written = self._clock(), self._written
        if not job.newest or job.newest == written.newest or now - self._written_at < _STATUS_EVERY_S:
            return []
        decided = [f"last decision: {decision_words(job)}"] if job.change != written.change else []
        words = (f"{name} {value}" for name, value in status_words(job))
        self._written_at, self._written = now, job
        return [f"{KUNGFU}: {' | '.join([*words, *decided])}"]


def _plain_line(line: OutputLine) -> str:
    return f"{KUNGFU}: {line.text}" if line.source == KUNGFU else f"[{line.source}] {line.text}"


def _dropped_words(update: ScreenUpdate) -> str:
    return f"{update.dropped:,} lines are not shown here; the log files have them"
