"""A policy whose global batch follows the gradient noise scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import TrainingSignals

Grow = Literal["peers", "batch", "both"]
_LEAST_CHANGE = 0.05  # of the noise scale: a smaller one is not worth a change
_MOST_ERROR = 1 / 3  # of the noise scale: with a larger one, |G|² may as well be 0


@kf.policy(budget=kf.Budget(rescales=10, per_steps=1000, replacements=10))
def gns_batch(
    training: TrainingSignals,
    *,
    max_peers: int | None = None,
    min_peers: int = 2,
    grow: Grow = "peers",
    max_batch: int | None = None,
    decay: float = 0.005,
    every: int = 50,
    sample_every: int = 1,
    min_estimates: int = 20,
    margin: float = 1.0,
) -> Rule | tuple[Rule, ...]:
    """Lets the global batch follow the gradient noise scale, by more peers or by accumulation.

    The noise scale is the largest useful batch: below it, a larger batch saves steps almost in proportion; above it,
    hardly any. With the noise scale `B` and its standard error (see `kf.monitor.noise_scale_estimate`), every `every`
    steps:

    - ``grow="peers"``: ``peers = clip(round(B / local_batch_size), min_peers, max_peers)``; the local batch size is
      kept. A request needs ``|B / local_batch_size - peers now|`` to exceed half a peer by the margin.
    - ``grow="batch"``: the size is kept, and the global batch becomes `B`, at least the first local batch size on each
      peer, at most `max_batch`. A request needs a difference from the present batch beyond the margin.
    - ``grow="both"``: peers first, with the first local batch size. Where there are no more peers, the batch grows
      further; when `B` falls, first the batch shrinks and then the number of peers.

    The margin is `margin` standard errors, and at least 5 % of `B`: a job whose noise scale lies between two sizes
    keeps one of them.

    Args:
        training: The signals of a step.
        max_peers: The maximum number of peers, at least 1; the job's own limits apply as well. Required unless `grow`
            is "batch".
        min_peers: The minimum number of peers, at least 1.
        grow: The means by which the global batch grows.
        max_batch: The maximum global batch in samples; required unless `grow` is "peers".
        decay: Weight of the newest step in the averages of the noise scale, in (0, 1).
        every: Steps between two decisions, at least 1.
        sample_every: Steps between two measurements, at least 1. If the norms of the gradients need separate passes
            (with Horovod), these passes are most of the cost of the policy.
        min_estimates: Measurements before the first decision, at least 2.
        margin: Standard errors of the noise scale, at least 0.

    Raises:
        PolicyError: At `attach`, for bounds that cross, a missing bound, and a number out of range.

    Cost:
        No message, five floats on the gradient all-reduce; see `kf.monitor.gradient_noise_scale`.

    Undefined:
        Nothing happens while the noise scale is undefined, or its standard error exceeds a third of it, so that
        ``|G|²`` may be 0. At size 1 without micro-batches it is undefined for good, hence ``min_peers=2``.

    Reference:
        McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018; Mai et al., *Adaptive Distributed
        Training of Deep Learning Models*, listing 1.

    >>> gns_batch(max_peers=8).name
    'gns_batch'
    """
    most_peers = _checked(
        max_peers, min_peers=min_peers, grow=grow, max_batch=max_batch, min_estimates=min_estimates, margin=margin
    )
    estimate = kf.monitor.noise_scale_estimate(training, decay=decay, every=sample_every)
    noise, error = estimate.value, estimate.standard_error
    is_known = (estimate.estimates >= min_estimates) & (error <= _MOST_ERROR * abs(noise))
    beyond = kf.ops.maximum(margin * error, _LEAST_CHANGE * noise)
    most_samples = math.inf if max_batch is None else max_batch
    useful = noise if max_batch is None else kf.ops.minimum(noise, most_samples)
    trigger, shown = kf.control.every(every).when(is_known), {"noise_scale": noise, "noise_scale_error": error}
    size = training.size
    local = training.local_batch_size * 1.0
    if grow != "peers":
        first = kf.ops.fold(lambda seen, now: kf.ops.where(seen > 0, seen, now), 0.0, local)
        local = kf.ops.minimum(local, first)

    # A request that is under way counts as the present size: otherwise each decision within the margin would undo it.
    now = kf.ops.where(training.target_size > 0, training.target_size, size)
    moves = abs(noise - now * local) > 0.5 * local + beyond
    peers = kf.ops.clip(kf.ops.where(moves, kf.ops.round(useful / local), now), min_peers, most_peers)
    if grow == "peers":
        return trigger.rescale(peers).showing(**shown, local_batch_size=training.local_batch_size)

    least = local * size
    moves = abs(noise - training.global_batch_size) > beyond
    batch = kf.ops.where(moves, kf.ops.clip(useful, least, most_samples), math.nan)
    if grow == "batch":
        return trigger.set_global_batch_size(batch).showing(**shown)

    is_largest = (size >= kf.ops.minimum(training.max_size, most_peers)) | (training.refused_size > size)
    accumulates = training.local_batch_size > local * (1 + _LEAST_CHANGE)
    # Peers are asked for at the first local batch size: a larger batch shrinks to it before the size changes.
    by_peers = trigger.when(~accumulates).rescale(peers)
    by_batch = trigger.when(~training.pending & (is_largest | accumulates)).set_global_batch_size(
        kf.ops.where(is_largest, batch, least)
    )
    return by_peers.showing(**shown, local_batch_size=training.local_batch_size), by_batch.showing(**shown)


def _checked(
    max_peers: int | None,
    *,
    min_peers: int,
    grow: str,
    max_batch: int | None,
    min_estimates: int,
    margin: float,
) -> int:
    """The maximum number of peers; raises `PolicyError` for a missing bound, or a number out of range."""
    if grow not in get_args(Grow):
        raise PolicyError(f"gns_batch(grow={grow!r}): write one of {', '.join(get_args(Grow))}")
    if max_peers is None and grow != "batch":
        raise PolicyError(
            f"gns_batch(grow={grow!r}): max_peers is missing, the maximum number of peers; e.g. max_peers=8"
        )
    if max_batch is None and grow != "peers":
        raise PolicyError(
            f"gns_batch(grow={grow!r}): max_batch is missing, the maximum global batch in samples; e.g. max_batch=4096"
        )
    for name, value, least in (("max_batch", max_batch, 1), ("min_estimates", min_estimates, 2)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise PolicyError(f"gns_batch({name}={value!r}): takes a whole number of at least {least}")
    if isinstance(margin, bool) or not 0 <= margin < math.inf:
        raise PolicyError(f"gns_batch(margin={margin!r}): takes a number of standard errors, at least 0, e.g. 1.0")
    most = min_peers if max_peers is None else max_peers
    kf.control.check_peers(min_peers=min_peers, max_peers=most)
    return most
