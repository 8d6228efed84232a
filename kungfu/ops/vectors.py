"""Maps of vectors (what `all_gather`, `.window(n)` and `.by_size(n)` give), and reductions of the gradients."""

from __future__ import annotations

from kungfu.signal import Map, Signal, Source, operate


def sum(x: Signal) -> Map:
    """The sum of the entries of a vector: float32 scalar."""
    return operate("sum", x)


def mean(x: Signal) -> Map:
    """The mean of the entries of a vector: float32 scalar."""
    return operate("mean", x)


def min(x: Signal) -> Map:
    """The smallest entry of a vector: float32 scalar, NaN if any entry is."""
    return operate("min", x)


def max(x: Signal) -> Map:
    """The largest entry of a vector: float32 scalar, NaN if any entry is."""
    return operate("max", x)


def median(x: Signal) -> Map:
    """The middle entry of a vector, the mean of the middle two for an even number: float32 scalar, NaN if any is."""
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
    """The place of the smallest entry of a vector, from 0, the first of equals, and of a gathered one the rank: int64.
    Entries that are NaN are passed over; if all are, it is 0."""
    return operate("argmin", x)


def argmax(x: Signal) -> Map:
    """The place of the largest entry of a vector; see `argmin`."""
    return operate("argmax", x)


def take(x: Signal, index: Signal | int) -> Map:
    """The entry of a vector at a place, which is also written ``x[index]``; a vector of places gives one of entries.

    Args:
        x: The vector.
        index: int64, from 0, and from the end where negative. Where there is no such place: NaN, 0 or False.

    >>> from kungfu.ops import all_gather
    >>> from kungfu.signal import TrainingSignals
    >>> str(all_gather(TrainingSignals().loss)[0].type)
    'float32'
    """
    return operate("take", x, index)


def scatter(x: Signal, index: Signal | int, value: Signal | float) -> Map:
    """The vector `x` with `value` in the place `index`; unchanged where there is no such place."""
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
    """The ranks of all peers, 0 to size - 1: int64 vector with one entry per peer, agreed. So ``ranks() ==
    kf.ops.argmax(x)`` is true for the peer with the largest entry of `x`."""
    return operate("ranks", Source("size"))


def places(x: Signal) -> Map:
    """The place of each entry of a vector.

    Returns:
        An int64 vector of its length, from 0; of what ``.by_size(n)`` gives it is the cluster size of each entry.

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
        Next to nothing on the `local` attachment, which takes it while it copies the gradients. Elsewhere, and where a
        policy computes with a local norm before it is sent, one pass over the gradients, about 0.25 ms per million
        floats. To avoid that pass, send the norms and compute with what came, as in ``sum(sqrt(all_gather(norm)))``;
        and read a fold of the norm as of the step before, as in ``all_reduce(norm.ema(0.1).before_step(), "mean")``.

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
    """The largest absolute value of any entry of the gradients: float32 scalar, NaN if any entry is, 0 of nothing."""
    return operate("max_abs", grads)


def all_finite(grads: Signal) -> Map:
    """True if no entry of the gradients is NaN or infinite: bool scalar."""
    return operate("all_finite", grads)
