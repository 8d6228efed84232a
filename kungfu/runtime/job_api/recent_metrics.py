"""The metrics of a job's newest steps, and its latest problems."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.job import Job
from kungfu.event_log.numbers import as_float, step_seconds
from kungfu.runtime.core.requests.profiling import TimedStep
from kungfu.runtime.job_api.status import JobMetrics, Trouble

_STEPS = 20  # the steps that are remembered
# The job's batch is the largest of this many steps, because the last batch of an epoch is smaller.
_BATCHES = 5

Fields = Mapping[str, Any]


class RecentMetrics:
    """Remembers the newest steps and problems of a job; only one thread at a time may call it.

    Attributes:
        job: The state of the job.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._steps: deque[Fields] = deque(maxlen=_STEPS)
        self.job = Job()

    def add_step(self, fields: Fields) -> TimedStep | None:
        """Adds a measured step; returns it as a sample of a profile, or ``None`` if the step was not timed."""
        # The size has changed: the throughputs of two sizes must not be mixed.
        if self._steps and self._steps[-1].get("size") != fields.get("size"):
            self._steps.clear()
        self._steps.append(fields)
        self.job = self.job.after_step(fields)
        seconds = step_seconds(fields)
        return None if seconds is None else TimedStep(fields["size"], fields["batch"], seconds)

    def add_event(self, event: LoggedEvent) -> None:
        """Adds an event; an event without a time gets the present time."""
        self.job = self.job.after(event if event.time is not None else replace(event, time=self._clock()))

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """The latest problems of the job, oldest first."""
        return tuple(Trouble(one.time or 0.0, one.one_line() or one.headline()) for one in self.job.troubles)

    def newest(self) -> JobMetrics:
        """The metrics of the newest steps of one size; the throughput is all samples over all seconds."""
        if not self._steps:
            return JobMetrics()
        newest = self._steps[-1]
        timed = [(step["batch"], seconds) for step in self._steps if (seconds := step_seconds(step)) is not None]
        total_s = sum(seconds for _, seconds in timed)
        return JobMetrics(
            newest.get("step"),
            newest.get("epoch"),
            max(step["batch"] for step in [*self._steps][-_BATCHES:]),
            as_float(newest.get("loss")),
            sum(samples for samples, _ in timed) / total_s if total_s > 0 else None,
        )
