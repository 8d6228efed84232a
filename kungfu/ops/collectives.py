"""The clock of the job, and the collectives, which turn each peer's own value into one value for all peers."""

from __future__ import annotations

from typing import Literal

from kungfu.errors import PolicyError
from kungfu.ops.maps import maximum
from kungfu.signal import Collective, Signal, Source, fold, where
from kungfu.signal.operation import NEST, SCALAR, VECTOR


def all_reduce(x: Signal, reduction: Literal["sum", "mean"]) -> Collective:
    """The sum or the mean of a signal over all peers.

    Gives float32 of the same shape (a vector is reduced entry by entry), equal on all peers. A peer's NaN makes the
    result NaN.

    Args:
        x: A number, or a vector with one entry per peer.
        reduction: "sum" or "mean".

    Raises:
        PolicyError: The reduction is unknown, or `x` is a nest of gradients (these are already averaged) or a vector of
            a fixed length.

    Cost:
        One float (or `size` floats) on the gradient all-reduce if `x` is known before that message; else a share in one
        small extra message.

    >>> from kungfu.signal import TrainingSignals
    >>> all_reduce(TrainingSignals().loss, "mean").placement
    'agreed'
    """
    if reduction not in ("sum", "mean"):
        raise PolicyError(f'all_reduce(x, {reduction!r}): a peer can add or average; write "sum" or "mean"')
    if x.type.shape == NEST:
        raise PolicyError(f"all_reduce of {x!r}: use training.mean_grads, or reduce kf.ops.norm_squared(x)")
    if x.type.shape not in (SCALAR, VECTOR):
        raise PolicyError(f"all_reduce of {x!r}: takes a number, or a vector with one entry per peer; reduce it first")
    return Collective(reduction, x)


def all_gather(x: Signal) -> Collective:
    """The values of all peers as a vector in rank order.

    Gives float32, shape (size,), equal on all peers. A peer's NaN stays in its own entry.

    Args:
        x: A scalar.

    Raises:
        PolicyError: The signal is not a scalar.

    Cost:
        `size` floats on the gradient all-reduce if `x` is known before that message; else a share in one small extra
        message.
    """
    if x.type.shape != SCALAR:
        raise PolicyError(f"all_gather of {x!r}: takes one number a peer; reduce it first, as in kf.ops.mean(x)")
    return Collective("gather", x)


def weighted_mean(x: Signal, weight: Signal) -> Signal:
    """The weighted mean of a signal over all peers, ``sum(w x) / sum(w)``.

    Gives float32 of the same shape, equal on all peers. A peer with weight 0 is left out, whatever its value.

    Args:
        x: A number, or a vector with one entry per peer.
        weight: A number of at least 0; with ``training.samples``, each peer counts by its number of samples.

    Raises:
        PolicyError: As for `all_reduce`.

    Cost:
        Two floats (or `size` + 1) on the gradient all-reduce if both signals are known before that message.

    Undefined:
        NaN if all weights are 0.

    >>> from kungfu.signal import TrainingSignals
    >>> weighted_mean(TrainingSignals().loss, TrainingSignals().samples).placement
    'agreed'
    """
    # A choice, not a product: a peer without samples has NaN, and NaN * 0 would spoil the sum.
    return all_reduce(where(weight > 0, x * weight, 0.0), "sum") / all_reduce(weight, "sum")


def job_seconds() -> Signal:
    """Seconds since the job's first step by the clock of rank 0: float32, equal on all peers, never decreasing.

    A peer that becomes rank 0 started its clock later than its predecessor; the difference is added.

    Cost:
        One float on the gradient all-reduce, two floats of state, no additional message.

    On rescale:
        The count continues.
    """
    clock = all_reduce(where(Source("rank") == 0, Source("clock_seconds"), 0.0), "sum")

    def update(state: tuple[Signal, ...], now: Signal) -> tuple[Signal, ...]:
        base, before = state
        return base + maximum(before - now, 0.0), now

    return fold(update, (0.0, 0.0), clock, output=lambda state: state[0] + state[1]).named("job_seconds")
