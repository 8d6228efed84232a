"""Throughput of the whole job."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.monitor.mark import marked
from kungfu.signal import Signal, TrainingSignals


@marked
def throughput(training: TrainingSignals, *, decay: float = 0.1) -> Signal:
    """The samples per second of all peers together.

    Each peer contributes ``samples / step_seconds`` of its previous step; the sum over the peers is smoothed with
    ``ema(decay)``. Steps while a change is pending do not count: a joiner that starts on the same host slows down the
    other peers, so these steps are typical of neither size. Gives a float32 scalar in samples / s, equal on all peers.

    Args:
        decay: Weight of the newest step in the average, in (0, 1].

    Raises:
        PolicyError: The decay is out of range.

    Cost:
        One float on the gradient all-reduce, no additional message.

    On rescale:
        The average starts again.

    Undefined:
        NaN in the first two steps of a view. The step after any other barrier does not count.

    >>> throughput(TrainingSignals()).placement
    'agreed'
    """
    counted = ops.where(training.pending, math.nan, samples_per_second(training))
    return counted.ema(decay, on_rescale="reset").named("throughput")


def samples_per_second(training: TrainingSignals) -> Signal:
    """Samples / s of all peers in the previous step; NaN in the first two steps of a view and after a barrier."""
    # The latest duration is that of the previous step, so the sample count is delayed by one step.
    before = training.samples.previous(on_rescale="reset")
    return ops.all_reduce(before / training.step_seconds, "sum")
