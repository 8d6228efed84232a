"""A small model of a job on a cluster: its throughput, gradient noise, slow peers and hosts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np

from kungfu.errors import UsageError
from kungfu.signal.whole_number import is_whole_number

CUT = 3.0  # in standard deviations; values beyond it are drawn again
_ONE_HOST = 1_000_000  # the slots of the only host if a model declares no hosts
_A_SPEED = (
    "a fraction above 0 of full speed; let a policy evict a peer that does nothing, or model it as a very slow one"
)


def _require(condition: bool, given: object, fields: Sequence[str], takes: str) -> None:
    """Raises ``UsageError`` that names these fields of a record, their values, and what they take."""
    if not condition:
        named = ", ".join(f"{name}={getattr(given, name)!r}" for name in fields)
        raise UsageError(f"{type(given).__name__}({named}): takes {takes}")


@dataclass(frozen=True)
class Start:
    """The settings at the start of a job: the number of peers and its limits, samples, and the learning rate.

    Args:
        size: The number of peers.
        min_size: The minimum number of peers.
        max_size: The maximum number of peers.
        global_batch_size: Samples per step, over all peers.
        learning_rate: The learning rate of the first step.
        epoch_samples: Samples per epoch, or 0 if the job has no known epochs. The last step of an epoch may have fewer
            samples than the others.
        job_samples: Samples of the whole job, after which it ends; 0 if unknown.

    Raises:
        UsageError: A number is out of range.
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
        ordered, names = whole and self.min_size <= self.size <= self.max_size, ("size", "min_size", "max_size")
        _require(ordered, self, names, "1 <= min_size <= size <= max_size, in whole numbers")
        is_batch = is_whole_number(self.global_batch_size, least=1)
        _require(is_batch, self, ("global_batch_size",), "at least 1 sample, a whole one")
        _require(math.isfinite(self.learning_rate), self, ("learning_rate",), "a finite number")
        for name in ("epoch_samples", "job_samples"):
            is_count = is_whole_number(getattr(self, name), least=0)
            _require(is_count, self, (name,), "a whole number of samples, 0 if unknown")


@dataclass(frozen=True)
class Rescaling:
    """The cost of a change of the cluster.

    Args:
        joining_steps: Steps between the barrier that requests new peers and the barrier at which they can join.
        stop_s: Seconds for which a change of the view stops all peers.
        joining_s: Minimum seconds until a new peer is ready; it joins after both the steps and the seconds have passed.

    Raises:
        UsageError: A number is out of range.
    """

    joining_steps: int = 2
    stop_s: float = 0.1
    joining_s: float = 0.0

    def __post_init__(self) -> None:
        is_count = is_whole_number(self.joining_steps, least=0)
        _require(is_count, self, ("joining_steps",), "a whole number of at least 0 steps")
        for name in ("stop_s", "joining_s"):
            is_time = 0 <= getattr(self, name) < math.inf
            _require(is_time, self, (name,), "a finite number of at least 0 seconds")


@dataclass(frozen=True)
class SlowPeer:
    """A peer that runs at a fraction of full speed, or a place where every peer is slow.

    An id names a peer; a host, or a host and one of its slots, names a place. A replacement has a new id, so it is slow
    only in a slow place.

    Args:
        speed: The fraction of full speed, above 0; the fractions of several entries for a peer are multiplied.
        peer: The id of the peer: the first peers have the ids 0 to size - 1, and each joiner has the next id.
        host: The number of the host, from 0.
        slot: The number of the slot on that host, from 0; ``None`` for all slots.
        from_step: The first slow step.
        until_step: The first step at full speed again; ``None`` for never.

    Raises:
        UsageError: A number is out of range, or the entry names both a peer and a host, or neither.
    """

    speed: float
    peer: int | None = None
    host: int | None = None
    slot: int | None = None
    from_step: int = 1
    until_step: int | None = None

    def __post_init__(self) -> None:
        _require(0 < self.speed < math.inf, self, ("speed",), _A_SPEED)
        is_one = (self.peer is None) != (self.host is None) and (self.slot is None or self.host is not None)
        _require(is_one, self, ("peer", "host", "slot"), "a peer, or a host, or a host and a slot of it")
        for name in ("peer", "host", "slot"):
            is_known = getattr(self, name) is None or is_whole_number(getattr(self, name), least=0)
            _require(is_known, self, (name,), "a whole number from 0 on")
        ends = self.until_step is None or is_whole_number(self.until_step, least=self.from_step + 1)
        are_steps = is_whole_number(self.from_step, least=1) and ends
        _require(are_steps, self, ("from_step", "until_step"), "whole numbers with 1 <= from_step < until_step")

    def names(self, peer: int, place: tuple[int, int], step: int) -> bool:
        """True if this entry applies to a peer at a place (host, slot) in a step."""
        if step < self.from_step or (self.until_step is not None and step >= self.until_step):
            return False
        if self.peer is not None:
            return peer == self.peer
        return place[0] == self.host and self.slot in (None, place[1])


