"""Stragglers: peers that are persistently slower than the others."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.monitor.mark import marked
from kungfu.signal import Fold, Signal, TrainingSignals, fold
from kungfu.signal.fold.fold import labelled

__all__ = ["relative_speed", "stragglers"]


@marked
def stragglers(training: TrainingSignals, *, decay: float = 0.1, threshold: float = 0.8) -> Signal:
    """Which peers are persistently slower than the others: those whose `relative_speed` lies below the threshold.

    With 0.8, what stragglers cost is held to 1.25 times the time of a step. `decay`: weight of the newest step in the
    averages, in (0, 1]. `threshold`: fraction of the median speed, in [0, 1]. Gives: bool, shape (size,), in rank
    order, agreed. Rescale, cost and where it is undefined: as `relative_speed`. Raises `PolicyError` for a decay or
    threshold out of range.

    Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, algorithm 1.

    >>> str(stragglers(TrainingSignals()).type)
    'bool[size]'
    """
    if not 0 <= threshold <= 1:
        raise PolicyError(f"stragglers(threshold={threshold!r}): a fraction of the median speed, in [0, 1], e.g. 0.8")
    return relative_speed(training, decay=decay) < threshold


@marked
def relative_speed(training: TrainingSignals, *, decay: float = 0.1) -> Signal:
    """How fast each peer has been, as a fraction of the median peer of its step, on average.

    A peer's speed is ``samples / busy_seconds``: its own time, in which it waits for nobody. It is gathered, divided by
    the median m over the peers, and averaged on the peer itself, ``a += decay * (speed / m - a)`` from ``a = 1``: who
    has just come counts as no straggler. The averages travel with the gradients of the next step.

    `decay`: weight of the newest step, in (0, 1]; a peer at half speed falls below 0.8 in its fifth step with 0.1.
    Gives: float32, shape (size,), in rank order, agreed; as of the step before. On a rescale each peer keeps its own
    average. A step in which a change is pending, a peer has no samples, or one has just entered the view is left out.
    Cost: 2 x size floats on the gradient all-reduce, one float of state, no message. Raises `PolicyError` for a decay
    out of range.

    Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 5.
    """
    if not 0 < decay <= 1:
        raise PolicyError(
            f"relative_speed(decay={decay!r}): the weight of the newest step must lie in (0, 1], e.g. 0.1"
        )
    own = ops.where(training.samples > 0, training.samples / training.busy_seconds, math.nan)
    counted = ops.where(training.pending, math.nan, own / ops.median(ops.all_gather(own)))
    return ops.all_gather(_average(counted, decay=decay)).named("relative_speed")


def _average(fraction: Signal, *, decay: float) -> Fold:
    """The average before this step, which is known in time to ride on the gradients."""
    average = fold(lambda average, value: average + decay * (value - average), 1.0, fraction)
    return labelled(average.before_step(), label="average")
