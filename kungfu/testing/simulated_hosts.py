"""The hosts of a modelled job: their slots, the peers in them, and the placement of joiners."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kungfu.errors import UsageError
from kungfu.runtime.core.cluster.placement import AVOIDED_S, host_for
from kungfu.signal.whole_number import is_whole_number

Place = tuple[int, int]  # the number of a host, and of a slot on it
_ONE_HOST = 1_000_000  # the slots of the only host if a model declares no hosts


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
        if not all(is_whole_number(one, least=1) for one in self.slots):
            raise UsageError(f"HostSlots(slots={self.slots!r}): takes a whole number of at least 1 for each host")
        if not 0 < self.joining_speed <= 1:
            raise UsageError(
                f"HostSlots(joining_speed={self.joining_speed!r}): takes a fraction above 0 of full speed, up to 1"
            )

    @property
    def room(self) -> tuple[int, ...]:
        """The number of slots of each host."""
        return tuple(self.slots) or (_ONE_HOST,)


@dataclass
class SimulatedHosts:
    """The places of the peers and joiners of a modelled job."""

    hosts: HostSlots
    places: dict[int, Place] = field(default_factory=dict)  # by the id of the peer
    # The places of removed peers, with the second of the job at which they were removed.
    let_go: dict[int, tuple[Place, float]] = field(default_factory=dict)

    @classmethod
    def filled(cls, hosts: HostSlots, peers: Iterable[int]) -> SimulatedHosts:
        """Places the first peers of a job, host by host."""
        made = cls(hosts)
        for peer in peers:
            made.start(peer, 0.0)
        return made

    def start(self, peer: int, now: float, *, leaving: Iterable[int] = ()) -> bool:
        """Places a peer by the rule of a real job, which avoids hosts with recently removed peers.

        Args:
            peer: The id of the peer.
            now: The time of the job, in seconds.
            leaving: The peers that this peer will replace; other hosts are preferred to theirs.

        Returns:
            True if a host had a free slot.
        """
        taken = Counter(host for host, _ in self.places.values())
        room = {host: slots - taken[host] for host, slots in enumerate(self.hosts.room)}
        avoided = Counter(host for (host, _), at in self.let_go.values() if now - at < AVOIDED_S)
        host = host_for(room, avoided, left={self.places[one][0] for one in leaving if one in self.places})
        if host is None:
            return False
        self.places[peer] = (host, self._slot(host, now))
        return True

    def stop(self, peers: Iterable[int], now: float) -> None:
        """Frees the places of peers that have left the job."""
        for peer in peers:
            self.let_go[peer] = self.places.pop(peer), now

    def dismiss(self, peers: Iterable[int]) -> None:
        """Frees the places of joiners that will not join."""
        for peer in peers:
            self.places.pop(peer, None)

    def joiners_beside(self, peers: Iterable[int], joiners: Iterable[int]) -> list[int]:
        """The number of joiners that start on the host of each of these peers."""
        starting = Counter(self.places[one][0] for one in joiners if one in self.places)
        return [starting[self.places[peer][0]] for peer in peers]

    def _slot(self, host: int, now: float) -> int:
        """The lowest free slot of a host; recently freed slots come last, in the order in which they were freed."""
        taken = {slot for one, slot in self.places.values() if one == host}
        left = {slot: at for (one, slot), at in self.let_go.values() if one == host and now - at < AVOIDED_S}
        # Besides these slots, one slot that was never used is considered, if the host has one.
        known = min(self.hosts.room[host], len(taken) + len(left) + 1)
        free = (slot for slot in range(known) if slot not in taken)
        return min(free, key=lambda slot: (left.get(slot, -math.inf), slot))
