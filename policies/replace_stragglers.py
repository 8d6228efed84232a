"""Replace peers that are persistently slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kungfu as kf

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import TrainingSignals

__all__ = ["replace_stragglers"]


@kf.policy(budget=kf.Budget(rescales=8, per_steps=800))
def replace_stragglers(
    training: TrainingSignals, *, every: int = 50, threshold: float = 0.8, alpha: float = 0.1
) -> Rule:
    """Replace every peer whose average speed has fallen below a fraction of the median peer's.

    In a synchronous step all wait for the slowest, so one straggler costs as much as if all were as slow. A single slow
    step only moves the average. The straggler goes when its replacement is ready, so the cluster is never slower for
    it.

    Args:
        training: The signals of a step.
        every: Steps between two decisions, at least 1; some times ``1 / alpha``, or a new peer is judged while the
            others' averages still catch up.
        threshold: Fraction of the median speed, in [0, 1]; with 0.8 stragglers cost at most 1.25 times the time of a
            step.
        alpha: Weight of the newest step in the averages, in (0, 1].

    Raises:
        PolicyError: At `attach`, for a number out of range.

    Cost:
        2 x size floats on the gradient all-reduce, no message; see `kf.monitor.straggler_fractions`.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 5 and algorithm 1.

    >>> replace_stragglers(every=100).name
    'replace_stragglers'
    """
    return kf.control.every(every).replace(kf.monitor.stragglers(training, threshold=threshold, alpha=alpha))
