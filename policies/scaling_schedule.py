"""Grow while each added peer still contributes enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Keep, Rule
    from kungfu.signal import Signal, TrainingSignals

__all__ = ["scaling_schedule"]


@kf.policy
def scaling_schedule(
    training: TrainingSignals,
    *,
    max_peers: int,
    min_peers: int = 1,
    efficiency: float = 0.5,
    unit: int = 1,
    every: int = 20,
    keep: Keep = "local_batch_size",
) -> Rule:
    """Add `unit` peers every `every` steps while each of them contributes enough, and stay where that ends.

    With the throughput ``R_k`` measured at k peers, d added peers have the scaling efficiency
    ``s = (R_(k+d) - R_k) / d / (R_k / k)``: the throughput that each of them adds, relative to that of each other peer;
    1 is perfect, below 0 the job became slower. While ``s > efficiency`` the cluster grows; where that fails, it
    returns, or tries the sizes below that it has not seen: see `kf.control.hill_climb`. Throughputs are kept in a table
    by size, of which the entry of the present size is brought up to date; nothing is judged before the size has lasted
    for half of `every` steps.

    Args:
        training: The signals of a step.
        max_peers: Peers; the job's own limits hold as well.
        min_peers: Peers, at least 1.
        efficiency: The least scaling efficiency, in [0, 1].
        unit: Peers added at once, at least 1.
        every: Steps between two decisions, at least 1.
        keep: The batch size that stays as it is.

    Raises:
        PolicyError: At `attach`, for a number out of range.

    Cost:
        One float on the gradient all-reduce, no message; `max_peers` + 1 floats of state.

    Reference:
        Or et al., *Resource Elasticity in Distributed Deep Learning*, 2020, sections 4.1 and 4.2.1.

    >>> scaling_schedule(max_peers=8).name
    'scaling_schedule'
    """
    if not 0 <= efficiency <= 1:
        raise PolicyError(f"scaling_schedule(efficiency={efficiency!r}): takes a number in [0, 1], e.g. 0.5")
    speed = kf.monitor.throughput(training).by_size(max_peers)

    def advantage(peers: Signal) -> Signal:
        """The scaling efficiency of the next peers, beyond what is asked of it."""
        added = (speed[peers + unit] - speed[peers]) / unit
        return added / (speed[peers] / peers) - efficiency

    size = kf.control.hill_climb(advantage, unit=unit, min_peers=min_peers, max_peers=max_peers)
    return kf.control.every(every).when(training.view_steps > every // 2).rescale(size, keep=keep)
