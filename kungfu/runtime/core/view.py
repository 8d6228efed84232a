"""Views: the numbered memberships of a job, and pure arithmetic on them.

Ranks are positions in a view. A change keeps the order of the peers that stay, and puts joiners after them, so the
lowest ranks have been in the job the longest. A shrink removes the clearly slow peers first, then the newest peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kungfu.errors import InternalError
from kungfu.slowness import SLOW

NO_SPEEDS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Peer:
    """A training process: ``id`` is unique in a job, ``address`` is the host:port of its service."""

    id: int
    address: str

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


@dataclass(frozen=True)
class View:
    """A numbered membership of a job: the peers that train together, in rank order.

    >>> view = View(1, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> view.changed(leave=view.leave_order()[:2], join=[Peer(3, "b:1")])
    View(version=2, peers=(Peer(id=0, address='a:1'), Peer(id=3, address='b:1')), begins_phase=False)
    """

    version: int  # the number of the view; 0 for a program that runs alone, 1 for the first view of a job
    peers: tuple[Peer, ...]  # the members, in rank order
    # True for the first view of every phase after the job's first, see ``core.cluster.phases``, and of a job that was
    # started again.
    begins_phase: bool = False

    @property
    def size(self) -> int:
        return len(self.peers)

    @property
    def begins(self) -> bool:
        """True if this view begins the job or one of its phases: no peer has trained in the job or phase before."""
        return self.version <= 1 or self.begins_phase  # version 0: a program that runs alone

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(peer.id for peer in self.peers)

    def rank_of(self, peer_id: int) -> int | None:
        """The rank of a peer in this view; ``None`` if the peer is not a member."""
        return next((rank for rank, peer in enumerate(self.peers) if peer.id == peer_id), None)

    def leave_order(self, speeds: Mapping[int, float] = NO_SPEEDS) -> tuple[int, ...]:
        """The ids in the order in which a shrink removes the peers: slow peers, slowest first, then the newest.

        Args:
            speeds: The speeds of peers by id, as fractions of the median peer's speed. A peer without a finite speed,
                such as a new one, counts as not slow. Of equally slow peers, the newer is removed first.

        >>> view = View(1, tuple(Peer(id, "") for id in range(4)))
        >>> view.leave_order({0: 0.5, 1: 1.0, 2: 0.95, 3: 1.1})
        (0, 3, 2, 1)
        """
        newest_first = self.ids[::-1]
        slow = sorted((peer for peer in newest_first if is_slow(peer, speeds)), key=lambda peer: speeds[peer])
        return (*slow, *(peer for peer in newest_first if peer not in slow))

    def changed(self, *, leave: Iterable[int] = (), join: Iterable[Peer] = ()) -> View:
        """The next view: the peers that stay keep their order, and the joiners follow in the order of their ids."""
        going, coming = set(leave), sorted(join, key=lambda peer: peer.id)
        peers = tuple(peer for peer in self.peers if peer.id not in going) + tuple(coming)
        if not peers or len({peer.id for peer in peers}) != len(peers):
            # No decision empties a view, or admits a member twice.
            raise InternalError(f"view {self.version} cannot become {[peer.id for peer in peers]}")
        return View(self.version + 1, peers)


def is_slow(peer: int, speeds: Mapping[int, float]) -> bool:
    """True if the speed of the peer with this id is known and clearly below the median peer's speed."""
    return speeds.get(peer, 1.0) < SLOW  # false for a NaN


def spread(total: int, parts: int) -> list[int]:
    """Spreads samples over peers as evenly as possible; the lower ranks get the remainder.

    >>> spread(100, 3), spread(2, 3)
    ([34, 33, 33], [1, 1, 0])
    """
    quotient, rest = divmod(total, parts)
    return [quotient + (rank < rest) for rank in range(parts)]
