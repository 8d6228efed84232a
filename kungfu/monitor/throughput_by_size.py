"""Throughput by cluster size, and the scaling efficiency."""

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
_FIRST = 10.0  # samples of a view before its throughput is tested for a change
_LEAST = 10.0  # the total excess over the margin, in steps, that makes a change
_TINY = 1e-30  # a mean of 0 has no margin
_RARE = 20.0  # the sum gets this far by chance about once in exp(20) times


@dataclass(frozen=True)
class ThroughputBySize:
    """The table of throughputs.

    Attributes:
        statistics: Samples / s of single steps, by the number of peers.
        moves: The number of times that all entries were deleted because the throughput changed: int64.
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
    patience: int = 40,
) -> ThroughputBySize:
    """The samples per second of single steps, as `statistics_by_size` of the steps that count.

    A step does not count

    - in the first two steps of a view, and after a barrier; also while a change is pending, and in the step after the
      change, since joiners slow down peers even if these joiners never train;
    - while one of the `straggler_fractions` is below `slow`: a straggler delays all peers and is about to be replaced;
    - in the first `patience` steps of a view, while a fraction is below `suspect`. A new peer's average begins at 1, so
      a straggler takes some steps to show; `suspect` detects it earlier.

    When the throughput of a view changes significantly by more than `margin`, earlier measurements are obsolete: all
    entries are deleted. The test is that of Page and Hinkley. Let x be the latest measurement, m the mean of the view's
    measurements, and ``d = margin * m / 2``. The sums ``up = max(0, up + x - m - d)`` and ``down = max(0, down + m - x
    - d)`` grow while x stays more than d above or below m. The throughput has changed when a sum exceeds ``max(20 * d,
    10 * v / d)``, with the variance v from step to step, after at least 10 measurements. A change by twice the margin
    is detected within about 20 steps if the job is quiet, even soon after the start of the view; single disturbed steps
    are ignored.

    Args:
        largest: The largest size that has an entry, peers.
        margin: Fraction of the mean throughput, above 0.
        forget_after: Steps after the last sample of a size until its entry expires.
        slow: Fraction of the median speed below which a peer is a straggler, in [0, 1].
        suspect: Fraction below which a peer may be a straggler, in [0, 1].
        patience: Steps of a view in which `suspect` applies.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        1 + 2 x size floats on the gradient all-reduce (shared with the stragglers' monitors), no additional message;
        20 bytes of state per entry.

    On rescale:
        The table is kept; the test for a change starts again.

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
    # A step's time is known in the next step, so the first step after a cancelled change does not count either.
    is_disturbed = training.pending | _before(training.pending)
    counted = ops.where(is_disturbed | is_slow | is_suspect, math.nan, samples_per_second(training))
    moved = _moved(counted, margin=margin)
    table = counted.statistics_by_size(largest, forget_after=forget_after, strike_all=moved)
    return ThroughputBySize(table, moved.count())


@marked
def scaling_efficiency(training: TrainingSignals, largest: int, *, unit: int = 1) -> Signal:
    """The throughput that each of the last `unit` peers adds, relative to the throughput per peer without them.

    With the mean throughput ``R_n`` at n peers and the present size k, ``s = (R_k - R_(k - unit)) / unit / (R_(k -
    unit) / (k - unit))``: 1 is perfect, below 0 the job became slower. If R_4 = 400 and R_5 = 450, s is 0.5 at 5 peers.
    Gives a float32 scalar, equal on all peers.

    Args:
        largest: The largest size that is measured, peers.
        unit: Peers between the two sizes, at least 1.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        The cost of `throughput_by_size`; all readers of the throughputs share one table.

    Undefined:
        NaN until both sizes have been measured.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.2.1.
    """
    if not is_whole_number(unit, least=1):
        raise PolicyError(f"scaling_efficiency(unit={unit!r}): takes a whole number of peers, at least 1")
    mean, size = throughput_by_size(training, largest).statistics.mean, training.size
    before = ops.where(size > unit, mean[size - unit], math.nan)
    return ((mean[size] - before) / unit / (before / (size - unit))).named("scaling_efficiency")


def _before(flag: Signal) -> Signal:
    """The value of a bool signal in the previous step."""
    made = fold(lambda state, now: (now, state[0]), (False, False), flag, output=lambda state: state[1])
    return labelled(made, label="before")


def _moved(x: Signal, *, margin: float) -> Signal:
    """True in a step in which a test detects a change of the signal's level in this view; the test then restarts."""

    def update(state: tuple[Signal, ...], value: Signal, counts: Signal) -> tuple[Signal, ...]:
        number, mean, variance, last, up, down, _ = state
        n = number + ops.where(counts, 1.0, 0.0)
        centre = mean + (value - mean) / ops.maximum(n, 1.0)
        # The variance from step to step: a change of level affects only one difference.
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
