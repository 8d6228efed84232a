"""The variance of the gradient."""

from __future__ import annotations

import math

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
        training: The signals of a step.
        decay: Weight of the newest step in the average, in (0, 1].

    Raises:
        PolicyError: The decay is out of range.

    Cost:
        Three floats on the gradient all-reduce (shared with the noise scale), no additional message; two norms of the
        gradients, as for `gradient_noise_scale`.

    On rescale:
        The average is kept: the variance does not depend on the number of peers.

    Undefined:
        NaN until the first estimate, which needs two peers with samples.

    Reference:
        Mai et al., *Adaptive Distributed Training of Deep Learning Models*, 2019; McCandlish et al., *An Empirical
        Model of Large-Batch Training*, 2018, appendix A.

    >>> gradient_variance(TrainingSignals()).placement
    'agreed'
    """
    noise, _ = gradient_moments(training)
    return noise.ema(decay).named("gradient_variance")


def gradient_moments(training: TrainingSignals) -> tuple[Signal, Signal]:
    """One step's estimates of the trace `S` of the covariance of a sample's gradient, and of ``|G|²``.

    Peer *i* has the gradient ``g_i`` over ``b_i`` samples, and ``g`` is the mean gradient over all ``B`` samples. With
    the means ``m`` of ``|g_i|²`` and ``h`` of ``1 / b_i`` over the peers that have samples, ``S = (m - |g|²) / (h - 1 /
    B)`` and ``|G|² = |g|² - S / B``, both unbiased, however uneven the shares. A single step may give a negative
    estimate. Gives float32 scalars, equal on all peers.

    Cost:
        Three floats on the gradient all-reduce.

    Undefined:
        NaN while only one peer has samples.
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
    # With one peer, the gradient equals the mean: no estimate is possible.
    noise = ops.where(peers > 1, (local - together) / (inverse_batch - 1 / total), math.nan)
    return noise, together - noise / total
