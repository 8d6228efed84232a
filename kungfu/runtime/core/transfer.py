"""The plan of a transfer of the state: from which peers each peer takes it, and in what order.

Each peer that lacks the state takes it from the *nearest* peers that have it. Peers of one host share its memory, so
peers with a holder on their host take slices from several holders there, all at the same time. A host without a holder
has a link that its peers would share, and so has the host that gives: over a link one transfer goes at a time. Hence
*turns*: in each, every host that holds the state gives to at most one host that does not, to the first of its peers;
from the next turn on that peer gives too, to the others of its host and to further hosts. So the number of hosts that
hold the state doubles with every turn, and where holders are many, the slices of one peer come from several of them.

Xie et al., *Elan*, section IV: nearest neighbour, in parallel where links differ, in turn where they would be shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kungfu.runtime.core.view import View, even_slices

_MOST_SOURCES = 4  # at once: more streams into one peer only share its memory or its link


@dataclass(frozen=True)
class SourceSlice:
    """Bytes ``start`` to ``stop`` of the state, from the peer of rank ``source``."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True)
class Transfer:
    """The transfer to one peer: its parts at the same time, in turn ``turn``; 0 is the first."""

    turn: int
    parts: tuple[SourceSlice, ...]


def plan(view: View, sources: Sequence[int], *, total_bytes: int) -> dict[int, Transfer]:
    """The transfer of every rank of ``view`` that lacks the state.

    Args:
        view: The view.
        sources: Its ranks that hold the state.
        total_bytes: The size of the state.

    >>> from kungfu.runtime.core.view import Peer
    >>> view = View(2, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3"), Peer(3, "b:1"), Peer(4, "b:2")))
    >>> for rank, transfer in plan(view, [0, 1], total_bytes=10).items():
    ...     print(rank, transfer.turn, [(part.source, part.start, part.stop) for part in transfer.parts])
    2 0 [(0, 0, 5), (1, 5, 10)]
    3 0 [(0, 0, 5), (1, 5, 10)]
    4 1 [(3, 0, 10)]
    """
    holders = _by_host(view, sources)
    lacking = _by_host(view, [rank for rank in range(view.size) if rank not in set(sources)])
    transfers: dict[int, Transfer] = {}
    # Peers with a holder on their host share its memory: all at once.
    for host in [host for host in lacking if host in holders]:
        for place, rank in enumerate(lacking.pop(host)):
            transfers[rank] = Transfer(0, _parts(_from(holders[host], place), total_bytes))
    # The other hosts come in turns, each host that holds the state serving one of them.
    turn, waiting = 0, list(lacking)
    while waiting:
        served, waiting = waiting[: len(holders)], waiting[len(holders) :]
        for host, givers in zip(served, _shared_out(holders, len(served)), strict=True):
            first, *others = lacking[host]
            transfers[first] = Transfer(turn, _parts(givers[:_MOST_SOURCES], total_bytes))
            transfers.update({rank: Transfer(turn + 1, _parts([first], total_bytes)) for rank in others})
        holders |= {host: [lacking[host][0]] for host in served}
        turn += 1
    return dict(sorted(transfers.items()))


def queue_of(source: int, view: View, transfers: Mapping[int, Transfer]) -> tuple[int, ...]:
    """The ranks on other hosts that ``source`` gives to, one after the other."""
    taking = [rank for rank in _takers(source, transfers) if view.peers[rank].host != view.peers[source].host]
    return tuple(sorted(taking, key=lambda rank: (transfers[rank].turn, rank)))


def near_of(source: int, view: View, transfers: Mapping[int, Transfer]) -> tuple[int, ...]:
    """The ranks on its own host that ``source`` gives to, all at once."""
    return tuple(rank for rank in _takers(source, transfers) if view.peers[rank].host == view.peers[source].host)


def _takers(source: int, transfers: Mapping[int, Transfer]) -> list[int]:
    return [rank for rank, transfer in transfers.items() if any(part.source == source for part in transfer.parts)]


def _by_host(view: View, ranks: Sequence[int]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        hosts.setdefault(view.peers[rank].host, []).append(rank)
    return hosts


def _from(holders: Sequence[int], place: int) -> list[int]:
    """The holders for one of several peers of their host: each begins with another, so that all of them give."""
    first = place % len(holders)
    return [*holders[first:], *holders[:first]][:_MOST_SOURCES]


def _shared_out(holders: Mapping[str, Sequence[int]], count: int) -> list[list[int]]:
    """The holders for each of ``count`` hosts, no host giving to two; of each host in turn, so that links add up."""
    hosts = list(holders.values())
    return [_alternating(hosts[place::count]) for place in range(count)]


def _alternating(groups: Sequence[Sequence[int]]) -> list[int]:
    longest = max(len(group) for group in groups)
    return [group[place] for place in range(longest) for group in groups if place < len(group)]


def _parts(sources: Sequence[int], total_bytes: int) -> tuple[SourceSlice, ...]:
    return tuple(SourceSlice(*part) for part in even_slices(total_bytes, sources))
