"""The screen of a job: its state as text, shown as a live status on a terminal, or as plain lines elsewhere.

Many threads add to `ScreenState`, and the painting thread takes the updates from it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from kungfu.cli.report.narrative import decision_words, waiting_words
from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.job import FIGURES_OF_JOB, Job
from kungfu.event_log.progress import TrainingProgress
from kungfu.event_log.values import counted, duration, figure, label, rough_duration

# Users cannot read more lines than this between two paintings; the log files contain all lines.
_MOST_LINES = 500
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta", "bright_yellow")
_FIXED = "\N{NO-BREAK SPACE}"
_GAP = "  "
_STATUS_EVERY_S, _STATUS_BESIDE_FIT_S = 5.0, 30.0
# The progress that Keras' `fit` prints itself, unless it is silent.
_PROGRESS_OF_FIT = re.compile(r"Epoch \d+/\d+$|\d+/\d+ ")
KUNGFU = "kungfu"


@dataclass(frozen=True)
class OutputLine:
    """A line of output, and the process that wrote it: a peer, or ``kungfu``."""

    source: str
    text: str


@dataclass(frozen=True)
class ScreenUpdate:
    """The newest lines since the last update, the number of dropped older lines, and the present job."""

    lines: tuple[OutputLine, ...]
    dropped: int
    job: Job


class ScreenState:
    """Collects output from many threads, none of which waits for a terminal; keeps the newest lines."""

    def __init__(self) -> None:
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._lines: deque[OutputLine] = deque(maxlen=_MOST_LINES)
        self._added = 0
        self._job = Job()

    def add_line(self, line: OutputLine) -> None:
        """Adds a line of output, to be shown with the next update."""
        with self._lock:
            self._lines.append(line)
            self._added += 1
        self._changed.set()

    def event(self, event: LoggedEvent) -> None:
        """Updates the present job with an event."""
        with self._lock:
            self._job = self._job.after(event)
        self._changed.set()

    def step(self, figures: Mapping[str, Any]) -> None:
        """Updates the present job with the measurements of a step."""
        with self._lock:
            self._job = self._job.after_step(figures)
        self._changed.set()

    @property
    def job(self) -> Job:
        """The present job."""
        with self._lock:
            return self._job

    def wait(self, timeout_s: float) -> None:
        """Waits for news since the last ``update``, or for a call of ``wake``, but at most ``timeout_s`` seconds."""
        self._changed.wait(timeout_s)

    def wake(self) -> None:
        """Ends a `wait` that is in progress."""
        self._changed.set()

    def update(self) -> ScreenUpdate:
        """Returns the lines added since the last call, with the present job."""
        with self._lock:
            self._changed.clear()
            update = ScreenUpdate(tuple(self._lines), self._added - len(self._lines), self._job)
            self._lines.clear()
            self._added = 0
            return update


def activity_words(job: Job) -> str:
    """Describes the present activity of a job: starting, getting ready, training, or continuing after training."""
    # The programs continue after training, and may train again in a new phase.
    if job.finished:
        return "training is over, the program continues"
    if job.view is not None:
        return "training"
    return "starting" if job.started is None else f"{counted(job.started.size, 'peer')} getting ready"


def status_words(job: Job) -> tuple[tuple[str, str], ...]:
    """The newest figures of a job as pairs of a name and a value; ``-`` for an unknown value.

    >>> status_words(Job().after_step({"step": 7, "size": 2, "batch": 32, "loss": None, "samples_per_s": 690.1}))[:2]
    (('step', '7'), ('samples/s', '690'))
    """
    step, progress = job.newest, job.progress.progress
    named = {
        name: value for name, value in step.items() if name not in FIGURES_OF_JOB and not isinstance(value, Mapping)
    }
    monitors, lost = {"noise_scale": None, **named}, job.not_finite.get("loss")
    return (
        ("step", figure(step.get("step")) + _last_step(step.get("step"), progress)),
        *_progress_words(progress),
        ("samples/s", figure(job.samples_per_s)),
        ("peers", figure(step.get("size"))),
        ("batch", figure(job.batch)),
        ("loss", figure(step.get("loss")) + (f" since step {figure(lost.step)}" if lost else "")),
        *((label(str(name)), figure(value)) for name, value in monitors.items()),
        *_slowest(job.speeds),
    )


def _last_step(step: object, progress: TrainingProgress) -> str:
    """The planned last step, on the assumption that the batch does not change."""
    if not isinstance(step, int) or progress.steps_left is None:
        return ""
    return f" of {figure(step + progress.steps_left)}"


def _progress_words(progress: TrainingProgress) -> Iterator[tuple[str, str]]:
    """Yields the known progress of the job, as pairs of a name and a value."""
    if progress.fit is not None and progress.fit > 1:
        yield "fit", figure(progress.fit)
    if progress.epoch is not None and progress.epochs is not None:
        yield "epoch", f"{figure(progress.epoch)} of {figure(progress.epochs)}"
    if progress.samples is not None:
        yield "samples", figure(progress.samples)
    if progress.seconds_left is not None:
        yield "time left", f"about {rough_duration(progress.seconds_left)}"


def _slowest(speeds: Mapping[int, float]) -> Iterator[tuple[str, str]]:
    """The slowest peer, if a policy measures the peers' speeds."""
    if speeds:
        speed, peer = min((speed, peer) for peer, speed in speeds.items())
        yield "slowest", f"peer {peer}, {figure(speed)} of the median speed"


