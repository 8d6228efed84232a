"""A policy that adds peers while finishing earlier is worth more than the peers cost."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Growth, Keep, Rule, SizeEstimate
    from kungfu.control.hook import Control
    from kungfu.signal import Signal, TrainingSignals
    from kungfu.worth import Worth

_LOOKS = (0.5, 0.25, 0.125)  # fractions of the samples left; the fewer are left, the less the end depends on the size


@kf.policy(budget=kf.Budget(rescales=24, per_steps=1200, replacements=24))
def utility(
    training: TrainingSignals,
    *,
    worth: Worth,
    price_per_hour: float,
    max_peers: int,
    samples: int | None = None,
    min_peers: int = 1,
    unit: int = 1,
    every: int = 10,
    max_global_batch: int | None = None,
    keep: Keep = "local_batch_size",
    growth: Growth = "linear",
    look_ahead: int = 0,
    margin: float = 0.1,
) -> tuple[Rule, Rule]:
    """Adds peers while the earlier end of the job is worth more than the peers cost.

    With the throughput ``R_k`` at k peers, the time ``T_p`` so far and n samples to go, the job would end after ``T(k)
    = T_p + n / R_k`` seconds and cost ``k * n / R_k * price`` from now on. With the worth ``U``, `unit` peers are added
    while ``U(T(k + unit)) - U(T(k))`` exceeds the difference in cost. Sizes are tried and measured as in `autoscale`,
    up to a local optimum. Comparing differences instead of totals avoids adding peers where the worth is flat. A
    settled job is evaluated again when half, a quarter and an eighth of its samples are left: the fewer samples are
    left, the less the end depends on the size, so a deadline may then need fewer peers, or more. To use the scaling
    efficiency while the worth is unknown, write ``kf.first(utility(...), autoscale(...))``: the utility has priority
    once it is known.

    Args:
        training: The signals of a step.
        worth: The worth of a completed job as a function of its time: `kf.worth.linear`, `kf.worth.concave`,
            `kf.worth.steps`, or `kf.worth.points`.
        price_per_hour: Price of one peer, in the unit of the values, at least 0.
        max_peers: As in `autoscale`.
        samples: Samples of the whole job; by default those of all epochs of ``training.batches``.
        min_peers: As in `autoscale`.
        unit: As in `autoscale`.
        every: As in `autoscale`.
        max_global_batch: As in `autoscale`.
        keep: As in `autoscale`.
        growth: As in `autoscale`.
        look_ahead: As in `autoscale`.
        margin: As in `autoscale`.

    Raises:
        PolicyError: At `attach`, for a worth that rises with time or a number out of range; after the first step, if
            the job's number of samples is not known.

    Cost:
        2 + 2 x size floats on the gradient all-reduce, no message; 20 bytes of state per size.

    On rescale:
        As in `autoscale`.

    Undefined:
        If the job trains on more samples than `samples`, its end cannot be estimated: the size is kept, and each peer
        reports this once.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 4.2.2.

    >>> utility(worth=kf.worth.steps({3600: 100}), price_per_hour=0.768, max_peers=8).name
    'utility'
    """
    _check(worth, price_per_hour)
    kf.control.check_peers(min_peers=min_peers, max_peers=max_peers)
    measured = kf.monitor.throughput_by_size(training, max_peers, margin=margin)
    left, spent_s = kf.monitor.remaining_samples(training, samples=samples), kf.ops.job_seconds()
    first_s = _first(spent_s + left / measured.statistics.mean[training.size])

    def cost(at: SizeEstimate) -> Signal:
        return at.peers * (left / at.mean) * (price_per_hour / 3600)

    def value(at: SizeEstimate) -> Signal:
        """The worth of the job if it continues with this number of peers, minus its cost."""
        return worth.at(spent_s + left / at.mean, first=first_s) - cost(at)

    def advantage(fewer: SizeEstimate, more: SizeEstimate) -> Signal:
        return value(more) - value(fewer)

    said = training.job_samples if samples is None else kf.ops.constant(samples)
    walk = kf.control.settled_walk(
        advantage, measured.statistics, unit=unit, min_peers=min_peers, max_peers=max_peers, look_ahead=look_ahead,
        growth=growth, every=every, view_steps=training.view_steps, moved=measured.moves + _looks(left, said),
    )  # fmt: skip
    known = kf.ops.is_finite(left)
    peers = kf.ops.where(known, walk.size, math.nan)
    rule = kf.control.every(every).rescale(peers, keep=keep, max_global_batch=max_global_batch)
    rule = rule.showing(
        remaining_samples=left, job_seconds=spent_s,
        gain_from_peers=walk.fewer.peers, gain_to_peers=walk.more.peers,
        end_before_s=spent_s + left / walk.fewer.mean, end_after_s=spent_s + left / walk.more.mean,
        cost_before=cost(walk.fewer), cost_after=cost(walk.more), gain=walk.gain, gain_error=walk.gain_error,
    )  # fmt: skip
    once = kf.control.always().when(~known).cooldown(steps=1 << 40)
    return rule, once.call(_tell, training.samples_done, said)


def _check(worth: Worth, price_per_hour: float) -> None:
    if not isinstance(worth, kf.worth.Worth):
        raise PolicyError(f"utility(worth={worth!r}): takes a kf.worth, e.g. kf.worth.linear(100, zero_at_s=3600)")
    worth.check()
    if isinstance(price_per_hour, bool) or not 0 <= price_per_hour < math.inf:
        raise PolicyError(f"utility(price_per_hour={price_per_hour!r}): takes a finite price of at least 0")


def _first(x: Signal) -> Signal:
    """The first finite value of a signal."""

    def update(state: tuple[Signal, ...], value: Signal) -> tuple[Signal, ...]:
        return kf.ops.where(state[1], state[0], value), kf.ops.constant(True)

    return kf.fold(update, (math.nan, False), x).named("first_estimate_s")


def _looks(left: Signal, said: Signal) -> Signal:
    """The number of new evaluations that are due in a settled job so far: int64."""
    first, *rest = (kf.ops.where(left < said * share, 1, 0) for share in _LOOKS)
    return sum(rest, start=first)


def _tell(control: Control, done: int, samples: int) -> None:
    """Hook: reports that the end of the job cannot be estimated."""
    if not samples:
        raise PolicyError(
            "how many samples the whole job has is not known, since it does not use training.batches(...); say it, as "
            "in utility(samples=1_000_000, ...)"
        )
    print(
        f"kungfu: policy 'utility': {done} samples are done and the job was said to have {samples}; from here on its "
        "end is not known, and the policy keeps the job as it is",
        file=sys.stderr,
        flush=True,
    )
