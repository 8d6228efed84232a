"""The speeds of single peers of a modelled job: slow ones, and the jitter of each peer's own step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kungfu.errors import UsageError
from kungfu.signal.whole_number import is_whole_number

CUT = 3.0  # standard deviations beyond which a draw is made again
_BLOCK = 128


@dataclass(frozen=True)
class SlowPeer:
    """A peer, or a place for peers, that runs at a fraction of full speed.

    A peer is named by its id, a place by its host, or by a host and a slot there: whichever peer runs in it is slow. A
    peer that replaces another one has an id of its own, so it is slow only in a slow place.

    Args:
        speed: The fraction of full speed, above 0; where several entries name one peer, their product.
        peer: The id: those at the start are 0 to size - 1, each that joins is the next one.
        host: The number of the host, from 0.
        slot: The number of the slot on that host, from 0; ``None`` for all of them.
        from_step: The first step in which it is slow.
        until_step: The first step in which it is as fast as the others again; ``None`` for never.

    Raises:
        UsageError: A number that makes no sense, or neither a peer nor a host, or both.
    """

    speed: float
    peer: int | None = None
    host: int | None = None
    slot: int | None = None
    from_step: int = 1
    until_step: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise UsageError(
                f"SlowPeer(speed={self.speed!r}): takes a fraction above 0 of full speed; let a policy evict a peer "
                "that does nothing, or model it as a very slow one"
            )
        if (self.peer is None) == (self.host is None) or (self.slot is not None and self.host is None):
            named = f"peer={self.peer!r}, host={self.host!r}, slot={self.slot!r}"
            raise UsageError(f"SlowPeer({named}): takes a peer, or a host, or a host and a slot of it")
        for name, number in (("peer", self.peer), ("host", self.host), ("slot", self.slot)):
            if number is not None and not is_whole_number(number, least=0):
                raise UsageError(f"SlowPeer({name}={number!r}): takes a whole number from 0 on")
        later = self.until_step is None or is_whole_number(self.until_step, least=self.from_step + 1)
        if not is_whole_number(self.from_step, least=1) or not later:
            steps = f"from_step={self.from_step!r}, until_step={self.until_step!r}"
            raise UsageError(f"SlowPeer({steps}): takes whole numbers with 1 <= from_step < until_step")

    def names(self, peer: int, place: tuple[int, int], step: int) -> bool:
        """True if it is about this peer, which runs at this place (host, slot), in this step."""
        if step < self.from_step or (self.until_step is not None and step >= self.until_step):
            return False
        if self.peer is not None:
            return peer == self.peer
        return place[0] == self.host and self.slot in (None, place[1])


@dataclass(frozen=True)
class PeerSpeeds:
    """The causes that make single peers slower than the model's throughput, or their steps uneven.

    Args:
        jitter: The standard deviation of each peer's own step time, as a fraction of that time: each peer draws from a
            normal distribution in every step, cut at 3 standard deviations. Below 1/3, so that no time is negative.
        seed: The seed of the draws, a whole number from 0 on. The draws of a peer depend on this and on its id alone.
        slow: The slow peers and places.

    Raises:
        UsageError: A number that makes no sense.
    """

    jitter: float = 0.0
    seed: int = 0
    slow: Sequence[SlowPeer] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < 1 / CUT:
            raise UsageError(
                f"PeerSpeeds(jitter={self.jitter!r}): takes a fraction of at least 0 and below 1/3 of a peer's step, "
                "e.g. 0.05; with a draw of minus 3 standard deviations a step must still take some time"
            )
        if not is_whole_number(self.seed, least=0, most=2**32 - 1):
            raise UsageError(f"PeerSpeeds(seed={self.seed!r}): takes a whole number from 0 to 2**32 - 1")

    def factor(self, peer: int, place: tuple[int, int], step: int) -> float:
        """The fraction of full speed of a peer at a place (host, slot) in a step."""
        return math.prod(one.speed for one in self.slow if one.names(peer, place, step))


@dataclass
class SpeedSampler:
    """The draws of each peer, one per step: by which factor its step takes longer.

    They come from NumPy's legacy generator, the stream of which is the same in every version.

    Attributes:
        speeds: The jitter and the seed.
        streams: A generator for each peer, so that changes of the membership do not change the draws of the others.
    """

    speeds: PeerSpeeds
    streams: dict[int, Iterator[float]] = field(default_factory=dict)

    def durations(self, peers: Sequence[int]) -> list[float]:
        """For each of these peers the time of its next step, as a multiple of the mean."""
        if not self.speeds.jitter:
            return [1.0] * len(peers)
        return [next(self.streams.setdefault(peer, _draws(self.speeds, peer))) for peer in peers]


def _draws(speeds: PeerSpeeds, peer: int) -> Iterator[float]:
    generator = np.random.RandomState([speeds.seed, peer])
    while True:
        block = generator.standard_normal(_BLOCK)
        yield from (1 + speeds.jitter * block[np.abs(block) <= CUT]).tolist()
