"""A policy whose global batch follows the gradient noise scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kungfu as kf

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import TrainingSignals


@kf.policy(budget=kf.Budget(rescales=10, per_steps=1000, replacements=10))
def gns_batch(
    training: TrainingSignals,
    *,
    max_peers: int,
    min_peers: int = 2,
    decay: float = 0.01,
    every: int = 50,
    sample_every: int = 1,
) -> Rule:
    """Requests the number of peers at which the global batch equals the noise scale, the largest useful batch.

    Every `every` steps: ``peers = clip(round(noise_scale / local_batch_size), min_peers, max_peers)``, and the local
    batch size is kept, so the global batch grows with the cluster. Below the noise scale, a larger batch saves steps
    almost in proportion; above it, hardly any.

    Args:
        training: The signals of a step.
        max_peers: The maximum number of peers, at least 1; the job's own limits apply as well.
        min_peers: The minimum number of peers, at least 1.
        decay: Weight of the newest step in the averages of the noise scale, in (0, 1].
        every: Steps between two decisions, at least 1.
        sample_every: Steps between two measurements, at least 1. If the norms of the gradients need separate passes
            (with Horovod), these passes are most of the cost of the policy.

    Raises:
        PolicyError: At `attach`, for bounds that cross, and for a number out of range.

    Cost:
        No message, three floats on the gradient all-reduce; see `kf.monitor.gradient_noise_scale`.

    Undefined:
        Nothing happens while the noise scale is undefined. At size 1 the noise scale is always undefined, and no rule
        based on it could fire again, hence ``min_peers=2``.

    Reference:
        McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018; Mai et al., *Adaptive Distributed
        Training of Deep Learning Models*, listing 1.

    >>> gns_batch(max_peers=8).name
    'gns_batch'
    """
    kf.control.check_peers(min_peers=min_peers, max_peers=max_peers)
    noise = kf.monitor.gradient_noise_scale(training, decay=decay, every=sample_every)
    peers = kf.ops.clip(kf.ops.round(noise / training.local_batch_size), min_peers, max_peers)
    return kf.control.every(every).rescale(peers)
