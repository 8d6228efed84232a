"""Stragglers: peers that are persistently slower than the others."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.monitor.mark import marked
from kungfu.signal import Fold, Signal, TrainingSignals, fold
from kungfu.signal.fold.fold import labelled

__all__ = ["straggler_fractions", "stragglers"]


@marked
def stragglers(training: TrainingSignals, *, alpha: float = 0.1, threshold: float = 0.8) -> Signal:
    """The peers that are persistently slower than the others: those whose fraction lies below the threshold.

    With 0.8, stragglers cost at most 1.25 times the time of a step. Gives bool, shape (size,), in rank order, agreed.

    Args:
        training: The signals of a step.
        alpha: Weight of the newest step in the averages, in (0, 1].
        threshold: Fraction of the median speed, in [0, 1].

    Raises:
        PolicyError: Alpha or the threshold is out of range.

    Cost:
        As `straggler_fractions`, also on a rescale and where it is undefined.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, algorithm 1.

    >>> str(stragglers(TrainingSignals()).type)
    'bool[size]'
    """
    if not 0 <= threshold <= 1:
        raise PolicyError(f"stragglers(threshold={threshold!r}): a fraction of the median speed, in [0, 1], e.g. 0.8")
    return straggler_fractions(training, alpha=alpha) < threshold


@marked
def straggler_fractions(training: TrainingSignals, *, alpha: float = 0.1) -> Signal:
    """The average speed of each peer, as a fraction of the median peer's.

    A peer's speed is ``samples / busy_seconds``: its own time, without waiting for others. It is gathered, divided by
    the median m over the peers, and averaged on the peer itself, ``a += alpha * (speed / m - a)`` from ``a = 1``: a
    peer that has just joined counts as no straggler. The averages travel with the gradients of the next step. Gives
    float32, shape (size,), in rank order, agreed; as of the step before.

    Args:
        training: The signals of a step.
        alpha: Weight of the newest step, in (0, 1]; with 0.1 a peer at half speed falls below 0.8 in its fifth step.

    Raises:
        PolicyError: Alpha is out of range.

    Cost:
        2 x size floats on the gradient all-reduce, one float of state, no message.

    On rescale:
        Each peer keeps its own average.

    Undefined:
        Never; a step in which a change is pending, a peer has no samples, or a peer has just entered the view is left
        out.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 5.
    """
    if not 0 < alpha <= 1:
        raise PolicyError(
            f"straggler_fractions(alpha={alpha!r}): the weight of the newest step must lie in (0, 1], e.g. 0.1"
        )
    own = ops.where(training.samples > 0, training.samples / training.busy_seconds, math.nan)
    counted = ops.where(training.pending, math.nan, own / ops.median(ops.all_gather(own)))
    return ops.all_gather(_average(counted, alpha=alpha)).named("straggler_fractions")


def _average(fraction: Signal, *, alpha: float) -> Fold:
    """The average before this step, which is known in time to ride on the gradients."""
    average = fold(lambda average, value: average + alpha * (value - average), 1.0, fraction)
    return labelled(average.before_step(), label="average")
