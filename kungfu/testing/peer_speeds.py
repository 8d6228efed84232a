"""The speeds of single peers of a modelled job: slow peers, and the jitter of each peer's step times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kungfu.errors import UsageError
from kungfu.signal.whole_number import is_whole_number

CUT = 3.0  # in standard deviations; values beyond it are drawn again
_BLOCK = 128


@dataclass(frozen=True)
class SlowPeer:
    """A peer that runs at a fraction of full speed, or a place where every peer does.

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
        """True if this entry applies to a peer at a place (host, slot) in a step."""
        if step < self.from_step or (self.until_step is not None and step >= self.until_step):
            return False
        if self.peer is not None:
            return peer == self.peer
        return place[0] == self.host and self.slot in (None, place[1])


@dataclass(frozen=True)
class PeerSpeeds:
    """Slow peers and uneven step times, in addition to the model's throughput.

    Args:
        jitter: The standard deviation of each peer's step time, as a fraction of the mean. Each step time is drawn from
            a normal distribution truncated at 3 standard deviations. Below 1/3, so that no time is negative.
        seed: The seed of the draws, a whole number from 0. The draws of a peer depend only on the seed and the id.
        slow: The slow peers and places.

    Raises:
        UsageError: A number is out of range.
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
    """Draws the relative step time of each peer, once per step. NumPy's legacy generator gives the same stream in every
    version."""

    speeds: PeerSpeeds
    # One generator per peer, so that a change of the membership does not affect the draws of other peers.
    streams: dict[int, Iterator[float]] = field(default_factory=dict)

    def durations(self, peers: Sequence[int]) -> list[float]:
        """The next step time of each of these peers, as a multiple of the mean."""
        if not self.speeds.jitter:
            return [1.0] * len(peers)
        return [next(self.streams.setdefault(peer, _draws(self.speeds, peer))) for peer in peers]


def _draws(speeds: PeerSpeeds, peer: int) -> Iterator[float]:
    generator = np.random.RandomState([speeds.seed, peer])
    while True:
        block = generator.standard_normal(_BLOCK)
        yield from (1 + speeds.jitter * block[np.abs(block) <= CUT]).tolist()
