"""Grow while an earlier end is worth more than it costs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Keep, Rule
    from kungfu.signal import Signal, TrainingSignals

__all__ = ["worth_the_cost"]


@kf.policy
def worth_the_cost(
    training: TrainingSignals,
    worth: Mapping[float, float],
    *,
    samples: int,
    price_per_hour: float,
    max_peers: int,
    min_peers: int = 1,
    unit: int = 1,
    every: int = 20,
    keep: Keep = "local_batch_size",
) -> Rule:
    """Add peers while the job's earlier end is worth more than what they cost.

    With the throughput ``R_k`` at k peers, the time ``T_p`` so far and n samples to go, the job would end after
    ``T(k) = T_p + n / R_k`` seconds and cost ``k * n / R_k * price`` from here on. `unit` peers are added while
    ``U(T(k + unit)) - U(T(k))`` exceeds the difference in cost, and the sizes are tried as in `scaling_schedule`.
    Comparing differences, and not worth with cost, keeps it from adding peers where the worth is flat.

    Args:
        training: The signals of a step.
        worth: U as points ``{seconds from the job's start to its end: value}``, falling, with straight lines between
            them and flat outside; so a step down from one value to another is a pair of points.
        samples: Samples of the whole job.
        price_per_hour: Price of one peer, in the unit of the values, at least 0.
        max_peers: As in `scaling_schedule`.
        min_peers: As in `scaling_schedule`.
        unit: As in `scaling_schedule`.
        every: As in `scaling_schedule`.
        keep: As in `scaling_schedule`.

    Raises:
        PolicyError: At `attach`, for points that rise, and for a number out of range.

    Cost:
        Two floats on the gradient all-reduce, no message; `max_peers` + 5 numbers of state.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.2.2.

    >>> worth_the_cost({3600: 100, 7200: 0}, samples=1_000_000, price_per_hour=0.768, max_peers=8).name
    'worth_the_cost'
    """
    _check(worth, samples=samples, price_per_hour=price_per_hour)
    speed = kf.monitor.throughput(training).by_size(max_peers)
    left = kf.ops.maximum(samples - training.samples_done, 0)
    spent_s = kf.ops.job_seconds()

    def value(peers: Signal) -> Signal:
        """What the job is worth if it goes on with that many peers, less what that costs."""
        seconds = left / speed[peers]
        return _interpolated(spent_s + seconds, worth) - peers * seconds * (price_per_hour / 3600)

    def advantage(peers: Signal) -> Signal:
        return value(peers + unit) - value(peers)

    size = kf.control.hill_climb(advantage, unit=unit, min_peers=min_peers, max_peers=max_peers)
    return kf.control.every(every).when(training.view_steps > every // 2).rescale(size, keep=keep)


def _interpolated(seconds: Signal, points: Mapping[float, float]) -> Signal:
    """The value at a moment: the sum of what is lost on each straight piece, from the first point on."""
    ordered = sorted(points.items())
    value = ordered[0][1] + 0 * seconds  # NaN where the moment is
    for (start, high), (end, low) in itertools.pairwise(ordered):
        value = value - (high - low) * kf.ops.clip((seconds - start) / (end - start), 0.0, 1.0)
    return value


def _check(worth: Mapping[float, float], *, samples: int, price_per_hour: float) -> None:
    values = [value for _, value in sorted(worth.items())] if isinstance(worth, Mapping) else []
    if not values or any(later > earlier for earlier, later in itertools.pairwise(values)):
        raise PolicyError(f"worth_the_cost({worth!r}): takes {{seconds: value}} with values that fall, or stay")
    if samples < 1 or not 0 <= price_per_hour < float("inf"):
        raise PolicyError(
            f"worth_the_cost(samples={samples!r}, price_per_hour={price_per_hour!r}): takes at least one sample and a "
            "finite price of at least 0"
        )
