"""The plan of a transfer of the state: the sources of each peer that lacks it, and the order of the transfers.

Each peer that lacks the state receives it from the *nearest* holders. Peers of one host share its memory, so peers
with holders on their host receive slices from several of them, all at the same time. Between two hosts the peers would
share the link, so a link carries one transfer at a time. Hence there are *turns*: in each turn, a host that holds the
state sends it to at most one host without the state, and there to the first peer. From the next turn on, that peer also
sends the state: to the other peers of its host, and to further hosts. So the number of hosts with the state doubles
every turn. If there are many holders, one peer receives slices from several of them.

Xie et al., *Elan*, section IV, also transfer from the nearest neighbour, in parallel over different links, and in turns
over one link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from kungfu.runtime.core.view import View, spread

_MOST_SOURCES = 4  # at the same time; more streams into one peer would only share its memory or link


@dataclass(frozen=True)
class SourceSlice:
    """Bytes ``start`` to ``stop`` of the state, from the peer of rank ``source``."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True)
class Transfer:
    """The transfer of the state to one peer: all ``parts`` are sent at the same time, in turn ``turn`` (from 0)."""

    turn: int
    parts: tuple[SourceSlice, ...]


def plan(view: View, sources: Sequence[int], *, total_bytes: int) -> dict[int, Transfer]:
    """The transfer to every rank of ``view`` that lacks the state.

    Args:
        sources: The ranks that hold the state.
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
    # Peers with a holder on their host share its memory: all receive the state at the same time.
    for host in [host for host in lacking if host in holders]:
        for index, rank in enumerate(lacking.pop(host)):
            transfers[rank] = Transfer(0, _parts(_from(holders[host], index), total_bytes))
    # The other hosts receive the state in turns: each host that holds the state serves one of them.
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
    """The ranks on other hosts to which ``source`` sends the state, one after the other."""
    others = [rank for rank in _receivers(source, transfers) if view.peers[rank].host != view.peers[source].host]
    return tuple(sorted(others, key=lambda rank: (transfers[rank].turn, rank)))


def near_of(source: int, view: View, transfers: Mapping[int, Transfer]) -> tuple[int, ...]:
    """The ranks on the same host to which ``source`` sends the state, all at the same time."""
    return tuple(rank for rank in _receivers(source, transfers) if view.peers[rank].host == view.peers[source].host)


def _receivers(source: int, transfers: Mapping[int, Transfer]) -> list[int]:
    return [rank for rank, transfer in transfers.items() if any(part.source == source for part in transfer.parts)]


def _by_host(view: View, ranks: Sequence[int]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        hosts.setdefault(view.peers[rank].host, []).append(rank)
    return hosts


def _from(holders: Sequence[int], index: int) -> list[int]:
    """The sources of the state for receiver ``index`` of a host; the first source varies, to spread the load."""
    first = index % len(holders)
    return [*holders[first:], *holders[:first]][:_MOST_SOURCES]


def _shared_out(holders: Mapping[str, Sequence[int]], count: int) -> list[list[int]]:
    """Assigns each host that holds the state to one of ``count`` receivers; returns each receiver's sources."""
    hosts = list(holders.values())
    rows = [zip_longest(*hosts[first::count]) for first in range(count)]
    return [[rank for row in group for rank in row if rank is not None] for group in rows]


def _parts(sources: Sequence[int], total_bytes: int) -> tuple[SourceSlice, ...]:
    """Divides the bytes of the state evenly into contiguous slices; each source sends one slice."""
    stops = [*accumulate(spread(total_bytes, len(sources)))]
    return tuple(map(SourceSlice, sources, [0, *stops], stops))
