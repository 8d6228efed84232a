"""Derives sources of a step from its other numbers, on the host, when the step's record is read.

As nodes of the graph they would cost every step some forty microseconds, whether a policy uses them or not. The sources
that a policy uses are in the graph too, in `kungfu.training.graph.gradient_message`; both results are bitwise equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class MessageNumbers(NamedTuple):
    """The inputs of a step's derived sources: variables and tensors in the graph, numbers on the host."""

    steps: Any  # done before this one
    size: Any  # of the view
    batch: Any  # the global batch size in force
    replacement_refused: Any  # 1 if a replacement was refused, else 0
    exchanged: Any  # the number of peers that leave after their replacements arrive
    target_size: Any  # of the rescale under way; 0 without one
    trained: Any  # the samples trained on before this step
    epoch_samples: Any  # 0 without a loader
    epoch: Any  # of the step
    offset: Any  # the samples of this epoch that are done
    epochs: Any  # the number of passes of the loader over its data; 0 without a loader
    drops: Any  # 1 if an epoch ends before a step that would be smaller, else 0
    now: Any  # the time at which the gradients were ready, in seconds
    began: Any  # the time of this peer's first step
    header: Any  # the sums of samples, losses times samples, posts, and posts that change the membership


# The number of all inputs, and the number of inputs before the header.
GIVEN_NUMBERS = len(MessageNumbers._fields) + 3
_BEFORE_HEADER = GIVEN_NUMBERS - 4


def given_numbers(packed: Sequence[float]) -> MessageNumbers:
    """Host: the inputs at the front of a packed record."""
    given: list[Any] = [*packed[:_BEFORE_HEADER], packed[_BEFORE_HEADER:GIVEN_NUMBERS]]
    return MessageNumbers(*given)


def _job_samples(given: MessageNumbers) -> float:
    """The samples of the whole job; see `kungfu.training.graph.graph_state.ProgressVariables.job_samples`."""
    if not given.epochs > 0:
        return 0.0
    least = max(min(given.batch, given.epoch_samples) if given.drops > 0 else 1.0, 1.0)
    left = (given.epoch_samples - given.offset) // least * least
    whole = given.epoch_samples // least * least
    return float(given.trained + left + (given.epochs - given.epoch - 1) * whole)


def _mean_loss(given: MessageNumbers) -> float:
    samples, loss = given.header[:2]
    # Without samples on any peer there is no loss.
    return _float32(loss / samples) if samples else float("nan")


def _clock_seconds(given: MessageNumbers) -> float:
    elapsed_s = given.now - given.began
    return _float32(elapsed_s) if elapsed_s > 0 else 0.0  # 0 in the first step, which starts the clock


def _float32(number: float) -> float:
    """Rounds to float32; the rounded quotient of two float32 equals their float32 division."""
    return float(np.float32(number))


DERIVED_SOURCES: Mapping[str, Callable[[MessageNumbers], float]] = {
    "step": lambda given: given.steps + 1,
    "local_batch_size": lambda given: _float32(_float32(given.batch) / given.size),
    "global_batch_size": lambda given: _float32(given.batch),
    "job_samples": _job_samples,
    "clock_seconds": _clock_seconds,
    "replacement_refused": lambda given: float(given.replacement_refused > 0),
    "replacing": lambda given: float(given.exchanged > 0),
    "mean_loss": _mean_loss,
    "total_samples": lambda given: given.header[0],
    "pending": lambda given: float(given.header[3] > 0 or given.target_size > 0),
    "barrier_due": lambda given: float(given.header[2] > 0),
    "change_due": lambda given: float(given.header[3] > 0),
    "target_size": lambda given: given.target_size,
}
