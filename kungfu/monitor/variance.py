"""The variance of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kungfu import ops
from kungfu.monitor.mark import marked
from kungfu.signal import Signal, TrainingSignals


@marked
def gradient_variance(training: TrainingSignals, *, decay: float = 0.01) -> Signal:
    """The variance of single samples' gradients: the trace of their covariance, ``E |g_s - G|²``.

    The variance is the `S` of `gradient_moments`, smoothed with ``ema(decay)``. Over a batch of B samples, the gradient
    of the step has the variance ``S / B`` around the true gradient. For example, if two peers have one sample each and
    the gradients [3, 0] and [1, 0], the variance is 2. Gives a float32 scalar in squared units of the gradient, equal
    on all peers.

    Args:
        decay: Weight of the newest step in the average, in (0, 1].

    Raises:
        PolicyError: The decay is out of range.

    Cost:
        Five floats on the gradient all-reduce (shared with the noise scale), no additional message; norms of the
        gradients, as for `gradient_noise_scale`.

    On rescale:
        The average is kept: the variance does not depend on the number of peers.

    Undefined:
        NaN until the first estimate, which needs two peers with samples, or a share split into micro-batches.

    Reference:
        Mai et al., *Adaptive Distributed Training of Deep Learning Models*, 2019; McCandlish et al., *An Empirical
        Model of Large-Batch Training*, 2018, appendix A.

    >>> gradient_variance(TrainingSignals()).placement
    'agreed'
    """
    return gradient_moments(training).variance.ema(decay).named("gradient_variance")


@dataclass(frozen=True)
class GradientMoments:
    """One step's estimates of the gradient's variance over samples, and of the squared norm of the true gradient.

    Attributes:
        variance: The trace `S` of the covariance of a single sample's gradient; NaN without two disjoint groups of
            samples.
        signal: ``|G|²``; NaN with `variance`.
        within: The degrees of freedom of the estimate within the peers' shares: the number of micro-batches with
            samples minus one, summed over the peers. 0 without micro-batches.
    """

    variance: Signal
    signal: Signal
    within: Signal


def gradient_moments(training: TrainingSignals) -> GradientMoments:
    """One step's estimates of the trace `S` of the covariance of a sample's gradient, and of ``|G|²``.

    Peer *i* has the gradient ``g_i`` over ``b_i`` samples, and ``g`` is the mean gradient over all ``B`` samples. With
    the means ``m`` of ``|g_i|²`` and ``h`` of ``1 / b_i`` over the P peers that have samples, ``S_between = (m - |g|²)
    / (h - 1 / B)``. A share that is split into ``u_i`` micro-batches gives a further estimate ``S_i`` (see
    `TrainingSignals.micro_batch_variance`). `S` is the mean of all estimates, weighted by their degrees of freedom:
    ``P - 1`` for ``S_between``, ``u_i - 1`` for each ``S_i``; and ``|G|² = |g|² - S / B``. Both are unbiased, however
    uneven the shares. A single step may give a negative estimate. The results are float32 scalars, equal on all peers.

    Cost:
        Five floats on the gradient all-reduce.

    Undefined:
        NaN while only one peer has samples, and these samples are not split into micro-batches.
    """
    # A peer without samples has no gradient: the sums and the number of peers exclude it.
    has_samples = training.samples > 0
    own = ops.where(has_samples, ops.norm_squared(training.grads), 0.0)
    inverse = ops.where(has_samples, 1 / training.samples, 0.0)
    peers = ops.all_reduce(ops.where(has_samples, 1.0, 0.0), "sum")
    local = ops.all_reduce(own, "sum") / peers
    inverse_batch = ops.all_reduce(inverse, "sum") / peers
    together = ops.norm_squared(training.mean_grads)
    total = training.total_samples
    # With one peer, the gradient equals the mean: only its micro-batches can show the variance.
    between = ops.where(peers > 1, (local - together) / (inverse_batch - 1 / total) * (peers - 1), 0.0)
    degrees = ops.maximum(training.micro_batches - 1, 0) * 1.0
    own_within = ops.where(degrees > 0, degrees * training.micro_batch_variance, 0.0)
    within, freedom = ops.all_reduce(own_within, "sum"), ops.all_reduce(degrees, "sum")
    known = freedom + peers - 1
    variance = ops.where(known > 0, (between + within) / known, math.nan)
    return GradientMoments(variance, together - variance / total, freedom)
