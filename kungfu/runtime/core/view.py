"""Views: the numbered memberships of a job, and pure arithmetic on them.

Ranks are positions in a view. A change keeps the order of the peers that stay, and puts joiners after them: the lowest
ranks have been in the job for the longest time. A shrink lets the clearly slow peers go first, then the newest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kungfu.errors import InternalError
from kungfu.slowness import SLOW

NO_SPEEDS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Peer:
    """A training process: ``id`` is given once in a job, ``address`` is host:port of its service."""

    id: int
    address: str

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


@dataclass(frozen=True)
class View:
    """A numbered membership.

    Args:
        version: Its number; 0 is that of a program that runs alone, and 1 the first one of a job.
        peers: Its members, in rank order.
        begins_phase: True if it is the first view of a phase after the job's first one: see ``core.cluster.phases``.

    >>> view = View(1, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> view.changed(leave=view.leave_order()[:2], join=[Peer(3, "b:1")])
    View(version=2, peers=(Peer(id=0, address='a:1'), Peer(id=3, address='b:1')), begins_phase=False)
    """

    version: int
    peers: tuple[Peer, ...]
    begins_phase: bool = False

    @property
    def size(self) -> int:
        return len(self.peers)

    @property
    def begins(self) -> bool:
        """True if all its peers begin the job, or a phase of it, with it: none trained before."""
        return self.version <= 1 or self.begins_phase  # 0 is that of a program that runs alone

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(peer.id for peer in self.peers)

    def rank_of(self, peer_id: int) -> int | None:
        """The rank of a peer in this view, ``None`` if it is not a member."""
        return next((rank for rank, peer in enumerate(self.peers) if peer.id == peer_id), None)

    def leave_order(self, speeds: Mapping[int, float] = NO_SPEEDS) -> tuple[int, ...]:
        """The ids in the order in which the peers go when the job shrinks: slow ones, slowest first, then the newest.

        Args:
            speeds: The speeds of peers by id, as fractions of the median peer's speed. One without a finite number, as
                a peer that has just joined, counts as not slow. Of equally slow peers the newer one goes first.

        >>> view = View(1, tuple(Peer(id, "") for id in range(4)))
        >>> view.leave_order({0: 0.5, 1: 1.0, 2: 0.95, 3: 1.1})
        (0, 3, 2, 1)
        """
        newest_first = self.ids[::-1]
        slow = sorted((peer for peer in newest_first if is_slow(peer, speeds)), key=lambda peer: speeds[peer])
        return (*slow, *(peer for peer in newest_first if peer not in slow))

    def changed(self, *, leave: Iterable[int] = (), join: Iterable[Peer] = ()) -> View:
        """The next view: the peers that stay keep their order, the joiners come last, by id."""
        going, coming = set(leave), sorted(join, key=lambda peer: peer.id)
        peers = tuple(peer for peer in self.peers if peer.id not in going) + tuple(coming)
        if not peers or len({peer.id for peer in peers}) != len(peers):
            # No decision empties a view, or admits a member twice.
            raise InternalError(f"view {self.version} cannot become {[peer.id for peer in peers]}")
        return View(self.version + 1, peers)


def is_slow(peer: int, speeds: Mapping[int, float]) -> bool:
    """True if the speed of a peer, by id, is known, and clearly below that of the median peer."""
    return speeds.get(peer, 1.0) < SLOW  # false for a NaN


def spread(total: int, parts: int) -> list[int]:
    """Spreads samples over peers, as even as it goes; the lower ranks get the rest.

    Args:
        total: Samples.
        parts: Peers.

    >>> spread(100, 3), spread(2, 3)
    ([34, 33, 33], [1, 1, 0])
    """
    quotient, rest = divmod(total, parts)
    return [quotient + (rank < rest) for rank in range(parts)]


def even_slices(total: int, sources: Sequence[int]) -> list[tuple[int, int, int]]:
    """The part that each source gives: (source, start, stop), end to end.

    Args:
        total: Bytes.
        sources: The ranks that give.

    >>> even_slices(10, [0, 2, 3])
    [(0, 0, 4), (2, 4, 7), (3, 7, 10)]
    """
    slices, start = [], 0
    for source, count in zip(sources, spread(total, len(sources)), strict=True):
        slices.append((source, start, start + count))
        start += count
    return slices
