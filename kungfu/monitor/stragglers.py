"""Stragglers: peers that are persistently slower than the others."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.monitor.mark import marked
from kungfu.signal import Fold, Signal, TrainingSignals, fold
from kungfu.signal.fold.fold import labelled


@marked
def stragglers(training: TrainingSignals, *, alpha: float = 0.1, threshold: float = 0.8) -> Signal:
    """The peers that are persistently slower than the others: their `straggler_fractions` are below `threshold`.

    With a threshold of 0.8, all other peers make a step at most 1.25 times as long. Gives bool, shape (size,), in rank
    order, equal on all peers.

    Args:
        alpha: Weight of the newest step in the averages, in (0, 1].
        threshold: Fraction of the median speed, in [0, 1].

    Raises:
        PolicyError: Alpha or the threshold is out of range.

    Cost:
        As for `straggler_fractions`. The behaviour on a rescale and the undefined values are also the same.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, algorithm 1.

    >>> str(stragglers(TrainingSignals()).type)
    'bool[size]'
    """
    _check_threshold(threshold, of="stragglers")
    return straggler_fractions(training, alpha=alpha) < threshold


@marked
def straggler_fractions(training: TrainingSignals, *, alpha: float = 0.1) -> Signal:
    """The average speed of each peer, as a fraction of the median peer's speed.

    A peer's speed is ``samples / busy_seconds``: its busy time excludes the wait for others. The speeds are gathered
    and divided by their median m; each peer averages its own ratio, ``a += alpha * (speed / m - a)`` from ``a = 1``, so
    a new peer is not a straggler. The averages travel with the gradients of the next step. Gives float32, shape
    (size,), in rank order, equal on all peers; the values are those after the previous step.

    A joiner that starts on a host slows down the peers there. Until the joiner is ready, the averages of these peers do
    not change, and the median uses their last speeds in this view without a joiner. All other averages continue.

    Args:
        alpha: Weight of the newest step, in (0, 1]; with 0.1 a peer at half speed falls below 0.8 in its fifth step.

    Raises:
        PolicyError: Alpha is out of range.

    Cost:
        2 x size floats on the gradient all-reduce, two floats of state, no additional message.

    On rescale:
        Each peer keeps its own average.

    Undefined:
        Never. The average of a peer without samples does not change, and the median uses the peer's last speed. In the
        first step after a barrier no average changes.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 5.
    """
    if not 0 < alpha <= 1:
        raise PolicyError(
            f"straggler_fractions(alpha={alpha!r}): the weight of the newest step must lie in (0, 1], e.g. 0.1"
        )
    fraction, _ = _compared(training)
    average = fold(lambda average, value: average + alpha * (value - average), 1.0, fraction)
    return _gathered_before_step(average, label="average").named("straggler_fractions")


@marked
def slowest_in_a_row(training: TrainingSignals, *, threshold: float = 1.0) -> Signal:
    """The number of consecutive steps in which each peer has been the slowest of all.

    A step counts if the peer's speed is the lowest, and below a fraction of the median speed: ``n += 1``. A step in
    which another peer is the slowest, or no peer is below that fraction, resets the count: ``n = 0``. Speeds are those
    of `straggler_fractions`; while a joiner starts on a peer's host, the peer's count does not change. Gives float32,
    shape (size,), in steps, in rank order, equal on all peers; the values are those after the previous step.

    Only one peer can be the slowest, so several stragglers are detected one at a time, and two equally slow peers reset
    each other's count.

    Args:
        threshold: Fraction of the median speed, in [0, 1]; with 1 the slowest peer counts, however small its lag.

    Raises:
        PolicyError: The threshold is out of range.

    Cost:
        2 x size floats on the gradient all-reduce, half of them shared with `straggler_fractions`; two floats of state,
        no additional message.

    On rescale:
        Each peer keeps its count, whatever its new rank.

    Undefined:
        Never, like `straggler_fractions`.

    Reference:
        Wu et al., *Elastic deep learning in multi-tenant GPU cluster*, 2019, section 5.4.

    >>> str(slowest_in_a_row(TrainingSignals()).type)
    'float32[size]'
    """
    _check_threshold(threshold, of="slowest_in_a_row")
    fraction, speeds = _compared(training)
    is_slowest = (ops.argmin(speeds) == training.rank) & (fraction < threshold)
    # A truth value cannot be undefined: an unknown one is passed as NaN, which a fold skips.
    counted = ops.where(ops.is_finite(fraction), ops.where(is_slowest, 1.0, 0.0), math.nan)
    row = fold(lambda row, slowest: ops.where(slowest > 0, row + 1, 0.0), 0.0, counted)
    return _gathered_before_step(row, label="row").named("slowest_in_a_row")


def _compared(training: TrainingSignals) -> tuple[Signal, Signal]:
    """This peer's speed relative to the median (NaN beside a joiner or without samples), and all peers' speeds."""
    is_beside_joiner = training.host_joiners > 0
    own = ops.where(training.samples > 0, training.samples / training.busy_seconds, math.nan)
    last = own.hold(when=~is_beside_joiner, on_rescale="reset")
    # A peer slowed by a joiner, or without a speed, would shift the median for the others: its last speed is used. If
    # this view has no other speed, the slowed speed is used: a low median makes no peer a straggler.
    speeds = ops.all_gather(ops.where(ops.is_finite(last), last, own))
    return ops.where(is_beside_joiner, math.nan, own / ops.median(speeds)), speeds


def _gathered_before_step(own: Fold, *, label: str) -> Signal:
    """The values of all peers before this step; they travel with the gradients."""
    return ops.all_gather(labelled(own.before_step(), label=label))


def _check_threshold(threshold: float, *, of: str) -> None:
    if not 0 <= threshold <= 1:
        raise PolicyError(f"{of}(threshold={threshold!r}): a fraction of the median speed, in [0, 1], e.g. 0.8")
