"""Maps of the gradients, which are a nest of tensors, to single numbers."""

from __future__ import annotations

from kungfu.ops.vocabulary import operate
from kungfu.signal import Map, Signal

__all__ = ["all_finite", "dot", "max_abs", "norm_squared"]


def norm_squared(grads: Signal) -> Map:
    """The squared Euclidean norm of all gradients together: ``sum of g * g`` over every entry, float32 scalar.

    Cost: one pass over the gradients, about 0.25 ms per million floats.

    >>> from kungfu.signal import TrainingSignals
    >>> norm_squared(TrainingSignals().grads).placement
    'local'
    """
    return operate("norm_squared", grads)


def dot(grads: Signal, others: Signal) -> Map:
    """The scalar product of two nests of gradients: ``sum of g * h`` over every entry, float32 scalar.

    >>> from kungfu.signal import TrainingSignals
    >>> str(dot(TrainingSignals().grads, TrainingSignals().mean_grads))[:14]
    '<local float32'
    """
    return operate("dot", grads, others)


def max_abs(grads: Signal) -> Map:
    """The largest absolute value of any entry of the gradients: float32 scalar, NaN if any entry is, 0 of nothing."""
    return operate("max_abs", grads)


def all_finite(grads: Signal) -> Map:
    """Whether no entry of the gradients is NaN or infinite: bool scalar."""
    return operate("all_finite", grads)