# ---- the two screens -------------------------------------------------------------------------------------------------


def packed(pieces: Sequence[Text], *, width: int, gap: str = " ", indent: str = "") -> Text:
    """Joins pieces into lines and splits no piece; the library rich would break at any space, even a non-breaking one.

    Args:
        pieces: The pieces; a piece wider than the terminal gets a separate line, which the terminal breaks.
        width: The width of the terminal, in columns.
        gap: The text between two pieces of a line.
        indent: The indent of the lines after the first.

    >>> words = [Text(word) for word in "peers 2  step 41  loss 0.25".split("  ")]
    >>> print(packed(words, width=20, gap="  ", indent="  "))
    peers 2  step 41
      loss 0.25
    """
    lines = [Text()]
    for piece in pieces:
        line = lines[-1]
        if line.cell_len and line.cell_len + len(gap) + piece.cell_len > width:
            lines.append(Text(indent).append_text(piece))
        else:
            line.append(gap if line.cell_len else "").append_text(piece)
    return Text("\n").join(lines)


class LiveScreen:
    """A screen that paints on ``console`` only when `show` is called, so that the caller decides how often."""

    def __init__(
        self, console: Console, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._console, self._clock, self._now = console, clock, now
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
        waiting = waiting_words(job, now=self._now())
        words = f"last decision: {decision_words(job) or 'none yet'}{f'; {waiting}' if waiting else ''}"
        return Group(Rule(title, style="dim", characters="-"), pairs, Text(words, "dim"))


def _pair(name: str, value: str) -> Text:
    """A name and its value, kept on one line."""
    return Text.assemble((name.replace(" ", _FIXED) + _FIXED, "dim"), (value.replace(" ", _FIXED), "bold"))


def _coloured_line(line: OutputLine) -> Text:
    if line.source == KUNGFU:
        return Text.assemble((f"{KUNGFU}: ", "bold green"), line.text)
    # All lines of a peer have the same colour.
    digits = "".join(sign for sign in line.source if sign.isdecimal()) or "0"
    return Text.assemble((f"[{line.source}] ", _COLOURS[int(digits) % len(_COLOURS)]), line.text)


class PlainScreen:
    """A screen that writes lines to ``stream``, and from time to time the status after a new step.

    The status is written at most every five seconds, or every thirty while a `fit` that prints its own progress trains.
    """

    def __init__(
        self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._stream, self._clock, self._now = stream, clock, now
        self._written_at, self._written = clock(), Job()
        self._fit_prints = False

    def open(self) -> None:
        """Does nothing, since plain lines need no preparation."""

    def show(self, update: ScreenUpdate) -> None:
        """Writes the new lines. Raises ``OSError`` when the stream has no reader any more."""
        now, printed = self._clock(), (line.text for line in update.lines if line.source != KUNGFU)
        if not self._fit_prints and any(map(_PROGRESS_OF_FIT.match, printed)):
            self._fit_prints, self._written_at = True, now
        dropped = [f"{KUNGFU}: {_dropped_words(update)}"] if update.dropped else []
        lines = [*dropped, *(_plain_line(line) for line in update.lines), *self._status(update.job, now)]
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Does nothing, since every line is already complete."""

    def _status(self, job: Job, now: float) -> list[str]:
        written = self._written
        beside_fit = self._fit_prints and job.progress.reported.fit is not None
        every_s = _STATUS_BESIDE_FIT_S if beside_fit else _STATUS_EVERY_S
        if not job.newest or job.newest == written.newest or now - self._written_at < every_s:
            return []
        is_news = job.change is not None and job.change != written.change
        decided = [f"last decision: {decision_words(job)}"] if is_news else []
        waiting = waiting_words(job, now=self._now())
        words = (f"{name} {value}" for name, value in status_words(job))
        self._written_at, self._written = now, job
        return [f"{KUNGFU}: {' | '.join([*words, *decided, *([waiting] if waiting else [])])}"]


def _plain_line(line: OutputLine) -> str:
    return f"{KUNGFU}: {line.text}" if line.source == KUNGFU else f"[{line.source}] {line.text}"


def _dropped_words(update: ScreenUpdate) -> str:
    return f"{update.dropped:,} lines are not shown here; the log files have them"
