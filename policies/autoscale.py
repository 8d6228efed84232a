"""A policy that adds peers while each of them contributes enough throughput."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Growth, Keep, Rule, SizeEstimate
    from kungfu.signal import Signal, TrainingSignals


@kf.policy(budget=kf.Budget(rescales=24, per_steps=1200, replacements=24))
def autoscale(
    training: TrainingSignals,
    *,
    max_peers: int,
    min_peers: int = 1,
    efficiency: float = 0.1,
    unit: int = 1,
    every: int = 10,
    max_global_batch: int | None = None,
    keep: Keep = "local_batch_size",
    growth: Growth = "linear",
    look_ahead: int = 0,
    margin: float = 0.1,
) -> Rule:
    """Adds `unit` peers every `every` steps while each of them contributes enough throughput.

    With the throughput ``R_k`` at k peers, d added peers have the scaling efficiency ``s = (R_(k+d) - R_k) / d / (R_k /
    k)``: the throughput that each of them adds, relative to the throughput per peer before; 1 is perfect, below 0 the
    job became slower. While ``s > efficiency`` the cluster grows; otherwise it returns to a smaller size, or tries the
    next smaller untried size: see `kf.control.hill_climb`. Throughputs are measured by
    `kf.monitor.throughput_by_size`: no step counts while peers join or a peer is a straggler, and a difference counts
    only if it exceeds three times its standard error. A local optimum ends the walk; a new walk begins when the
    throughput changes by `margin`.

    While a straggler is marked, nothing is measured and the size does not change: combine `autoscale` with a policy
    that replaces stragglers.

    Args:
        training: The signals of a step.
        max_peers: The maximum number of peers; the job's own limits apply as well.
        min_peers: The minimum number of peers, at least 1.
        efficiency: The scaling efficiency that must be exceeded, the paper's S: any finite number; below 0 a job grows
            even if it becomes slower, so -1e9 disables the limit.
        unit: Peers added at once, at least 1: the paper's K.
        every: Steps between two decisions, at least 1: the paper's N. A size is judged by at least `every` samples, and
            by three times as many if the result is not clear.
        max_global_batch: The local batch size is kept until the global batch reaches this number of samples; after
            that, the global batch is kept. ``None``: no limit.
        keep: The batch size that a rescale keeps.
        growth: "linear" adds `unit` peers at a time, as in the paper; "exponential" adds `unit`, 2 `unit`, 4 `unit` and
            so on, and halves the range between the last two sizes in the end.
        look_ahead: Units tried beyond a failing size before the walk returns, at least 0.
        margin: Fraction by which the throughput of a settled job must change for a new walk to begin, above 0.

    Raises:
        PolicyError: At `attach`, for a number out of range.

    Cost:
        1 + 2 x size floats on the gradient all-reduce, no message; 20 bytes of state per size.

    On rescale:
        The table is kept; the entry of a size that is reached with a new peer is deleted.

    Undefined:
        Nothing happens while the throughput is undefined. With a rule or a hook that acts in every step, only half of
        the steps count: a step after a barrier has no measured time.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, sections 2.2, 4.1 and 4.2.1.

    >>> autoscale(max_peers=8).name
    'autoscale'
    """
    if isinstance(efficiency, bool) or not math.isfinite(efficiency):
        raise PolicyError(f"autoscale(efficiency={efficiency!r}): takes a finite number, e.g. 0.1")
    kf.control.check_peers(min_peers=min_peers, max_peers=max_peers)

    def advantage(fewer: SizeEstimate, more: SizeEstimate) -> Signal:
        """The scaling efficiency from one size to another, minus the required efficiency."""
        added = (more.mean - fewer.mean) / (more.peers - fewer.peers)
        return added / (fewer.mean / fewer.peers) - efficiency

    measured = kf.monitor.throughput_by_size(training, max_peers, margin=margin)
    walk = kf.control.settled_walk(
        advantage, measured.statistics, unit=unit, min_peers=min_peers, max_peers=max_peers, look_ahead=look_ahead,
        growth=growth, every=every, view_steps=training.view_steps, moved=measured.moves,
    )  # fmt: skip
    rule = kf.control.every(every).rescale(walk.size, keep=keep, max_global_batch=max_global_batch)
    return rule.showing(
        efficiency_from_peers=walk.fewer.peers, efficiency_to_peers=walk.more.peers,
        throughput_before=walk.fewer.mean, throughput_after=walk.more.mean,
        efficiency=walk.gain + efficiency, efficiency_error=walk.gain_error, efficiency_asked=efficiency,
    )  # fmt: skip
