"""The progress of a job and the time left, computed from the job's lines of metrics.

The time left is the number of remaining samples divided by the pace: the samples of the steps at the present size, per
second of elapsed time. The elapsed time includes everything, such as a validation after each epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kungfu.event_log.numbers import as_float, as_whole

# The steps and seconds at one size after which a pace is known.
_KNOWN_STEPS, _KNOWN_S = 4, 1.0
# The seconds over which the pace is measured, and the seconds between two marks.
_WINDOW_S, _MARK_EVERY_S = 600.0, 10.0


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a job; fields are ``None`` if unknown, for example without ``training.batches``.

    Attributes:
        samples: The samples trained on so far in the whole job.
        epoch: The epoch of the newest step, from 1, in the program's count.
        epochs: The last planned epoch.
        samples_left: The planned samples left; if the program calls ``fit`` several times, those of this ``fit``.
        steps_left: The steps left, at the present batch size.
        seconds_left: The seconds left, at the present pace.
        fit: The number of this ``fit`` in the program, from 1.
    """

    samples: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    samples_left: int | None = None
    steps_left: int | None = None
    seconds_left: float | None = None
    fit: int | None = None


@dataclass(frozen=True)
class Pace:
    """The pace of training at one size, over the steps observed at this size."""

    size: int = 0
    steps: int = 0
    marks: tuple[tuple[float, int], ...] = ()  # times in seconds, each with the samples trained on by then

    def after(self, now: float, samples: int, *, size: int) -> Pace:
        """The pace updated by a step; begins anew if the size changed, steps are repeated or a clock was set back."""
        mark, marks = (now, samples), self.marks
        # The size changed, steps are repeated, or a clock was set back: the marks so far predict nothing.
        if size != self.size or (marks and (samples < marks[-1][1] or now < marks[-1][0])):
            return Pace(size, 1, (mark,))
        # The newest mark is replaced until it is far enough from the previous mark.
        if len(marks) > 1 and now - marks[-2][0] < _MARK_EVERY_S:
            marks = marks[:-1]
        if len(marks) > 1 and now - marks[1][0] > _WINDOW_S:
            marks = marks[1:]
        return Pace(size, self.steps + 1, (*marks, mark))

    def seconds_for(self, samples: int) -> float | None:
        """The estimated seconds for ``samples``; ``None`` while the pace is unknown."""
        if self.steps < _KNOWN_STEPS:
            return None
        (begin, first), (end, last) = self.marks[0], self.marks[-1]
        return samples * (end - begin) / (last - first) if end - begin >= _KNOWN_S and last > first else None


@dataclass(frozen=True)
class ProgressSoFar:
    """The progress of a job according to the newest line of metrics, and the pace over all lines so far."""

    reported: TrainingProgress = TrainingProgress()
    pace: Pace = Pace()
    is_over: bool = False  # True if training has ended; lines of the last steps may arrive later

    def after_step(self, fields: Mapping[str, Any]) -> ProgressSoFar:
        """The progress updated by a step, whose line of metrics is ``fields``."""
        given = fields.get("progress")
        # The program does not report its progress, or a signal has this name.
        if not isinstance(given, Mapping):
            return ProgressSoFar(is_over=self.is_over)
        names = ("samples", "epoch", "epochs", "samples_left", "steps_left", "fit")
        reported = TrainingProgress(**{name: as_whole(given.get(name)) for name in names})
        now, size, pace = as_float(fields.get("time")), as_whole(fields.get("size")), self.pace
        if now is not None and size is not None and reported.samples is not None:
            pace = pace.after(now, reported.samples, size=size)
        return ProgressSoFar(reported, pace, self.is_over)

    def begun_again(self) -> ProgressSoFar:
        """The progress at the start of another fit; the pace excludes the time between the two fits."""
        return replace(self, pace=Pace(), is_over=False)

    def ended(self) -> ProgressSoFar:
        """The progress once training has ended, even if training ended before the last epoch."""
        return replace(self, is_over=True)

    @property
    def progress(self) -> TrainingProgress:
        """The reported progress and the estimated time left; only the samples if training ended before the plan."""
        left = self.reported.samples_left
        # Training ended before its last epoch: the rest of the plan is void.
        if self.is_over and left != 0:
            return TrainingProgress(samples=self.reported.samples)
        return self.reported if not left else replace(self.reported, seconds_left=self.pace.seconds_for(left))
