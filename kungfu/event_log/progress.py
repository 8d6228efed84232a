"""The progress of a job and the time left, computed from the job's lines of metrics.

The time left is the number of remaining samples divided by the pace: the samples of the steps at the present size, per
second of elapsed time. The elapsed time includes everything, such as a validation after each epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kungfu.event_log.numbers import as_float, as_whole
from kungfu.event_log.values import finite_number

# The steps and seconds at one size after which a pace is known.
_KNOWN_STEPS, _KNOWN_S = 4, 1.0
# The seconds over which the pace behind the time left and the throughput are measured, in this many marks.
_WINDOW_S, _THROUGHPUT_S, _MARKS = 600.0, 60.0, 60


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
    marks: tuple[tuple[float, float], ...] = ()  # times in seconds, each with the samples trained on by then
    window_s: float = _WINDOW_S

    def after(self, now: float, samples: float, *, size: int) -> Pace:
        """The pace updated by a step; begins anew if the size changed, steps are repeated or a clock was set back."""
        mark, marks = (now, samples), self.marks
        # The size changed, steps are repeated, or a clock was set back: the marks so far predict nothing.
        if size != self.size or (marks and (samples < marks[-1][1] or now < marks[-1][0])):
            return Pace(size, 1, (mark,), self.window_s)
        # The newest mark is replaced until it is far enough from the previous mark.
        if len(marks) > 1 and now - marks[-2][0] < self.window_s / _MARKS:
            marks = marks[:-1]
        if len(marks) > 1 and now - marks[1][0] > self.window_s:
            marks = marks[1:]
        return Pace(size, self.steps + 1, (*marks, mark), self.window_s)

    def after_batch(self, fields: Mapping[str, Any]) -> Pace:
        """The pace updated by a step, whose line of metrics is ``fields``; the samples are the sum of the batches."""
        now, size, batch = finite_number(fields.get("time")), as_whole(fields.get("size")), _batch_in(fields)
        if now is None or size is None or batch is None:
            return self
        return self.after(now, batch + (self.marks[-1][1] if self.marks else 0.0), size=size)

    @property
    def samples_per_s(self) -> float | None:
        """The samples per second of elapsed time; ``None`` while the pace is unknown."""
        if self.steps < _KNOWN_STEPS:
            return None
        (begin, first), (end, last) = self.marks[0], self.marks[-1]
        return (last - first) / (end - begin) if end - begin >= _KNOWN_S and last > first else None

    def seconds_for(self, samples: int) -> float | None:
        """The estimated seconds for ``samples``; ``None`` while the pace is unknown."""
        return None if self.samples_per_s is None else samples / self.samples_per_s


@dataclass(frozen=True)
class WholeBatches:
    """The batch in force, without the smaller last batches of epochs.

    A batch that is smaller than the previous batch of the epoch does not count. If the epoch continues, the next batch
    counts, whatever its size: the smaller batch was not the last one of the epoch.

    Attributes:
        batch: The newest batch that counts, in samples; ``None`` before the first.
        epoch: The epoch of this batch.
        is_left_out: True if the newest batch does not count.

    >>> batches, counted = WholeBatches(), []
    >>> for epoch, batch in [(0, 8), (0, 5), (1, 8), (1, 4), (1, 4), (2, 3)]:
    ...     batches = batches.after({"epoch": epoch, "batch": batch})
    ...     counted.append(batches.batch)
    >>> counted
    [8.0, 8.0, 8.0, 8.0, 4.0, 3.0]
    """

    batch: float | None = None
    epoch: object = None
    is_left_out: bool = False

    def after(self, fields: Mapping[str, Any]) -> WholeBatches:
        """The record of batches after one more step, whose line of metrics is ``fields``."""
        batch, epoch = _batch_in(fields), fields.get("epoch")
        if batch is None or (batch == self.batch and epoch == self.epoch and not self.is_left_out):
            return self
        is_smaller = self.batch is not None and epoch == self.epoch and batch < self.batch
        return replace(self, is_left_out=True) if is_smaller and not self.is_left_out else WholeBatches(batch, epoch)


def _batch_in(fields: Mapping[str, Any]) -> float | None:
    return finite_number(fields.get("batch"))


@dataclass(frozen=True)
class ProgressSoFar:
    """The progress of a job by the newest line of metrics, its pace over all lines so far, and the batch in force."""

    reported: TrainingProgress = TrainingProgress()
    pace: Pace = Pace()
    is_over: bool = False  # True if training has ended; lines of the last steps may arrive later
    begun_at: int = 0  # the samples trained on before this fit
    recent: Pace = Pace(window_s=_THROUGHPUT_S)
    batches: WholeBatches = WholeBatches()

    def after_step(self, fields: Mapping[str, Any]) -> ProgressSoFar:
        """The progress updated by a step, whose line of metrics is ``fields``."""
        recent, batches = self.recent.after_batch(fields), self.batches.after(fields)
        given = fields.get("progress")
        # The program does not report its progress, or a signal has this name.
        if not isinstance(given, Mapping):
            return ProgressSoFar(is_over=self.is_over, recent=recent, batches=batches)
        names = ("samples", "epoch", "epochs", "samples_left", "steps_left", "fit")
        reported = TrainingProgress(**{name: as_whole(given.get(name)) for name in names})
        now, size, pace = as_float(fields.get("time")), as_whole(fields.get("size")), self.pace
        if now is not None and size is not None and reported.samples is not None:
            pace = pace.after(now, reported.samples, size=size)
        is_new_fit = reported.fit != self.reported.fit and self.reported.samples is not None
        begun_at = (self.reported.samples or 0) if is_new_fit else self.begun_at
        return ProgressSoFar(reported, pace, self.is_over, begun_at, recent, batches)

    def begun_again(self) -> ProgressSoFar:
        """The progress at the start of another fit; the pace excludes the time between the two fits."""
        return replace(self, pace=Pace(), is_over=False, recent=Pace(window_s=_THROUGHPUT_S))

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

    @property
    def fraction(self) -> float | None:
        """The fraction of the planned samples that is done, of the present fit if the program has several.

        It is ``None`` if the plan is unknown.
        """
        samples, left = self.progress.samples, self.progress.samples_left
        if samples is None or left is None or left < 0:
            return None
        done = max(0, samples - self.begun_at)
        return done / (done + left) if done + left else None
