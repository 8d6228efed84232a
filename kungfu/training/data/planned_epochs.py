"""The epochs that a run should train, as the program counts them, and the rest at a given position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kungfu.training.graph.step_report import StepPosition


@dataclass(frozen=True)
class PlannedEpochs:
    """The epochs of a run.

    Attributes:
        samples: The samples of an epoch.
        epochs: The number of epochs.
        drops: True if an epoch ends before a step that would be smaller.
        done_before: Epochs that the program counts before the first one of this run, such as ``initial_epoch`` of
            ``fit``.
        fit: The number of this ``fit`` in the program, from 1; 0 if the program has a custom loop.
    """

    samples: int
    epochs: int
    drops: bool = False
    done_before: int = 0
    fit: int = 0

    def progress(self, position: StepPosition, *, epoch: int) -> dict[str, Any]:
        """The position of a step in the run, for a line of the metrics.

        Args:
            position: The position of the run after the step.
            epoch: The epoch of the step, from 0.

        Returns:
            ``epoch``, from 1, and ``epochs``, as the program counts them; ``samples_left``; ``steps_left``, if the
            batch size does not change; and ``fit``.

        >>> after = StepPosition(step=0, epoch=1, offset=64, micro=0, version=1, size=2, rank=0, global_batch_size=32)
        >>> PlannedEpochs(samples=100, epochs=3).progress(after, epoch=1)
        {'epoch': 2, 'epochs': 3, 'samples_left': 136, 'steps_left': 6}
        """
        samples_left, steps_left = self._left(position)
        progress = {
            "epoch": self.done_before + epoch + 1,
            "epochs": self.done_before + self.epochs,
            "samples_left": samples_left,
            "steps_left": steps_left,
        }
        return {**progress, "fit": self.fit} if self.fit else progress

    def _left(self, position: StepPosition) -> tuple[int, int]:
        whole_epochs = self.epochs - position.epoch - 1
        # The last epoch is done.
        if whole_epochs < 0:
            return 0, 0
        batch = max(1, min(position.global_batch_size, self.samples))
        parts = (self.samples - position.offset, *([self.samples] if whole_epochs else []))
        steps = [samples // batch if self.drops else -(-samples // batch) for samples in parts]
        total = steps[0] + sum(steps[1:]) * whole_epochs
        # If remainders are dropped, only whole steps are trained.
        return (total * batch if self.drops else parts[0] + whole_epochs * self.samples), total
