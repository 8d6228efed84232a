"""Maps of scalars and of vectors, entry by entry; maps of whole vectors; and reductions of the gradients."""

from __future__ import annotations

from typing import get_args

from kungfu.errors import PolicyError
from kungfu.signal import DType, Map, Signal, Source, as_signal, operate


def constant(value: bool | int | float) -> Signal:
    """A number or truth value that is the same in every step. Python numbers are converted where needed."""
    return as_signal(value)


def cast(x: Signal | float, dtype: DType) -> Map:
    """The value of a signal in another dtype.

    A number is true unless it is 0, and a truth value becomes 1 or 0. A float32 cast to int64 loses its fraction and is
    clipped to ±2**53; a value that is not finite becomes 0.

    Args:
        x: A number or a truth value.
        dtype: "bool", "int64" or "float32".

    Raises:
        PolicyError: There is no such dtype.

    >>> from kungfu.signal import TrainingSignals
    >>> str(cast(TrainingSignals().mean_loss, "int64").type)
    'int64'
    """
    if dtype not in get_args(DType):
        raise PolicyError(f"cast(x, {dtype!r}): a signal is one of {', '.join(map(repr, get_args(DType)))}")
    return operate(f"to_{dtype}", x)


def abs(x: Signal | float) -> Map:
    """The absolute value, of the same dtype."""
    return operate("abs", x)


def sqrt(x: Signal | float) -> Map:
    """The square root: float32, NaN below 0."""
    return operate("sqrt", x)


def exp(x: Signal | float) -> Map:
    """The exponential: float32."""
    return operate("exp", x)


def log(x: Signal | float) -> Map:
    """The natural logarithm: float32, NaN below 0."""
    return operate("log", x)


def round(x: Signal | float) -> Map:
    """The nearest whole number, with halves rounded to even: float32."""
    return operate("round", x)


def floor(x: Signal | float) -> Map:
    """The largest whole number that is not above `x`: float32."""
    return operate("floor", x)


def ceil(x: Signal | float) -> Map:
    """The smallest whole number that is not below `x`: float32."""
    return operate("ceil", x)


def minimum(x: Signal | float, y: Signal | float) -> Map:
    """The smaller of two numbers, entry by entry; NaN if either is NaN."""
    return operate("minimum", x, y)


def maximum(x: Signal | float, y: Signal | float) -> Map:
    """The larger of two numbers, entry by entry; NaN if either is NaN."""
    return operate("maximum", x, y)


def clip(x: Signal | float, low: Signal | float, high: Signal | float) -> Map:
    """A number clipped to two bounds.

    Returns:
        ``min(max(x, low), high)``; NaN stays NaN.

    >>> from kungfu.signal import TrainingSignals
    >>> clip(TrainingSignals().size, 1, 8).type
    SignalType(dtype='int64', shape=())
    """
    return minimum(maximum(x, low), high)


def is_finite(x: Signal | float) -> Map:
    """True if a number is neither NaN nor infinite: bool."""
    return operate("is_finite", x)


def sum(x: Signal) -> Map:
    """The sum of the entries of a vector: float32 scalar."""
    return operate("sum", x)


def mean(x: Signal) -> Map:
    """The mean of the entries of a vector: float32 scalar."""
    return operate("mean", x)


def min(x: Signal) -> Map:
    """The smallest entry of a vector: float32 scalar, NaN if any entry is NaN."""
    return operate("min", x)


def max(x: Signal) -> Map:
    """The largest entry of a vector: float32 scalar, NaN if any entry is NaN."""
    return operate("max", x)


def median(x: Signal) -> Map:
    """The median of a vector (of even length: mean of the middle two): float32 scalar, NaN if any entry is NaN."""
    return operate("median", x)


def any(x: Signal) -> Map:
    """True if any entry of a vector of truth values is true: bool scalar."""
    return operate("any", x)


def all(x: Signal) -> Map:
    """True if every entry of a vector of truth values is true: bool scalar."""
    return operate("all", x)


