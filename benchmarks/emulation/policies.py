"""The policies of the emulated jobs; all arguments are literals, for ``kungfu-run --policy``."""

from __future__ import annotations

from typing import Any

import kungfu as kf
from kungfu import policies

__all__ = ["grown_without_stragglers", "linear_utility", "one_more_every", "step_utility"]

EVERY = 10


def linear_utility(*, value: float, zero_at_s: float, price_per_hour: float, max_peers: int) -> kf.Policy:
    """The policy `utility` with a worth that decreases linearly with time.

    >>> linear_utility(value=20.0, zero_at_s=300.0, price_per_hour=0.01, max_peers=8).name
    'utility'
    """
    return _utility(kf.worth.linear(value, zero_at_s=zero_at_s), price_per_hour, max_peers)


def step_utility(*, value: float, target_s: float, price_per_hour: float, max_peers: int) -> kf.Policy:
    """The policy `utility` with a deadline, after which the job is worth nothing.

    >>> step_utility(value=10.0, target_s=60.0, price_per_hour=0.01, max_peers=8).name
    'utility'
    """
    return _utility(kf.worth.steps({target_s: value}), price_per_hour, max_peers)


def _utility(worth: kf.worth.Worth, price_per_hour: float, max_peers: int) -> kf.Policy:
    return policies.utility(
        worth=worth, price_per_hour=price_per_hour, max_peers=max_peers, every=EVERY, keep="global_batch_size"
    )


@kf.policy
def one_more_every(training: Any, *, seconds: float, max_peers: int) -> Any:
    """A rule that adds one peer at fixed intervals, the second peer at once, whatever they contribute."""
    wanted = kf.ops.minimum(kf.ops.floor(kf.ops.job_seconds() / seconds) + 2, max_peers)
    return kf.control.always().rescale(kf.ops.where(wanted > training.size, wanted, float("nan")))


def grown_without_stragglers(*, seconds: float, max_peers: int, every: int) -> kf.Policy:
    """A policy that adds one peer at fixed intervals and replaces stragglers."""
    return kf.compose(one_more_every(seconds=seconds, max_peers=max_peers), policies.replace_stragglers(every=every))
