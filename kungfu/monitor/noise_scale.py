"""The gradient noise scale, and its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kungfu import ops
from kungfu.errors import PolicyError
from kungfu.monitor.mark import marked
from kungfu.monitor.variance import gradient_moments
from kungfu.signal import Filled, Signal, TrainingSignals, fold
from kungfu.signal.fold.fold import labelled

_RECENT = 0.05  # weight of the newest step in the recent averages
_RARE = 3.5  # standard errors by which the recent averages must differ: by chance once in some 20,000 steps
_ROUNDING = 1e-3  # a relative difference that may be rounding
_KEPT = 0.25  # fraction of the recent averages' estimates that counts after a change: the others may be older
_MOST_RISE = 10.0  # factor by which a change may raise the deviations: an average may be about 0
_STATE = 11  # numbers


@dataclass(frozen=True)
class NoiseScaleEstimate:
    """The gradient noise scale with its error.

    Attributes:
        value: The noise scale, float32, samples; NaN while it is undefined.
        standard_error: The standard error of `value`, float32, samples; NaN with fewer than two estimates.
        estimates: The number of single-step estimates so far: int64.
    """

    value: Signal
    standard_error: Signal
    estimates: Signal


@marked
def gradient_noise_scale(training: TrainingSignals, *, decay: float = 0.01, every: int = 1) -> Signal:
    """The batch size, in samples, at which gradient noise and signal balance.

    With the gradient's variance `S` over samples and the squared norm ``|G|²`` of the true gradient, both estimated by
    `kungfu.monitor.variance.gradient_moments`, the noise scale is ``S / |G|²``. `S` and ``|G|²`` are smoothed first,
    since single estimates are often negative. For example, for two peers with one sample each and the gradients [3, 0]
    and [1, 0], S is 2, |G|² is 3, and the noise scale is 2/3 sample. Gives a float32 scalar
    in samples, equal on all peers.

    Args:
        decay: Weight of the newest step in the averages, in (0, 1].
        every: Steps between two measurements, at least 1. The averages reach back equally far for any `every`: the
            newest value weighs ``1 - (1 - decay)**every``. Steps without a measurement cost nothing.

    Raises:
        PolicyError: The decay is out of range.

    Cost:
        Five floats on the gradient all-reduce, no additional message; two norms of the gradients. The `local`
        attachment computes the norms while it copies the gradients, at hardly any cost; with Horovod, and on a single
        peer, each norm is a pass over the gradients. With micro-batches, a pass over the gradients for each
        micro-batch, and one more for the share, in every step.

    On rescale:
        The averages are kept: `S` and ``|G|²`` do not depend on the number of peers.

    Undefined:
        NaN until the first estimate, which needs two peers with samples, or a share split into micro-batches; on a
        single peer without micro-batches; and while the smoothed ``|G|²`` is not positive.

    Reference:
        McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, appendix A.

    >>> gradient_noise_scale(TrainingSignals()).placement
    'agreed'
    """
    moments, weight = gradient_moments(training), _weight(decay, every=every)
    noise, signal = (one.ema(weight).sampled(every) for one in (moments.variance, moments.signal))
    defined = (signal > 0) & _is_measured(training, moments.within, every=every)
    return ops.where(defined, noise / signal, math.nan).named("noise_scale")


def noise_scale_estimate(training: TrainingSignals, *, decay: float = 0.005, every: int = 1) -> NoiseScaleEstimate:
    """The gradient noise scale as in `gradient_noise_scale`, with its standard error, and quick to follow a change.

    With the averages ``S`` and ``G`` of a step's estimates ``s`` of the variance and ``g`` of ``|G|²``, the noise scale
    is ``B = S / G``. Its standard error is ``sqrt(var(s - B g) / n) / G``. The variance is that from one step to the
    next, since successive averages have nearly all their steps in common; and ``n = (2 - d) / d * w / (2 - w)`` is the
    number of independent estimates in an exponential average whose weights of d = `decay` add up to w.

    A second pair of averages reaches back 20 steps. If its noise scale differs from `B` by more than 3.5 standard
    errors of the difference, the noise scale has changed: the averages then continue from the second pair. So the
    averages reach back ``1 / decay`` steps, but not beyond a change.

    Args:
        decay: Weight of the newest step in the averages, in (0, 1).
        every: Steps between two measurements, at least 1; see `gradient_noise_scale`.

    Raises:
        PolicyError: The decay is out of range.

    Cost:
        The cost of `gradient_noise_scale`, with 52 bytes of state.

    On rescale:
        The averages are kept: `S` and ``|G|²`` do not depend on the number of peers.

    Undefined:
        As for `gradient_noise_scale`.

    Reference:
        McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, appendix A.

    >>> noise_scale_estimate(TrainingSignals()).standard_error.placement
    'agreed'
    """
    if not 0 < decay < 1:
        raise PolicyError(f"noise_scale_estimate(decay={decay!r}): the newest step's weight lies in (0, 1), e.g. 0.005")
    moments, weight = gradient_moments(training), _weight(decay, every=every)
    state = _averages(moments.variance, moments.signal, weight, every=every)
    scale, signal, number = state[1] / state[2], state[2], _independent(state[0], weight)
    defined = (signal > 0) & _is_measured(training, moments.within, every=every)
    error = ops.sqrt(_spread(scale, *(state[place] for place in (3, 4, 5))) / number) / signal
    value = ops.where(defined, scale, math.nan).named("noise_scale")
    # A first estimate shows no spread.
    standard_error = ops.where(defined & (number > 1.01), error, math.nan)
    return NoiseScaleEstimate(
        value=replace(value, monitor="noise_scale_estimate"),
        standard_error=replace(standard_error, monitor="noise_scale_estimate"),
        estimates=ops.is_finite(moments.variance).count().sampled(every),
    )


def _averages(noise: Signal, signal: Signal, decay: float, *, every: int) -> Signal:
    """The averages as a vector: the sum of weights, `S`, `G`, the variance of s, the covariance of s and g, the
    variance of g; the sum of weights, `S` and `G` of the recent averages; and the last s and g."""
    recent_decay = max(decay, _weight(_RECENT, every=every))

    def update(state: Signal, s: Signal, g: Signal) -> Signal:
        weight, noise, signal, *spreads, recent, recent_noise, recent_signal, last_s, last_g = (
            state[place] for place in range(_STATE)
        )
        recent = recent + recent_decay * (1 - recent)
        recent_noise = recent_noise + recent_decay / recent * (s - recent_noise)
        recent_signal = recent_signal + recent_decay / recent * (g - recent_signal)
        # The variances from step to step: a change of level affects only one difference.
        step_s, step_g, share = s - last_s, g - last_g, decay / ops.maximum(weight, decay)
        in_noise, in_both, in_signal = (
            ops.where(weight > 0, seen + share * (product / 2 - seen), 0.0)
            for seen, product in zip(spreads, (step_s * step_s, step_s * step_g, step_g * step_g), strict=True)
        )
        weight = weight + decay * (1 - weight)
        noise, signal = noise + decay / weight * (s - noise), signal + decay / weight * (g - signal)
        number, recent_number = _independent(weight, decay), _independent(recent, recent_decay)
        # With the noise scale B, S - B G is 0 on average: no quotient of the recent averages is needed.
        scale = noise / signal
        apart = recent_noise - scale * recent_signal
        error = _spread(scale, in_noise, in_both, in_signal) * (1 / recent_number - 1 / number)
        moved = (apart * apart > _RARE * _RARE * error) & (abs(apart) > _ROUNDING * abs(noise))
        moved = moved & (number > 1.25 * recent_number)
        # The deviations keep their size relative to the averages.
        rise, rise_signal = (
            ops.where(moved, ops.clip(now / before, -_MOST_RISE, _MOST_RISE), 1.0)
            for now, before in ((recent_noise, noise), (recent_signal, signal))
        )
        deviations = in_noise * rise * rise, in_both * rise * rise_signal, in_signal * rise_signal * rise_signal
        known = _KEPT * recent_number * decay / (2 - decay)
        continued = (
            ops.where(moved, 2 * known / (1 + known), weight),
            ops.where(moved, recent_noise, noise),
            ops.where(moved, recent_signal, signal),
        )
        renewed = state
        for place, value in enumerate((*continued, *deviations, recent, recent_noise, recent_signal, s, g)):
            renewed = ops.scatter(renewed, place, value)
        return renewed

    return labelled(fold(update, Filled(_STATE, 0.0), noise, signal), label="noise scale averages").sampled(every)


def _weight(decay: float, *, every: int) -> float:
    """The weight of a measurement in every `every`-th step, for averages that reach back as far as with `decay`."""
    return decay if every <= 1 or not 0 < decay < 1 else 1 - (1 - decay) ** every


def _independent(weight: Signal, decay: float) -> Signal:
    """The number of independent estimates whose mean varies as an exponential average with this sum of weights."""
    return (2 - decay) / decay * weight / (2 - weight)


def _spread(scale: Signal, in_noise: Signal, in_both: Signal, in_signal: Signal) -> Signal:
    """The variance of ``s - scale * g`` over single steps, at least 0, from the variances and covariance of s and g."""
    return ops.maximum(in_noise - 2 * scale * in_both + scale * scale * in_signal, 0.0)


def _is_measured(training: TrainingSignals, within: Signal, *, every: int) -> Signal:
    """True if the step has two disjoint groups of samples: two peers, or micro-batches in the last measured step."""
    return (training.size > 1) | ((within if every == 1 else within.hold(every)) > 0)
