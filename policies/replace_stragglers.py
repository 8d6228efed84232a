"""A policy that replaces persistently slow peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import Signal, TrainingSignals

Criterion = Literal["average", "slowest_in_a_row"]


@kf.policy(budget=kf.Budget(rescales=8, per_steps=800, replacements=8))
def replace_stragglers(
    training: TrainingSignals,
    *,
    every: int = 10,
    threshold: float = 0.8,
    alpha: float = 0.1,
    criterion: Criterion = "average",
    times: int | None = None,
) -> Rule:
    """Replaces every peer whose average speed has fallen below a fraction of the median speed.

    In a synchronous step all peers wait for the slowest, so one straggler slows the job as if all peers were
    stragglers. A single slow step hardly changes the average. The straggler leaves when its replacement is ready, so
    the cluster is not slower in the meantime.

    With ``criterion="slowest_in_a_row"`` a peer is replaced if it was the slowest of all, and below `threshold`, in
    each of the last `times` steps. This detects stragglers sooner, one at a time, but misses a straggler that is
    sometimes as fast as the others. With ``threshold=1`` this is the published rule, which replaces a peer however
    small its lag; on unequal machines, some peer always lags.

    Args:
        training: The signals of a step.
        every: Steps between two decisions, at least 1. With a smaller number, stragglers are replaced sooner, but so
            are peers whose average is near the threshold, for example because of jitter.
        threshold: Fraction of the median speed, in [0, 1]; with 0.8, peers that are not replaced make a step at most
            1.25 times as long.
        alpha: Weight of the newest step in the averages, in (0, 1].
        criterion: The "average" speed, or the number of steps in which a peer was the "slowest_in_a_row".
        times: Number of steps in a row, at least 1; by default 10; only for "slowest_in_a_row".

    Raises:
        PolicyError: At `attach`, for a number out of range, and for `times` with the criterion "average".

    Cost:
        2 x size floats on the gradient all-reduce, no message; see `kf.monitor.straggler_fractions`.

    On rescale:
        Each peer keeps its average and its count; a new peer starts afresh.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, section 5 and algorithm 1; for
        "slowest_in_a_row" Wu et al., *Elastic deep learning in multi-tenant GPU cluster*, 2019, section 5.4.

    >>> replace_stragglers(every=100).name
    'replace_stragglers'
    """
    return kf.control.every(every).replace(_marked(training, criterion, threshold=threshold, alpha=alpha, times=times))


def _marked(
    training: TrainingSignals, criterion: Criterion, *, threshold: float, alpha: float, times: int | None
) -> Signal:
    """The stragglers according to a criterion: bool, shape (size,)."""
    if criterion not in get_args(Criterion):
        named = " or ".join(map(repr, get_args(Criterion)))
        raise PolicyError(f"replace_stragglers(criterion={criterion!r}): write {named}")
    if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
        raise PolicyError(f"replace_stragglers(times={times!r}): takes a whole number of steps, at least 1, e.g. 10")
    if times is not None and criterion == "average":
        raise PolicyError(
            f"replace_stragglers(times={times}): the criterion 'average' does not count steps; write "
            "criterion='slowest_in_a_row' beside it, or leave it out"
        )
    if criterion == "average":
        return kf.monitor.stragglers(training, threshold=threshold, alpha=alpha)
    return kf.monitor.slowest_in_a_row(training, threshold=threshold) >= (10 if times is None else times)
