"""The state of a job's screen: the status of the run, and the lines that came since it was painted.

`Status` is a value, and each event and measurement makes a new one of it. `ScreenState` takes from many threads; the
one that paints takes what is new.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kungfu.cli.report.values import UNKNOWN, counted, duration, figure, label, not_finite, rough_duration
from kungfu.event_log.events import (
    DecisionEvent,
    FinishedEvent,
    LoggedEvent,
    PhaseEvent,
    RecoveredEvent,
    RefusedEvent,
    RescaleEvent,
    StartedEvent,
    ViewEvent,
)
from kungfu.event_log.numbers import as_float
from kungfu.runtime.job_api.progress import ProgressSoFar, TrainingProgress

__all__ = [
    "KUNGFU",
    "OutputLine",
    "ScreenState",
    "ScreenUpdate",
    "Status",
    "after_event",
    "after_step",
    "decision_words",
    "status_words",
]

# More than this between two paintings is more than a person reads; the log files have it all.
_MOST_LINES = 500
KUNGFU = "kungfu"


@dataclass(frozen=True)
class OutputLine:
    """A line, and its source: a peer, or ``kungfu``."""

    source: str
    text: str


@dataclass(frozen=True)
class ScreenUpdate:
    """The newest lines since the last update, how many older ones were dropped, and the status now."""

    lines: tuple[OutputLine, ...]
    dropped: int
    status: Status


class ScreenState:
    """Takes from many threads without ever making one wait for a terminal; keeps the newest lines."""

    def __init__(self) -> None:
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._lines: deque[OutputLine] = deque(maxlen=_MOST_LINES)
        self._added = 0
        self._status = Status()

    def add_line(self, line: OutputLine) -> None:
        """Adds a line to be shown."""
        with self._lock:
            self._lines.append(line)
            self._added += 1
        self._changed.set()

    def event(self, event: LoggedEvent) -> None:
        """Lets an event change the status."""
        with self._lock:
            self._status = after_event(self._status, event)
        self._changed.set()

    def step(self, figures: Mapping[str, Any]) -> None:
        """Lets the measurements of a step change the status."""
        with self._lock:
            self._status = after_step(self._status, figures)
        self._changed.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until something has come since the last ``take``, until ``wake``, or for ``timeout_s`` seconds."""
        self._changed.wait(timeout_s)

    def wake(self) -> None:
        """Ends a `wait` that is under way."""
        self._changed.set()

    def take(self) -> ScreenUpdate:
        """Everything since the last call."""
        with self._lock:
            self._changed.clear()
            update = ScreenUpdate(tuple(self._lines), self._added - len(self._lines), self._status)
            self._lines.clear()
            self._added = 0
            return update


# Fields of a step that are shown in a fixed place, or not at all; every other one is a monitor of the policy.
_OWN = ("time", "step", "epoch", "size", "batch", "loss", "samples_per_s", "straggler_fractions")


@dataclass(frozen=True)
class Status:
    """The state of a run as its screen shows it.

    Attributes:
        phase: the activity besides steps.
        decision: the last decision, in words.
        step: the measurements of the last step.
        since: the first of the steps in a row, up to the last one, whose loss is no number.
        progress: how far the job is.
    """

    phase: str = "starting"
    decision: str = "none yet"
    step: Mapping[str, Any] = field(default_factory=dict)
    since: object = None
    progress: ProgressSoFar = field(default_factory=ProgressSoFar)


