"""The progress of a job and the time left, from the lines of its steps.

The time left follows from the samples that are left and the pace at the size now: how many samples the steps of this
size came to in the time that passed meanwhile. That time has everything in it, such as a validation after each epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kungfu.event_log.numbers import as_float, as_whole

# A pace is known after so many steps and seconds of one size.
_KNOWN_STEPS, _KNOWN_S = 4, 1.0
# It is that of the last minutes, for which a mark is kept now and then.
_WINDOW_S, _MARK_EVERY_S = 600.0, 10.0


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a job; ``None`` if unknown, as without ``training.batches``.

    Attributes:
        samples: Trained on so far, in all of the job.
        epoch: The epoch of the newest step, from 1, as the program counts it.
        epochs: The last one that is planned.
        samples_left: The samples that are still planned, of this ``fit`` if there are several.
        steps_left: Likewise, as long as the batch stays.
        seconds_left: Likewise, at the pace of the size now.
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
    """The pace of training at one size, in samples per second.

    Attributes:
        size: Peers.
        steps: Steps of this size that were seen.
        marks: Moments in seconds, and the samples that were trained on until then, oldest first.
    """

    size: int = 0
    steps: int = 0
    marks: tuple[tuple[float, int], ...] = ()

    def after(self, now: float, samples: int, *, size: int) -> Pace:
        """The pace once a step has ended."""
        mark, marks = (now, samples), self.marks
        # Another size; or steps are done again, or a clock was set back: what was seen says nothing of what comes.
        if size != self.size or (marks and (samples < marks[-1][1] or now < marks[-1][0])):
            return Pace(size, 1, (mark,))
        # The newest mark moves on, until it is far enough from the one before.
        if len(marks) > 1 and now - marks[-2][0] < _MARK_EVERY_S:
            marks = marks[:-1]
        if len(marks) > 1 and now - marks[1][0] > _WINDOW_S:
            marks = marks[1:]
        return Pace(size, self.steps + 1, (*marks, mark))

    def seconds_for(self, samples: int) -> float | None:
        """The seconds that this many samples take; ``None`` as long as they are unknown."""
        if self.steps < _KNOWN_STEPS:
            return None
        (begin, first), (end, last) = self.marks[0], self.marks[-1]
        return samples * (end - begin) / (last - first) if end - begin >= _KNOWN_S and last > first else None


@dataclass(frozen=True)
class ProgressSoFar:
    """The progress of a job according to the newest line, and the pace of the lines before.

    Attributes:
        reported: The progress by the newest line.
        pace: The pace of the lines so far.
        is_over: True if training has ended, so that nothing is left of it; lines of its last steps may come later.
    """

    reported: TrainingProgress = TrainingProgress()
    pace: Pace = Pace()
    is_over: bool = False

    def after_step(self, fields: Mapping[str, Any]) -> ProgressSoFar:
        """The progress once a step was measured."""
        given = fields.get("progress")
        # A record of before there was progress in it, or a signal of that name.
        if not isinstance(given, Mapping):
            return ProgressSoFar(is_over=self.is_over)
        names = ("samples", "epoch", "epochs", "samples_left", "steps_left", "fit")
        reported = TrainingProgress(**{name: as_whole(given.get(name)) for name in names})
        now, size, pace = as_float(fields.get("time")), as_whole(fields.get("size")), self.pace
        if now is not None and size is not None and reported.samples is not None:
            pace = pace.after(now, reported.samples, size=size)
        return ProgressSoFar(reported, pace, self.is_over)

    def begun_again(self) -> ProgressSoFar:
        """The progress once another fit begins; the time between the two was no training."""
        return replace(self, pace=Pace(), is_over=False)

    def ended(self) -> ProgressSoFar:
        """The progress once training has ended, be it before its last epoch."""
        return replace(self, is_over=True)

    @property
    def progress(self) -> TrainingProgress:
        """With the time left."""
        left = self.reported.samples_left
        # It has ended before its last epoch: what was planned will not come. Else it has come to all of that.
        if self.is_over and left != 0:
            return TrainingProgress(samples=self.reported.samples)
        return self.reported if not left else replace(self.reported, seconds_left=self.pace.seconds_for(left))
