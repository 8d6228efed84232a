"""The console of a job: receives lines, events and metrics from the agent, and repaints a few times a second.

Events are printed as lines. A rule that sets a value or calls a hook in every step does not flood the screen: see
`EventLines`.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from kungfu.cli.broken_pipe import discard_output
from kungfu.cli.console.exit_summary import exit_summary, fitted
from kungfu.cli.console.log_filter import is_startup_noise, sanitize
from kungfu.cli.console.repeated_errors import RepeatedErrors
from kungfu.cli.console.screens import KUNGFU, LiveScreen, OutputLine, PlainScreen, ScreenState
from kungfu.cli.report.narrative import late_joiners, paces
from kungfu.event_log.events import (
    CalledEvent,
    DecisionEvent,
    GapEvent,
    HeldEvent,
    LoggedEvent,
    LostEvent,
    ProgramEndedEvent,
    RuleEvent,
    SetEvent,
    SettingRun,
    ShadowEvent,
    SupersededEvent,
    ViewEvent,
    joined_to_run,
)
from kungfu.event_log.values import figure
from kungfu.runtime.agent.agent import Ending

# The shortest and the longest time between two paintings; the status includes a clock.
_PAINT_EVERY_S, _PAINT_WITHIN_S = 0.2, 1.0
# A terminal that a key press has stopped must not delay the end of a job.
_LAST_PAINT_S = 2.0
HOLD_S, REPEAT_S = 30.0, 60.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class _Repeats:
    """The events that repeat a line printed at ``since`` on the clock: the first, the last, and their number."""

    since: float
    first: RuleEvent | None = None
    last: RuleEvent | None = None
    times: int = 0

    def add(self, event: RuleEvent) -> None:
        self.first, self.last, self.times = self.first or event, event, self.times + 1

    def one_line(self) -> str:
        """The last event as a line, with the number of the others."""
        assert self.first is not None
        assert self.last is not None
        line, others = self.last.one_line(), self.times - 1
        return f"{line}; {figure(others)} more like this since step {figure(self.first.step)}" if others else line


def _repeated(event: LoggedEvent) -> tuple[object, ...] | None:
    """The parts that the event has in common with those that repeat it; ``None`` if each such event is to be printed.

    A rule may fire, and call a hook, in every step. If its request has an effect, another event tells the effect.
    """
    match event:
        case CalledEvent(asked=asked, ignored=ignored, also=also):
            parts: tuple[object, ...] = asked is None, bool(ignored), *(one.partition("(")[0] for one in also)
        case DecisionEvent(has_no_effect=True, settings=""):
            parts = ()
        case SupersededEvent(by=by, held=held):
            parts = by, held
        case ShadowEvent(action=action) | HeldEvent(action=action):
            parts = (action,)
        case _:
            return None
    return event.rule, event.kind, *parts


class EventLines:
    """Prints events as lines, in order, by calling ``print_line``; may be called from many threads.

    The first setting of a rule is printed at once. Later settings are held and printed as one line, in the words of
    ``kungfu why``: before the next event that is printed, at the end, or after `HOLD_S` seconds at the latest. Of the
    calls of a hook with the same kind of answer, and of the same requests of a rule without effect, the first is
    printed at once, and then one line with their number: before another line of this rule, at the end, or every
    `REPEAT_S` seconds. A view of the same peers as before, as at the start of another `fit`, is not printed; an error
    that ended another peer in the last `HOLD_S` seconds is "the same".
    """

    def __init__(self, print_line: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._print_line, self._clock = print_line, clock
        self._lock = threading.Lock()
        self._begun: set[tuple[str, str]] = set()  # rule and setting of each run with a printed first setting
        self._held: dict[tuple[str, str], SetEvent | SettingRun] = {}
        self._held_since = 0.0
        self._repeats: dict[tuple[object, ...], _Repeats] = {}  # by the parts in common, of which the first is the rule
        self._peers: tuple[int, ...] = ()  # of the newest view
        self._errors: dict[str, tuple[int, float]] = {}  # the first peer of each recent error, and its newest time

    def event(self, event: LoggedEvent) -> None:
        """Prints an event at once, or holds it as a further setting of a rule, or as a line that is repeated."""
        with self._lock:
            line, parts = self._worded(event), _repeated(event)
            setting = event if isinstance(event, SetEvent) and event.what != "stop" else None
            if not line:
                return
            if isinstance(event, RuleEvent) and parts in self._repeats:
                self._repeats[parts].add(event)
                return
            # A further setting of a run is held.
            if setting is not None and (key := (setting.rule, setting.what)) in self._begun:
                self._held_since = self._held_since if self._held else self._clock()
                self._held[key] = joined_to_run(self._held.get(key), setting)
                return
            if isinstance(event, RuleEvent):
                self._print_repeats(lambda key, _: key[0] == event.rule)
            if parts is not None:
                self._repeats[parts] = _Repeats(self._clock())
            # The first setting of a run is printed; any other event ends all runs.
            if setting is not None:
                self._begun.add((setting.rule, setting.what))
            else:
                self._print_held()
                self._begun.clear()
            self._print_line(line)

    def _worded(self, event: LoggedEvent) -> str:
        """The line of an event; empty for a view of the same peers, with a repeated error in two words."""
        line = event.one_line()
        match event:
            case ViewEvent(peers=peers):
                line, self._peers = ("" if peers == self._peers else line), peers
            case LostEvent(error=error) | ProgramEndedEvent(error=error) if error:
                now = self._clock()
                self._errors = {one: known for one, known in self._errors.items() if now - known[1] < HOLD_S}
                first, _ = self._errors.get(error, (event.peer, now))
                self._errors[error] = first, now
                line = line if first == event.peer else line.replace(error, "the same")
        return line

    def print_due(self) -> None:
        """Prints the held settings if the oldest one has waited for `HOLD_S` seconds; later settings are held anew.

        Prints the repeated lines that are due; one that was not repeated in `REPEAT_S` seconds is forgotten."""
        with self._lock:
            now = self._clock()
            if self._held and now - self._held_since >= HOLD_S:
                self._print_held()
            self._repeats = {key: one for key, one in self._repeats.items() if one.times or now - one.since < REPEAT_S}
            self._print_repeats(lambda _, one: now - one.since >= REPEAT_S)

    def print_rest(self) -> None:
        """Prints the held settings and repeated lines at the end of a job."""
        with self._lock:
            self._print_held()
            self._print_repeats(lambda *_: True)

    def _print_held(self) -> None:
        for run in self._held.values():
            self._print_line(run.one_line())
        self._held.clear()

    def _print_repeats(self, is_due: Callable[[tuple[object, ...], _Repeats], bool]) -> None:
        for key, one in self._repeats.items():
            if one.times and is_due(key, one):
                self._print_line(one.one_line())
                self._repeats[key] = _Repeats(self._clock())


class RunConsole:
    """The console of one job; a context manager with a thread that paints."""

    def __init__(self, folder: Path, screen: LiveScreen | PlainScreen, *, stream: TextIO) -> None:
        self._folder, self._screen, self._stream = folder, screen, stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._state = ScreenState()
        self._events = EventLines(self.remark)
        self._errors = RepeatedErrors(lambda who, text: self._state.add_line(OutputLine(who, text)))
        self._gaps: dict[str, str] = {}  # by file; repeated at the end, so that no gap is overlooked
        self._closing = threading.Event()
        self._painter = threading.Thread(target=self._paint_on, name="kungfu-painter", daemon=True)

    def __enter__(self) -> RunConsole:
        self._screen.open()
        self._painter.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def line(self, who: str, text: str) -> None:
        """Shows a line from a peer, unless the line is TensorFlow's start-up noise, which only the log file has."""
        if not is_startup_noise(text):
            self._errors.line(who, sanitize(text, encoding=self._encoding))

    def note(self, event: LoggedEvent) -> None:
        """Updates the state of the job from an event that is not shown."""
        self._state.event(event)

    def event(self, event: LoggedEvent) -> None:
        """Shows an event of the job."""
        self.note(event)
        if isinstance(event, GapEvent):
            self._gaps[event.file] = f"the record has a gap: {event.one_line()}"
        self._events.event(event)

    def status(self, fields: Mapping[str, Any]) -> None:
        """Updates the newest figures of the run."""
        self._state.step(fields)

    def remark(self, text: str) -> None:
        """Shows a message to the user while the job continues."""
        self._state.add_line(OutputLine(KUNGFU, sanitize(text, encoding=self._encoding)))

    def ended(self, ending: Ending) -> None:
        """Prints the end of the job below all other lines; if the job failed, the root cause comes first."""
        self._close()
        job = self._state.job
        lines = exit_summary(
            ending.code, ending.failure, folder=self._folder, totals=(*late_joiners(job), *paces(job)),
            gaps=tuple(self._gaps.values()), leaves=ending.leaves, raised=ending.raised,
        )  # fmt: skip
        out = Console(stderr=ending.code != 0, highlight=False)
        style = "bold red" if ending.failure else "bold"
        try:
            for nth, line in enumerate(lines):
                text = sanitize(line, encoding=out.encoding)
                width = out.width if out.is_terminal else None
                out.print(fitted(text, width=width, style=style if nth == 0 else ""), soft_wrap=True)
        except OSError:
            discard_output(out.file)

    def _paint_on(self) -> None:
        while not self._closing.wait(_PAINT_EVERY_S):
            self._state.wait(_PAINT_WITHIN_S)
            self._events.print_due()
            self._errors.release_due()
            if not self._paint():
                return

    def _paint(self) -> bool:
        """Paints once; returns False if the stream has lost its reader: the job then continues without a screen.

        Output to a file on a full disk appears once the disk has room again.
        """
        try:
            self._screen.show(self._state.update())
        except OSError as error:
            if error.errno in _NO_ROOM and not self._closing.is_set():
                return True
            discard_output(self._stream)
            return False
        return True

    def _close(self) -> None:
        """Paints the remaining lines; idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._events.print_rest()
        self._errors.release_all()
        self._state.wake()
        self._painter.join(timeout=_LAST_PAINT_S)
        if self._painter.is_alive():
            return
        self._paint()
        try:
            self._screen.close()
        except OSError:
            discard_output(self._stream)


def make_console(folder: Path) -> RunConsole:
    """The console for this process's output: a live status on a terminal, plain lines elsewhere."""
    console = Console()
    alive = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    screen = LiveScreen(console) if alive else PlainScreen(sys.stdout)
    return RunConsole(folder, screen, stream=sys.stdout)
