"""A policy that scales the learning rate with the batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kungfu as kf

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import TrainingSignals


@kf.policy
def linear_scaling(training: TrainingSignals, *, over_steps: float = 0) -> Rule:
    """Scales the learning rate in proportion to the global batch at each rescale, at once or on a linear ramp.

    A batch k times as large averages k times as many gradients, so a step k times as long has the same noise per
    sample: ``rate * global_batch_size / previous_global_batch_size``. A sharp rise may make training diverge; a ramp
    over a few hundred steps does not. A rescale that keeps the global batch changes nothing. If several rescales follow
    each other, each starts from the end value of the previous ramp, so that the product is exact.

    Args:
        training: The signals of a step.
        over_steps: Length of the ramp, steps, at least 0.

    Cost:
        Nothing in any step; the policy is evaluated inside the barrier.

    Reference:
        Goyal et al., *Accurate, Large Minibatch SGD*, 2017; Xie et al., *Elan: Towards Generic and Efficient Elastic
        Training for Deep Learning*, 2020, equations 1 to 3.

    >>> linear_scaling(over_steps=200).name
    'linear_scaling'
    """
    factor = training.global_batch_size / training.previous_global_batch_size
    return kf.control.on_rescale().set_learning_rate(training.learning_rate * factor, over_steps=over_steps)
