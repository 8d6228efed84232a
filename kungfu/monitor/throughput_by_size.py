"""Throughput by cluster size, and how well the job scales by it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.monitor.mark import marked
from kungfu.monitor.stragglers import straggler_fractions
from kungfu.monitor.throughput import samples_per_second
from kungfu.signal import Signal, SizeStatistics, TrainingSignals, fold
from kungfu.signal.fold.fold import labelled
from kungfu.signal.whole_number import is_whole_number

_RECENT = 0.05  # weight of the newest step in the estimate of the noise
_FIRST = 10.0  # samples of a view before it is judged whether its throughput moved
_LEAST = 10.0  # steps by which a move must exceed the margin in sum
_TINY = 1e-30  # a mean of 0 has no margin
_RARE = 20.0  # chance moves the sum so far about once in exp(20) times


@dataclass(frozen=True)
class ThroughputBySize:
    """The table of throughputs.

    Attributes:
        statistics: Samples / s of single steps, by size.
        moves: The number of times that all entries were struck, because the throughput moved: int64.
    """

    statistics: SizeStatistics
    moves: Signal


def throughput_by_size(
    training: TrainingSignals,
    largest: int,
    *,
    margin: float = 0.1,
    forget_after: int = 5000,
    slow: float = 0.8,
    suspect: float = 0.9,
    patience: int = 300,
) -> ThroughputBySize:
    """The samples per second of single steps, by cluster size: `statistics_by_size` of the steps that count for it.

    A step does not count

    - in the first two steps of a view and after a barrier, and while a change is pending and in the step after, as in
      `throughput`: joiners take time from peers, also those that never come to train;
    - while one of the `straggler_fractions` is below `slow`: a straggler holds up all, and is about to be replaced;
    - in the first `patience` steps of a view also while one is below `suspect`. A new peer's average begins at 1, so a
      straggler takes some steps to show; with `suspect` it is seen before its steps are many.

    When the throughput of a view moves by more than `margin` and is beyond chance, what was measured before is of
    another time: all entries are struck. That is the test of Page and Hinkley: with the mean m of the view's samples x
    and ``d = margin * m / 2``, the sums ``up = max(0, up + x - m - d)`` and ``down = max(0, down + m - x - d)`` grow
    where the samples stay beyond d on one side. It has moved where one of them exceeds ``max(20 * d, 10 * v / d)``, v
    the variance from step to step, after at least 10 samples. A move by twice the margin is seen within some 20 samples
    of a quiet job, also where it comes soon after the view has begun; single disturbed steps make none.

    Args:
        training: The signals of a step.
        largest: The largest size that has an entry, peers.
        margin: Fraction of the mean throughput, above 0.
        forget_after: Steps after the last sample of a size from which on its entry counts no more.
        slow: Fraction of the median speed below which a peer is a straggler, in [0, 1].
        suspect: The same, for a peer that may turn out to be one.
        patience: Steps of a view for which a suspicion holds.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        1 + 2 x size floats on the gradient all-reduce (shared with the stragglers' monitors), no message; 20 bytes of
        state per entry.

    On rescale:
        The table is kept; the test for a move starts again.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 3; Page, *Continuous Inspection
        Schemes*, 1954.

    >>> str(throughput_by_size(TrainingSignals(), 8).statistics.mean.type)
    'float32[9]'
    """
    if not 0 < margin < math.inf:
        raise PolicyError(f"throughput_by_size(margin={margin!r}): takes a fraction above 0, e.g. 0.1")
    fractions = straggler_fractions(training)
    is_slow = ops.any(fractions < slow)
    is_suspect = ops.any(fractions < suspect) & (training.view_steps <= patience)
    # A step's time is known in the next one: the first after a change that came to nothing shows the one before.
    is_disturbed = training.pending | _before(training.pending)
    counted = ops.where(is_disturbed | is_slow | is_suspect, math.nan, samples_per_second(training))
    moved = _moved(counted, margin=margin)
    table = counted.statistics_by_size(largest, forget_after=forget_after, strike_all=moved)
    return ThroughputBySize(table, moved.count())


@marked
def scaling_efficiency(training: TrainingSignals, largest: int, *, unit: int = 1) -> Signal:
    """The throughput that each of the last `unit` peers adds, relative to that of each peer before them.

    With the mean throughput ``R_n`` at n peers and the present size k, ``s = (R_k - R_(k - unit)) / unit / (R_(k -
    unit) / (k - unit))``: 1 is perfect, below 0 the job became slower. Where R_4 = 400 and R_5 = 450, s is 0.5 at 5
    peers. Gives a float32 scalar, agreed.

    Args:
        training: The signals of a step.
        largest: The largest size that is measured, peers.
        unit: Peers between the two sizes, at least 1.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        That of `throughput_by_size`, which is computed once for all that read it.

    Undefined:
        NaN while one of both sizes was not measured.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.2.1.
    """
    if not is_whole_number(unit, least=1):
        raise PolicyError(f"scaling_efficiency(unit={unit!r}): takes a whole number of peers, at least 1")
    mean, size = throughput_by_size(training, largest).statistics.mean, training.size
    before = ops.where(size > unit, mean[size - unit], math.nan)
    return ((mean[size] - before) / unit / (before / (size - unit))).named("scaling_efficiency")


def _before(flag: Signal) -> Signal:
    """A truth value of the step before."""
    made = fold(lambda state, now: (now, state[0]), (False, False), flag, output=lambda state: state[1])
    return labelled(made, label="before")


def _moved(x: Signal, *, margin: float) -> Signal:
    """True once a signal has left its mean over the view for good; only for one step, and then everything restarts."""

    def update(state: tuple[Signal, ...], value: Signal, counts: Signal) -> tuple[Signal, ...]:
        number, mean, variance, last, up, down, _ = state
        n = number + ops.where(counts, 1.0, 0.0)
        centre = mean + (value - mean) / ops.maximum(n, 1.0)
        # From step to step: of a level that moves it sees one step only.
        weight = ops.maximum(1 / ops.maximum(n - 1, 1.0), _RECENT)
        spread = ops.where(n > 1, variance + weight * ((value - last) * (value - last) / 2 - variance), 0.0)
        drift = abs(centre) * (margin / 2)
        higher, lower = ops.maximum(up + value - centre - drift, 0.0), ops.maximum(down + centre - value - drift, 0.0)
        threshold = ops.maximum(2 * _LEAST * drift, _RARE / 2 * spread / ops.maximum(drift, _TINY))
        moved = counts & (n > _FIRST) & (ops.maximum(higher, lower) > threshold)
        now = (centre, spread, value, higher, lower)
        kept = (ops.where(counts, new, old) for new, old in zip(now, (mean, variance, last, up, down), strict=True))
        centre, spread, value, higher, lower = kept
        return (
            ops.where(moved, 0.0, n), centre, spread, value,
            ops.where(moved, 0.0, higher), ops.where(moved, 0.0, lower), moved,
        )  # fmt: skip

    counts = ops.is_finite(x)
    made = fold(
        update,
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, False),
        ops.where(counts, x, 0.0),
        counts,
        output=lambda state: state[6],
        on_rescale="reset",
    )
    return labelled(made, label="moved")
