"""The remaining time and the cost of a job."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.monitor.mark import marked
from kungfu.monitor.throughput import throughput
from kungfu.signal import Signal, TrainingSignals
from kungfu.signal.whole_number import is_whole_number


@marked
def remaining_samples(training: TrainingSignals, *, samples: int | None = None) -> Signal:
    """The number of samples that the job has yet to train on.

    Gives a float32 scalar in samples, equal on all peers.

    Args:
        samples: The samples of the whole job; by default those of ``training.batches(epochs=...)``.

    Raises:
        PolicyError: `samples` is not a whole number of at least 1.

    Cost:
        No message, no state.

    Undefined:
        NaN if the total is not known, and from the step in which the last sample is trained on.
    """
    if samples is not None and not is_whole_number(samples, least=1):
        raise PolicyError(f"samples={samples!r}: takes the samples of the whole job, a whole number of at least 1")
    left = (training.job_samples if samples is None else samples) - training.samples_done
    return ops.where(left > 0, left * 1.0, math.nan).named("remaining_samples")


@marked
def remaining_seconds(training: TrainingSignals, *, samples: int | None = None, decay: float = 0.1) -> Signal:
    """The seconds until the job is complete at the present speed: `remaining_samples` divided by `throughput`.

    Gives a float32 scalar in seconds, equal on all peers.

    Args:
        samples: As in `remaining_samples`.
        decay: As in `throughput`.

    Raises:
        PolicyError: A number is out of range.

    Cost:
        One float on the gradient all-reduce, no additional message.

    On rescale:
        The throughput's average starts again.

    Undefined:
        NaN if `remaining_samples` or `throughput` is NaN.
    """
    left = remaining_samples(training, samples=samples)
    return (left / throughput(training, decay=decay)).named("remaining_seconds")


@marked
def cost_so_far(training: TrainingSignals, *, price_per_hour: float) -> Signal:
    """The cost of the peers since the job's first step, as the sum of ``size * seconds * price_per_hour / 3600``.

    The time from one step to the next is counted with the number of peers in the later step. Gives a float32 scalar
    in the unit of the price, equal on all peers.

    Args:
        price_per_hour: Price of one peer, at least 0.

    Raises:
        PolicyError: The price is below 0 or not finite.

    Cost:
        One float on the gradient all-reduce, no additional message; six floats of state.

    On rescale:
        The sum is kept.
    """
    if isinstance(price_per_hour, bool) or not 0 <= price_per_hour < math.inf:
        raise PolicyError(f"price_per_hour={price_per_hour!r}: takes a finite price of one peer, at least 0")
    step_s = ops.job_seconds().delta()
    spent = ops.where(ops.is_finite(step_s), training.size * step_s, 0.0).cumulative()
    return (spent * (price_per_hour / 3600)).named("cost_so_far")
