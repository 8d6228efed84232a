"""Hybrid scaling: keep the batch while strong scaling still pays, double it when it does not.

Xie et al., *Elan*, 2020, algorithm 1. Read literally it also answers for fewer workers: the loop is skipped and the
batch shrinks in proportion, although the text speaks of adding workers only. Both readings are offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from kungfu.errors import UsageError
from kungfu.schedule.curves.curve import Curve, best_gpus, rate_at

__all__ = ["ScaleIn", "hybrid_batch", "hybrid_curve"]

ScaleIn = Literal["shrink", "keep"]


def hybrid_batch(
    batch: int, *, workers: int, target: int, optimum: Callable[[int], int], scale_in: ScaleIn = "shrink"
) -> int:
    """The total batch size, in samples, after going from ``workers`` to ``target`` workers.

    For k = 1, 2, 4, ... up to ``target / workers`` the first ``k * batch`` whose strong-scaling optimum is at least
    ``target`` workers; if there is none, ``batch * target / workers``, rounded down and at least 1.

    Args:
        batch: total batch size before, in samples, at least 1.
        workers: workers before, at least 1.
        target: workers after, at least 1.
        optimum: the number of workers at which a total batch of that many samples trains fastest.
        scale_in: what fewer workers do to the batch: ``"shrink"`` (the algorithm as printed) or ``"keep"``.

    >>> best = {64: 32, 128: 64}.__getitem__
    >>> hybrid_batch(64, workers=8, target=16, optimum=best), hybrid_batch(64, workers=8, target=64, optimum=best)
    (64, 128)
    >>> hybrid_batch(64, workers=8, target=2, optimum=best), hybrid_batch(
    ...     64, workers=8, target=2, optimum=best, scale_in="keep"
    ... )
    (16, 64)
    """
    if min(batch, workers, target) < 1:
        raise UsageError(f"batch {batch}, workers {workers} and target {target} must all be at least 1")
    if target < workers and scale_in == "keep":
        return batch
    factor = 1
    while factor * workers <= target:
        if optimum(factor * batch) >= target:
            return factor * batch
        factor *= 2
    return max(1, batch * target // workers)


def hybrid_curve(family: Mapping[int, Curve], *, batch: int, workers: int, scale_in: ScaleIn = "keep") -> Curve:
    """Samples a second on every number of GPUs when the batch follows ``hybrid_batch``.

    ``T(n) = B(n) * r(B(n), n)`` with B(n) the batch of algorithm 1 and r the measured iterations a second. Only
    measured batches can be looked up: a batch that was not measured becomes the largest measured one below it, or
    the smallest if there is none, so the curve never promises a rate that nobody saw.

    Args:
        family: iterations a second by total batch size, at least ``batch`` itself.
        batch: the job's own total batch size, in samples.
        workers: the GPUs its user asked for, at which the batch is ``batch``.
        scale_in: see ``hybrid_batch``; the default keeps the batch, as small batches were seldom measured.

    >>> family = {64: Curve((1, 2, 4), (4.0, 6.0, 5.0)), 128: Curve((1, 2, 4), (2.0, 4.0, 6.0))}
    >>> hybrid_curve(family, batch=64, workers=1).rates[-1]  # 4 GPUs: past the optimum of 64, so 128 samples
    768.0
    """
    if batch not in family:
        raise UsageError(
            f"no curve was measured at batch {batch}; there are {sorted(family)}: measure it or choose one"
        )
    last = max(curve.gpus[-1] for curve in family.values())
    counts = tuple(range(1, last + 1))
    chosen = [_measured_batch(family, batch=batch, workers=workers, target=n, scale_in=scale_in) for n in counts]
    return Curve(counts, tuple(size * rate_at(family[size], gpus=n) for n, size in zip(counts, chosen, strict=True)))


def _measured_batch(family: Mapping[int, Curve], *, batch: int, workers: int, target: int, scale_in: ScaleIn) -> int:
    def optimum(size: int) -> int:
        return best_gpus(family[size]) if size in family else 0

    wanted = hybrid_batch(batch, workers=workers, target=target, optimum=optimum, scale_in=scale_in)
    return max((size for size in family if size <= wanted), default=min(family))
