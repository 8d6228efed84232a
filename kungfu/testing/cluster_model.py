"""A small model of a job on a cluster: how fast it is, how noisy its gradients are, who is slow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kungfu.errors import UsageError

__all__ = ["ClusterModel", "Rescaling", "Start"]


@dataclass(frozen=True)
class Start:
    """Where a job begins: its peers, the limits of their number, the samples of a step, and the learning rate."""

    size: int = 2
    min_size: int = 1
    max_size: int = 16
    global_batch_size: int = 64
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.size <= self.max_size:
            raise UsageError(
                f"Start(size={self.size!r}, min_size={self.min_size!r}, max_size={self.max_size!r}): takes "
                "1 <= min_size <= size <= max_size"
            )
        if self.global_batch_size < 1:
            raise UsageError(f"Start(global_batch_size={self.global_batch_size!r}): takes at least 1 sample")


@dataclass(frozen=True)
class Rescaling:
    """The cost of a change of the cluster: steps in which a new peer is being prepared, and seconds of standstill."""

    joining_steps: int = 2
    stop_s: float = 0.1


def _unknown(step: int) -> float:
    return math.nan


@dataclass(frozen=True)
class ClusterModel:
    """A job by step and by size: the decisions of a policy change what it sees next.

    Args:
        throughput_by_size: Samples / s of all peers together, as a function of their number or a table of it, with
            straight lines between the entries and the nearest entry outside.
        steps: How many steps are run.
        start: Where the job begins.
        noise_by_step: The gradient noise scale, samples; the norms of the gradients have the values that follow from
            it on average, with ``|G|² = 1``.
        loss_by_step: The loss, equal on all peers.
        speed_by_peer: Fractions of a peer's full speed, by the number of the peer: those at the start are 0 to
            size - 1, each that joins is the next one. All wait for the slowest.
        rescaling: The steps and the seconds that a change of the cluster takes.
    """

    throughput_by_size: Callable[[int], float] | Mapping[int, float]
    steps: int
    start: Start = Start()
    noise_by_step: Callable[[int], float] = _unknown
    loss_by_step: Callable[[int], float] = _unknown
    speed_by_peer: Mapping[int, float] = field(default_factory=dict)
    rescaling: Rescaling = Rescaling()

    def __post_init__(self) -> None:
        for peer, speed in self.speed_by_peer.items():
            if not 0 < speed < math.inf:
                raise UsageError(
                    f"ClusterModel(speed_by_peer={{{peer!r}: {speed!r}}}): takes a fraction above 0 of full speed; let "
                    "a policy evict a peer that does nothing, or model it as a very slow one"
                )

    def throughput(self, size: int) -> float:
        """Samples a second with so many peers at full speed; raises `UsageError` for a model that has none."""
        table = self.throughput_by_size
        found = float(table(size)) if callable(table) else _interpolated(table, size)
        if not 0 < found < math.inf:
            where = f"{found!r} samples / s with {size} peers"
            raise UsageError(f"ClusterModel(throughput_by_size): {where}; takes a finite number above 0")
        return found


def _interpolated(table: Mapping[int, float], size: int) -> float:
    if not table:
        raise UsageError("ClusterModel(throughput_by_size={}): takes at least one size with its samples / s")
    below = max((one for one in table if one <= size), default=min(table))
    above = min((one for one in table if one >= size), default=max(table))
    if below >= above:
        return float(table[above if below > size else below])
    share = (size - below) / (above - below)
    return table[below] + share * (table[above] - table[below])