def after_event(status: Status, event: LoggedEvent) -> Status:
    """The status once `event` has happened."""
    status = replace(status, progress=status.progress.after_event(event))
    match event:
        case StartedEvent():
            return replace(status, phase=f"{counted(event.size, 'peer')} getting ready")
        case ViewEvent() | PhaseEvent():
            return replace(status, phase="training")
        # The scripts go on after it, and may train again: that is another phase.
        case FinishedEvent() if not event.leaving:
            return replace(status, phase="training is over, the program goes on")
        case DecisionEvent():
            asked = f"{figure(event.size)} -> {counted(event.asked, 'peer')}"
            return replace(status, decision=f"step {figure(event.step)}, {event.rule}: {asked}, under way")
        case RescaleEvent():
            # Peers that take the place of lost ones come without a rule.
            cause = event.rule or "in place of lost peers"
            return replace(status, decision=f"step {figure(event.step)}, {cause}: {_came(event)}")
        case RecoveredEvent():
            lost = counted(len(event.lost), "peer")
            return replace(status, decision=f"step {figure(event.step)}, after the loss of {lost}: {_came(event)}")
        case RefusedEvent():
            return replace(status, decision=f"{event.rule or UNKNOWN}: {counted(event.asked, 'peer')} refused")
    return status


def _came(event: RescaleEvent | RecoveredEvent) -> str:
    sizes = f"{figure(event.before)} -> {counted(event.after, 'peer')}"
    return f"{sizes}, stood still for {duration(event.stop_s)}"


def after_step(status: Status, figures: Mapping[str, Any]) -> Status:
    """The status once a step was measured. A speed that this step does not know stays the last one that was known."""
    speed = figures.get("samples_per_s")
    kept = status.step.get("samples_per_s") if speed is None else speed
    # The first step of a row without a finite loss stays remembered until the loss is a number again.
    since = (status.since or figures.get("step")) if not_finite(figures.get("loss")) else None
    progress = status.progress.after_step(figures)
    return replace(status, step={**figures, "samples_per_s": kept}, since=since, progress=progress)


def status_words(status: Status) -> tuple[tuple[str, str], ...]:
    """The status as pairs of a name and its value; ``-`` for a value that is not known.

    >>> status_words(Status(step={"step": 7, "size": 2, "batch": 32, "loss": None, "samples_per_s": 690.1}))[:2]
    (('step', '7'), ('samples/s', '690'))
    """
    step, progress = status.step, status.progress.progress
    named = {name: value for name, value in step.items() if name not in _OWN and not isinstance(value, Mapping)}
    monitors = {"noise_scale": None, **named}
    return (
        ("step", figure(step.get("step")) + _last_step(step.get("step"), progress)),
        *_progress_words(progress),
        ("samples/s", figure(step.get("samples_per_s"))),
        ("peers", figure(step.get("size"))),
        ("batch", figure(step.get("batch"))),
        ("loss", figure(step.get("loss")) + (f" since step {figure(status.since)}" if status.since else "")),
        *((label(str(name)), figure(value)) for name, value in monitors.items()),
        *_slowest(step.get("straggler_fractions")),
    )


def _last_step(step: object, progress: TrainingProgress) -> str:
    """The last step that is planned, as long as the batch stays."""
    if not isinstance(step, int) or progress.steps_left is None:
        return ""
    return f" of {figure(step + progress.steps_left)}"


def _progress_words(progress: TrainingProgress) -> Iterator[tuple[str, str]]:
    """How far the job is, as far as that is known."""
    if progress.fit is not None and progress.fit > 1:
        yield "fit", figure(progress.fit)
    if progress.epoch is not None and progress.epochs is not None:
        yield "epoch", f"{figure(progress.epoch)} of {figure(progress.epochs)}"
    if progress.samples is not None:
        yield "samples", figure(progress.samples)
    if progress.seconds_left is not None:
        yield "time left", f"about {rough_duration(progress.seconds_left)}"


def _slowest(fractions: object) -> Iterator[tuple[str, str]]:
    """The slowest peer, where a policy measures how fast they are."""
    speeds = {peer: as_float(speed) for peer, speed in fractions.items()} if isinstance(fractions, Mapping) else {}
    known = [(speed, peer) for peer, speed in speeds.items() if speed is not None and math.isfinite(speed)]
    if known:
        speed, peer = min(known)
        yield "slowest", f"peer {peer}, {figure(speed)} of the median speed"


def decision_words(status: Status) -> str:
    """The last decision."""
    return f"last decision: {status.decision}"