@dataclass(frozen=True)
class PeerSpeeds:
    """The slow peers and uneven step times of a modelled job, which lower its throughput.

    Args:
        jitter: The standard deviation of each peer's step time, as a fraction of the mean. Each step time is drawn from
            a normal distribution truncated at 3 standard deviations. Must be below 1/3: no time is negative.
        seed: The seed of the draws, a non-negative integer. A peer's draws depend only on the seed and the peer's id.
        slow: The slow peers, hosts and slots.

    Raises:
        UsageError: A number is out of range.
    """

    jitter: float = 0.0
    seed: int = 0
    slow: Sequence[SlowPeer] = ()

    def __post_init__(self) -> None:
        fraction = "a fraction of at least 0 and below 1/3 of a peer's step, e.g. 0.05"
        why = "with a draw of minus 3 standard deviations a step must still take some time"
        _require(0 <= self.jitter < 1 / CUT, self, ("jitter",), f"{fraction}; {why}")
        is_seed = is_whole_number(self.seed, least=0, most=2**32 - 1)
        _require(is_seed, self, ("seed",), "a whole number from 0 to 2**32 - 1")

    def factor(self, peer: int, place: tuple[int, int], step: int) -> float:
        """The fraction of full speed of a peer at a place (host, slot) in a step."""
        return math.prod(one.speed for one in self.slow if one.names(peer, place, step))


@dataclass(frozen=True)
class HostSlots:
    """The hosts of a modelled cluster.

    Args:
        slots: The number of slots of each host; empty for a single host with room for all peers.
        joining_speed: The fraction of full speed, above 0 and at most 1, at which the peers of a host run while joiners
            start there and take processor time.

    Raises:
        UsageError: A number is out of range.
    """

    slots: Sequence[int] = ()
    joining_speed: float = 1.0

    def __post_init__(self) -> None:
        are_slots = all(is_whole_number(one, least=1) for one in self.slots)
        _require(are_slots, self, ("slots",), "a whole number of at least 1 for each host")
        _require(0 < self.joining_speed <= 1, self, ("joining_speed",), "a fraction above 0 of full speed, up to 1")

    @property
    def room(self) -> tuple[int, ...]:
        """The number of slots of each host."""
        return tuple(self.slots) or (_ONE_HOST,)


