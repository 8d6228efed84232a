"""A small model of a job on a cluster: its throughput, gradient noise, slow peers and hosts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np

from kungfu.errors import UsageError
from kungfu.signal.whole_number import is_whole_number
from kungfu.testing.peer_speeds import PeerSpeeds
from kungfu.testing.simulated_hosts import HostSlots


@dataclass(frozen=True)
class Start:
    """The start of a job: the number of peers with its limits, the samples and the learning rate.

    Args:
        size: The number of peers.
        min_size: The least number of peers that the job may have.
        max_size: The largest number of peers that the job may have.
        global_batch_size: Samples of a step, over all peers.
        learning_rate: The learning rate of the first step.
        epoch_samples: Samples of an epoch, whose last step may be smaller than the others; 0 for a job without known
            epochs.
        job_samples: Samples of the whole job, after which the job ends; 0 if unknown.

    Raises:
        UsageError: A number is out of its range.
    """

    size: int = 2
    min_size: int = 1
    max_size: int = 16
    global_batch_size: int = 64
    learning_rate: float = 0.1
    epoch_samples: int = 0
    job_samples: int = 0

    def __post_init__(self) -> None:
        whole = all(is_whole_number(one, least=1) for one in (self.min_size, self.size, self.max_size))
        if not whole or not self.min_size <= self.size <= self.max_size:
            raise UsageError(
                f"Start(size={self.size!r}, min_size={self.min_size!r}, max_size={self.max_size!r}): takes "
                "1 <= min_size <= size <= max_size, in whole numbers"
            )
        if not is_whole_number(self.global_batch_size, least=1):
            raise UsageError(
                f"Start(global_batch_size={self.global_batch_size!r}): takes at least 1 sample, a whole one"
            )
        if not math.isfinite(self.learning_rate):
            raise UsageError(f"Start(learning_rate={self.learning_rate!r}): takes a finite number")
        for name in ("epoch_samples", "job_samples"):
            if not is_whole_number(getattr(self, name), least=0):
                raise UsageError(
                    f"Start({name}={getattr(self, name)!r}): takes a whole number of samples, 0 if unknown"
                )


@dataclass(frozen=True)
class Rescaling:
    """The cost of a change of the cluster.

    Args:
        joining_steps: Steps between the barrier that requests new peers and the barrier at which they can join.
        stop_s: Seconds for which a change of the view stops all peers.
        joining_s: Least seconds that a new peer takes to get ready; both the steps and the seconds must have passed.

    Raises:
        UsageError: A number is out of its range.
    """

    joining_steps: int = 2
    stop_s: float = 0.1
    joining_s: float = 0.0

    def __post_init__(self) -> None:
        if not is_whole_number(self.joining_steps, least=0):
            raise UsageError(
                f"Rescaling(joining_steps={self.joining_steps!r}): takes a whole number of at least 0 steps"
            )
        for name in ("stop_s", "joining_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(
                    f"Rescaling({name}={getattr(self, name)!r}): takes a finite number of at least 0 seconds"
                )


class SimulatedStep(int):
    """The number of a step of a modelled job, from 1, with the state of the job at that step.

    It is an int, so functions of a plain step number accept it as well.

    Attributes:
        size: The number of peers in the view.
        samples: Samples of this step.
        samples_done: Samples of the steps before this one.
        learning_rate: The learning rate of the step.
        seconds: Seconds since the first step began.
    """

    size: int
    samples: int
    samples_done: int
    learning_rate: float
    seconds: float

    def __new__(
        cls, number: int, *, size: int, samples: int, samples_done: int, learning_rate: float, seconds: float
    ) -> SimulatedStep:
        made = super().__new__(cls, number)
        vars(made).update(
            size=size, samples=samples, samples_done=samples_done, learning_rate=learning_rate, seconds=seconds
        )
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a step of a model does not change: {name!r} was set to {value!r}")


def _unknown(step: int) -> float:
    return math.nan


@dataclass(frozen=True)
class ClusterModel:
    """A model of a job by step and by size, in which the decisions of a policy change its later inputs.

    Args:
        throughput_by_size: Samples / s of all peers together, as a function of the number of peers or as a table, which
            is interpolated linearly between its entries and constant outside.
        steps: The largest number of steps; the run is shorter if a rule stops the job or the job's samples are done.
        start: The start of the job.
        noise_by_step: The gradient noise scale in samples, as a function of a `SimulatedStep`, which serves as the step
            number and holds batch, learning rate, size and samples done. The norms of the gradients have the
            expected values for this noise scale and ``|G|² = 1``.
        loss_by_step: The loss, equal on all peers; a function like ``noise_by_step``. Gradients are finite in a step
            with a finite loss, and always if this is left out.
        speed_by_peer: Fractions of a peer's full speed, by the number of the peer: the peers at the start have the
            numbers 0 to size - 1, each joiner the next number. All peers wait for the slowest.
        rescaling: The steps and the seconds that a change of the cluster takes.
        speeds: The jitter of each peer's step, and the peers or places that are slow, by step.
        hosts: The hosts of the peers, and the slowdown of a host while joiners start there.
        published_by_step: The values that the program's step publishes, by name, equal on all peers.
        fed_by_step: The values that the program feeds before a step, by name; NaN for a value that is not fed.

    Raises:
        UsageError: A number is out of its range, a slow host or slot does not exist in the cluster, or the hosts have
            no room for the first peers.
    """

    throughput_by_size: Callable[[int], float] | Mapping[int, float]
    steps: int
    start: Start = Start()
    noise_by_step: Callable[[SimulatedStep], float] = _unknown
    loss_by_step: Callable[[SimulatedStep], float] = _unknown
    speed_by_peer: Mapping[int, float] = field(default_factory=dict)
    rescaling: Rescaling = Rescaling()
    speeds: PeerSpeeds = field(default_factory=PeerSpeeds)
    hosts: HostSlots = field(default_factory=HostSlots)
    published_by_step: Mapping[str, Callable[[SimulatedStep], float]] = field(default_factory=dict)
    fed_by_step: Mapping[str, Callable[[SimulatedStep], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_whole_number(self.steps, least=1):
            raise UsageError(f"ClusterModel(steps={self.steps!r}): takes a whole number of at least 1 step")
        if not callable(self.throughput_by_size):
            _check_table(self.throughput_by_size)
        for peer, speed in self.speed_by_peer.items():
            if not is_whole_number(peer, least=0):
                raise UsageError(f"ClusterModel(speed_by_peer={{{peer!r}: ...}}): peers are numbered from 0 on")
            if not 0 < speed < math.inf:
                raise UsageError(
                    f"ClusterModel(speed_by_peer={{{peer!r}: {speed!r}}}): takes a fraction above 0 of full speed; let "
                    "a policy evict a peer that does nothing, or model it as a very slow one"
                )
        room = self.hosts.room
        if sum(room) < self.start.size:
            raise UsageError(
                f"ClusterModel(hosts={self.hosts!r}): {sum(room)} slots for the {self.start.size} peers at the start"
            )
        for one in self.speeds.slow:
            if one.host is not None and (one.host >= len(room) or (one.slot or 0) >= room[one.host]):
                raise UsageError(f"ClusterModel(speeds=...): {one!r} is none of the places of {self.hosts!r}")

    def throughput(self, size: int) -> float:
        """Samples a second with this many peers at full speed; raises `UsageError` if the model has no such value."""
        table = self.throughput_by_size
        found = float(table(size)) if callable(table) else _interpolated(table, size)
        if not 0 < found < math.inf:
            where = f"{found!r} samples / s with {size} peers"
            raise UsageError(f"ClusterModel(throughput_by_size): {where}; takes a finite number above 0")
        return found

    def has_finite_gradients(self, step: SimulatedStep) -> bool:
        """True if every entry of the gradients of a step is finite."""
        return self.loss_by_step is _unknown or math.isfinite(self.loss_by_step(step))


def _check_table(table: Mapping[int, float]) -> None:
    if not table:
        raise UsageError("ClusterModel(throughput_by_size={}): takes at least one size with its samples / s")
    for size, speed in table.items():
        is_number = isinstance(speed, SupportsFloat) and 0 < float(speed) < math.inf
        if not is_whole_number(size, least=1) or not is_number:
            raise UsageError(
                f"ClusterModel(throughput_by_size={{{size!r}: {speed!r}}}): takes a whole number of peers, each with a "
                "finite number of samples / s above 0; a size that was not measured is left out"
            )


def _interpolated(table: Mapping[int, float], size: int) -> float:
    sizes, speeds = zip(*sorted(table.items()), strict=True)
    return float(np.interp(size, sizes, speeds))
