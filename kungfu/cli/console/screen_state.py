"""The state of a job's screen: the job, and the lines that came since it was painted; and a job in words.

`ScreenState` takes from many threads; the one that paints takes what is new.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.job import FIGURES_OF_JOB, Job
from kungfu.event_log.progress import TrainingProgress
from kungfu.event_log.values import counted, figure, label, rough_duration

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
    """The newest lines since the last update, how many older ones were dropped, and the job now."""

    lines: tuple[OutputLine, ...]
    dropped: int
    job: Job


class ScreenState:
    """Takes from many threads without ever making one wait for a terminal; keeps the newest lines."""

    def __init__(self) -> None:
        self._lock, self._changed = threading.Lock(), threading.Event()
        self._lines: deque[OutputLine] = deque(maxlen=_MOST_LINES)
        self._added = 0
        self._job = Job()

    def add_line(self, line: OutputLine) -> None:
        """Adds a line to be shown."""
        with self._lock:
            self._lines.append(line)
            self._added += 1
        self._changed.set()

    def event(self, event: LoggedEvent) -> None:
        """Lets an event change the job."""
        with self._lock:
            self._job = self._job.after(event)
        self._changed.set()

    def step(self, figures: Mapping[str, Any]) -> None:
        """Lets the measurements of a step change the job."""
        with self._lock:
            self._job = self._job.after_step(figures)
        self._changed.set()

    @property
    def job(self) -> Job:
        """The job now."""
        with self._lock:
            return self._job

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
            update = ScreenUpdate(tuple(self._lines), self._added - len(self._lines), self._job)
            self._lines.clear()
            self._added = 0
            return update


def activity_words(job: Job) -> str:
    """The activity of a job besides its steps."""
    # The programs go on after it, and may train again: that is another phase.
    if job.finished:
        return "training is over, the program continues"
    if job.view is not None:
        return "training"
    return "starting" if job.started is None else f"{counted(job.started.size, 'peer')} getting ready"


def decision_words(job: Job) -> str:
    """The last decision of a job, or what came of it; empty before the first one."""
    return job.change.brief() if job.change else ""


def status_words(job: Job) -> tuple[tuple[str, str], ...]:
    """The newest figures of a job as pairs of a name and its value; ``-`` for a value that is not known.

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
        ("samples/s", figure(job.known.get("samples_per_s"))),
        ("peers", figure(step.get("size"))),
        ("batch", figure(step.get("batch"))),
        ("loss", figure(step.get("loss")) + (f" since step {figure(lost.step)}" if lost else "")),
        *((label(str(name)), figure(value)) for name, value in monitors.items()),
        *_slowest(job.speeds),
    )


def _last_step(step: object, progress: TrainingProgress) -> str:
    """The last step that is planned, as long as the batch stays."""
    if not isinstance(step, int) or progress.steps_left is None:
        return ""
    return f" of {figure(step + progress.steps_left)}"


def _progress_words(progress: TrainingProgress) -> Iterator[tuple[str, str]]:
    """The progress of the job in words, as far as it is known."""
    if progress.fit is not None and progress.fit > 1:
        yield "fit", figure(progress.fit)
    if progress.epoch is not None and progress.epochs is not None:
        yield "epoch", f"{figure(progress.epoch)} of {figure(progress.epochs)}"
    if progress.samples is not None:
        yield "samples", figure(progress.samples)
    if progress.seconds_left is not None:
        yield "time left", f"about {rough_duration(progress.seconds_left)}"


def _slowest(speeds: Mapping[int, float]) -> Iterator[tuple[str, str]]:
    """The slowest peer, if a policy measures how fast they are."""
    if speeds:
        speed, peer = min((speed, peer) for peer, speed in speeds.items())
        yield "slowest", f"peer {peer}, {figure(speed)} of the median speed"
