"""A policy that stops when the loss or the gradient is no longer finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import TrainingSignals

Watched = Literal["loss", "gradients"]


@kf.policy
def stop_on_nan(training: TrainingSignals, *, steps: int = 3, watch: Watched = "loss") -> Rule:
    """Ends training once the loss, or the gradient, has not been finite for `steps` steps in a row.

    NaN values persist: an update with a NaN gradient makes every weight NaN, and each later step is wasted. The agreed
    value is tested, so one peer with a NaN or infinite loss is enough; all peers stop after the same step.

    Args:
        training: The signals of a step.
        steps: Number of steps in a row, at least 1; more than 1 with a loss-scaling optimizer, which skips single
            steps.
        watch: The mean "loss" of all peers, or every entry of their mean "gradients", which stop being finite one step
            earlier.

    Raises:
        PolicyError: At `attach`, for an argument out of range.

    Cost:
        No message, 8 bytes of state; "gradients" reads every entry of the gradient once per step.

    On rescale:
        The count is kept.

    >>> stop_on_nan(steps=5).name
    'stop_on_nan'
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise PolicyError(f"stop_on_nan(steps={steps!r}): takes a whole number of at least 1, e.g. 3")
    if watch not in get_args(Watched):
        raise PolicyError(f"stop_on_nan(watch={watch!r}): takes one of {', '.join(map(repr, get_args(Watched)))}")
    if watch == "loss":
        finite = kf.ops.is_finite(training.mean_loss)
    else:
        finite = kf.ops.all_finite(training.mean_grads)
    in_a_row = kf.fold(lambda count, good: kf.ops.where(good, 0, count + 1), 0, finite).named("steps_not_finite")
    return kf.control.always().when(in_a_row >= steps).stop()
