"""The gradient noise scale."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.signal import Signal, TrainingSignals

__all__ = ["gradient_noise_scale"]


def gradient_noise_scale(training: TrainingSignals, *, decay: float = 0.01) -> Signal:
    """The batch size, in samples, at which gradient noise and signal balance.

    Peer *i* has the gradient ``g_i`` over ``b_i`` samples, and ``g`` is their mean over all ``B`` samples. With the
    means ``m`` of ``|g_i|²`` and ``h`` of ``1 / b_i`` over the peers that have samples,
    ``S = (m - |g|²) / (h - 1 / B)`` is the trace of the covariance of one sample's gradient and
    ``|G|² = |g|² - S / B`` the squared norm of the true gradient, both without bias however uneven the slices are.
    The noise scale is ``S / |G|²``, each smoothed apart, since single estimates are often negative.

    `decay`: weight of the newest step in the averages, in (0, 1]. Gives: float32 scalar, samples, agreed. On a rescale
    the averages are kept: neither depends on the number of peers. Cost: three floats on the gradient all-reduce, no
    message; two norms over the gradients. Undefined: NaN at size 1 (and while only one peer has samples) until a first
    estimate, and while the smoothed ``|G|²`` is not positive. Two peers with one sample each and gradients [3, 0] and
    [1, 0]: S = 2, |G|² = 3, 2/3 sample. Raises `PolicyError` for a decay out of range.

    McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, appendix A.

    >>> gradient_noise_scale(TrainingSignals()).placement
    'agreed'
    """
    has_samples = training.samples > 0
    own = ops.where(has_samples, ops.norm_squared(training.grads), 0.0)
    inverse = ops.where(has_samples, 1 / training.samples, 0.0)
    peers = ops.all_reduce(ops.where(has_samples, 1.0, 0.0), "sum")
    local = ops.all_reduce(own, "sum") / peers
    inverse_batch = ops.all_reduce(inverse, "sum") / peers
    together = ops.norm_squared(training.mean_grads)
    total = training.total_samples
    noise = ops.where(peers > 1, (local - together) / (inverse_batch - 1 / total), math.nan)
    signal = together - noise / total
    smooth_noise, smooth_signal = noise.ema(decay), signal.ema(decay)
    defined = (smooth_signal > 0) & (training.size > 1)
    return ops.where(defined, smooth_noise / smooth_signal, math.nan).named("noise_scale")