def count(x: Signal) -> Map:
    """The number of true entries of a vector of truth values: int64 scalar."""
    return operate("count", x)


def argmin(x: Signal) -> Map:
    """The index of the first smallest entry of a vector: int64. In a gathered vector the index is the rank. NaN entries
    are skipped; if all entries are NaN, the result is 0."""
    return operate("argmin", x)


def argmax(x: Signal) -> Map:
    """The index of the first largest entry of a vector; see `argmin`."""
    return operate("argmax", x)


def take(x: Signal, index: Signal | int) -> Map:
    """The entry of a vector at an index, also written ``x[index]``; a vector of indices gives a vector of entries.

    Args:
        x: The vector.
        index: int64, from 0; a negative index counts from the end. An index out of range gives NaN, 0 or False.

    >>> from kungfu.ops import all_gather
    >>> from kungfu.signal import TrainingSignals
    >>> str(all_gather(TrainingSignals().loss)[0].type)
    'float32'
    """
    return operate("take", x, index)


def scatter(x: Signal, index: Signal | int, value: Signal | float) -> Map:
    """The vector `x` with `value` at `index`; unchanged if the index is out of range."""
    return operate("scatter", x, index, value)


def one_hot(index: Signal | int, value: Signal | float, *, fill: bool | float = 0) -> Map:
    """A vector with one entry per peer.

    Returns:
        `value` for the peer of rank `index`, `fill` for every other.

    >>> from kungfu.signal import TrainingSignals
    >>> str(one_hot(TrainingSignals().size - 1, True, fill=False).type)
    'bool[size]'
    """
    return scatter(operate("fill", fill, Source("size")), index, value)


def ranks() -> Map:
    """The ranks of all peers, 0 to size - 1: int64 vector, equal on all peers. For example, ``ranks() ==
    kf.ops.argmax(x)`` is true for the peer with the largest entry of `x`."""
    return operate("ranks", Source("size"))


def places(x: Signal) -> Map:
    """The index of each entry of a vector.

    Returns:
        An int64 vector of the same length, from 0; for ``.by_size(n)`` the index is the cluster size.

    >>> from kungfu.signal import TrainingSignals
    >>> str(places(TrainingSignals().mean_loss.by_size(4)).type)
    'int64[5]'
    """
    return operate("places", x)


# ---- the gradients --------------------------------------------------------------------------------------------------


def norm_squared(grads: Signal) -> Map:
    """The squared Euclidean norm of all gradients together: ``sum of g * g`` over every entry, float32 scalar.

    Args:
        grads: The nest: ``training.grads`` or ``training.mean_grads``.

    Cost:
        Next to nothing on the `local` attachment, which computes the norm while it copies the gradients. One pass over
        the gradients, about 0.25 ms per million floats, with another attachment, or if a collective sends a value that
        a policy computes from this peer's norm. To avoid that pass, gather the norms first, as in
        ``sum(sqrt(all_gather(norm)))``, and read an average of norms as it was before the step, as in
        ``all_reduce(norm.ema(0.1).before_step(), "mean")``.

    >>> from kungfu.signal import TrainingSignals
    >>> norm_squared(TrainingSignals().grads).placement
    'local'
    """
    return operate("norm_squared", grads)


def dot(grads: Signal, others: Signal) -> Map:
    """The scalar product of two nests of gradients.

    Returns:
        ``sum of g * h`` over every entry: float32 scalar.

    >>> from kungfu.signal import TrainingSignals
    >>> str(dot(TrainingSignals().grads, TrainingSignals().mean_grads))[:14]
    '<local float32'
    """
    return operate("dot", grads, others)


def max_abs(grads: Signal) -> Map:
    """The largest absolute value in the gradients: float32 scalar, NaN if any entry is NaN, 0 without entries."""
    return operate("max_abs", grads)


def all_finite(grads: Signal) -> Map:
    """True if no entry of the gradients is NaN or infinite: bool scalar."""
    return operate("all_finite", grads)
