"""The state of a job's screen (the job, and the lines since the last painting), and texts that describe the job.

Many threads add to `ScreenState`; the painting thread reads the update.
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

# More lines than this between two paintings cannot be read; the log files have all of them.
_MOST_LINES = 500
KUNGFU = "kungfu"


@dataclass(frozen=True)
class OutputLine:
    """A line and its source: a peer, or ``kungfu``."""

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
        """Adds a line to show."""
        with self._lock:
            self._lines.append(line)
            self._added += 1
        self._changed.set()

    def event(self, event: LoggedEvent) -> None:
        """Updates the job from an event."""
        with self._lock:
            self._job = self._job.after(event)
        self._changed.set()

    def step(self, figures: Mapping[str, Any]) -> None:
        """Updates the job from the measurements of a step."""
        with self._lock:
            self._job = self._job.after_step(figures)
        self._changed.set()

    @property
    def job(self) -> Job:
        """The present job."""
        with self._lock:
            return self._job

    def wait(self, timeout_s: float) -> None:
        """Waits until there is news since the last ``update``, until ``wake``, or for ``timeout_s`` seconds."""
        self._changed.wait(timeout_s)

    def wake(self) -> None:
        """Ends a `wait` under way."""
        self._changed.set()

    def update(self) -> ScreenUpdate:
        """Returns all news since the last call."""
        with self._lock:
            self._changed.clear()
            update = ScreenUpdate(tuple(self._lines), self._added - len(self._lines), self._job)
            self._lines.clear()
            self._added = 0
            return update


def activity_words(job: Job) -> str:
    """The activity of a job, apart from its steps, in words."""
    # The programs continue after training, and may train again in a new phase.
    if job.finished:
        return "training is over, the program continues"
    if job.view is not None:
        return "training"
    return "starting" if job.started is None else f"{counted(job.started.size, 'peer')} getting ready"


def decision_words(job: Job) -> str:
    """The last decision of a job, or its outcome; empty before the first decision."""
    return job.change.brief() if job.change else ""


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
        ("samples/s", figure(job.known.get("samples_per_s"))),
        ("peers", figure(step.get("size"))),
        ("batch", figure(step.get("batch"))),
        ("loss", figure(step.get("loss")) + (f" since step {figure(lost.step)}" if lost else "")),
        *((label(str(name)), figure(value)) for name, value in monitors.items()),
        *_slowest(job.speeds),
    )


def _last_step(step: object, progress: TrainingProgress) -> str:
    """The planned last step, if the batch does not change."""
    if not isinstance(step, int) or progress.steps_left is None:
        return ""
    return f" of {figure(step + progress.steps_left)}"


def _progress_words(progress: TrainingProgress) -> Iterator[tuple[str, str]]:
    """The progress of the job in words, as far as known."""
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