class SimulatedStep(int):
    """The number of a step of a modelled job, from 1, with the state of the job at that step.

    It is an int, so functions that take a plain step number accept it as well.

    Attributes:
        size: The number of peers in the view.
        samples: Samples of this step.
        samples_done: Samples of all previous steps.
        learning_rate: The learning rate of the step, times the last factor that a policy decided in a step before.
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
    """A model of a job, by functions of step and size; the decisions of a policy affect the inputs of later steps.

    Args:
        throughput_by_size: Samples / s of all peers together, as a function of the number of peers or as a table. A
            table is interpolated linearly between its entries, and constant outside them.
        steps: The maximum number of steps; the run is shorter if a rule stops the job or the job's samples are used up.
        start: The settings at the start of the job.
        noise_by_step: The gradient noise scale in samples, as a function of a `SimulatedStep`: the step number, with
            the job's samples, learning rate and size at that step. The true gradient has the norm 1.
        noise_jitter: The standard deviation of the squared norm of the noise in a peer's gradient, as a fraction of its
            mean: the noise is normal in ``2 / noise_jitter**2`` independent directions, so 0.1 stands for 200
            directions and 0.5 for 8. The draws follow the seed of `speeds`. With 0, all squared norms have their
            expected values. From 0 to 1.
        max_local_batch_size: The maximum number of samples of a micro-batch; a larger share of a step is split, as by
            ``training.batches(max_local_batch_size=)``. 0 for no limit.
        loss_by_step: The loss, the same on all peers, as a function like ``noise_by_step``. The gradients of a step are
            finite if its loss is finite; without this function, all gradients are finite.
        speed_by_peer: Fractions of a peer's full speed, by the number of the peer: the first peers have the numbers 0
            to size - 1, and each joiner has the next number. All peers wait for the slowest.
        rescaling: The steps and seconds that a change of the cluster takes.
        speeds: The jitter of each peer's step times, and the slow peers and places, by step.
        hosts: The hosts of the peers, and the slowdown of a host while joiners start there.
        published_by_step: The values that the program publishes in a step, by name; the same on all peers.
        fed_by_step: The values that the program feeds before a step, by name; NaN for a value that is not fed.

    Raises:
        UsageError: A number is out of range, a slow host or slot does not exist in the cluster, or the hosts have no
            room for the first peers.
    """

    throughput_by_size: Callable[[int], float] | Mapping[int, float]
    steps: int
    start: Start = Start()
    noise_by_step: Callable[[SimulatedStep], float] = _unknown
    noise_jitter: float = 0.0
    max_local_batch_size: int = 0
    loss_by_step: Callable[[SimulatedStep], float] = _unknown
    speed_by_peer: Mapping[int, float] = field(default_factory=dict)
    rescaling: Rescaling = Rescaling()
    speeds: PeerSpeeds = field(default_factory=PeerSpeeds)
    hosts: HostSlots = field(default_factory=HostSlots)
    published_by_step: Mapping[str, Callable[[SimulatedStep], float]] = field(default_factory=dict)
    fed_by_step: Mapping[str, Callable[[SimulatedStep], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(is_whole_number(self.steps, least=1), self, ("steps",), "a whole number of at least 1 step")
        _require(0 <= self.noise_jitter <= 1, self, ("noise_jitter",), "a fraction from 0 to 1, e.g. 0.1")
        is_limit = is_whole_number(self.max_local_batch_size, least=0)
        _require(is_limit, self, ("max_local_batch_size",), "a whole number of samples, 0 for no limit")
        if not callable(self.throughput_by_size):
            _check_table(self.throughput_by_size)
        for peer, speed in self.speed_by_peer.items():
            if not is_whole_number(peer, least=0):
                raise UsageError(f"ClusterModel(speed_by_peer={{{peer!r}: ...}}): peers are numbered from 0 on")
            if not 0 < speed < math.inf:
                raise UsageError(f"ClusterModel(speed_by_peer={{{peer!r}: {speed!r}}}): takes {_A_SPEED}")
        room = self.hosts.room
        if sum(room) < self.start.size:
            raise UsageError(
                f"ClusterModel(hosts={self.hosts!r}): {sum(room)} slots for the {self.start.size} peers at the start"
            )
        for one in self.speeds.slow:
            if one.host is not None and (one.host >= len(room) or (one.slot or 0) >= room[one.host]):
                raise UsageError(f"ClusterModel(speeds=...): {one!r} is none of the places of {self.hosts!r}")

    def throughput(self, size: int) -> float:
        """Samples per second with this many peers at full speed. Raises `UsageError` if the model gives no number."""
        table = self.throughput_by_size
        found = float(table(size)) if callable(table) else _interpolated(table, size)
        if not 0 < found < math.inf:
            where = f"{found!r} samples / s with {size} peers"
            raise UsageError(f"ClusterModel(throughput_by_size): {where}; takes a finite number above 0")
        return found

    def has_finite_gradients(self, loss: float) -> bool:
        """True if all entries of the gradients are finite in a step with this loss."""
        return self.loss_by_step is _unknown or math.isfinite(loss)


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
