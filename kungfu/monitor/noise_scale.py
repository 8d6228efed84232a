"""The gradient noise scale."""

from __future__ import annotations

import math

from kungfu import ops
from kungfu.monitor.mark import marked
from kungfu.monitor.variance import gradient_moments
from kungfu.signal import Signal, TrainingSignals


@marked
def gradient_noise_scale(training: TrainingSignals, *, decay: float = 0.01, every: int = 1) -> Signal:
    """The batch size, in samples, at which gradient noise and signal balance.

    With the gradient's variance `S` over samples and the squared norm ``|G|²`` of the true gradient, both estimated by
    `kungfu.monitor.variance.gradient_moments`, the noise scale is ``S / |G|²``. `S` and ``|G|²`` are smoothed first,
    since single estimates are often negative. For example, for two peers with one sample each and the gradients [3, 0]
    and [1, 0], S is 2, |G|² is 3, and the noise scale is 2/3 sample. Gives a float32 scalar
    in samples, equal on all peers.

    Args:
        training: The signals of a step.
        decay: Weight of the newest step in the averages, in (0, 1].
        every: Steps between two measurements, at least 1. The averages reach back equally far for any `every`: the
            newest value weighs ``1 - (1 - decay)**every``. Steps without a measurement cost nothing.

    Raises:
        PolicyError: The decay is out of range.

    Cost:
        Three floats on the gradient all-reduce, no additional message; two norms of the gradients. The `local`
        attachment computes the norms while it copies the gradients, at hardly any cost; with Horovod, and on a single
        peer, each norm is a pass over the gradients.

    On rescale:
        The averages are kept: `S` and ``|G|²`` do not depend on the number of peers.

    Undefined:
        NaN until the first estimate, which needs two peers with samples, and while the smoothed ``|G|²`` is not
        positive.

    Reference:
        McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, appendix A.

    >>> gradient_noise_scale(TrainingSignals()).placement
    'agreed'
    """
    noise, signal = gradient_moments(training)
    weight = decay if every == 1 or not 0 < decay < 1 else 1 - (1 - decay) ** every
    smooth_noise, smooth_signal = (moment.ema(weight).sampled(every) for moment in (noise, signal))
    defined = (smooth_signal > 0) & (training.size > 1)
    return ops.where(defined, smooth_noise / smooth_signal, math.nan).named("noise_scale")
