"""The place of a peer among the hosts of a view: its ranks within the view, within its host, and across hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kungfu.errors import UsageError


@dataclass(frozen=True)
class Topology:
    """The ranks and sizes of one peer; ``cross`` counts the peers with the same local rank on all hosts."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def topology_of(rank: int, *, addresses: Sequence[str]) -> Topology:
    """The place of a peer among the hosts of its view.

    Args:
        rank: The peer's rank.
        addresses: ``"host:port"`` of every peer, in rank order.

    Raises:
        UsageError: The rank is outside the view, or an address has no port.

    >>> topology_of(2, addresses=["a:1", "a:2", "b:1"])
    Topology(host='b', rank=2, size=3, local_rank=0, local_size=1, cross_rank=1, cross_size=2)
    """
    if not 0 <= rank < len(addresses):
        raise UsageError(f"rank {rank} is not in a view of {len(addresses)} peers; allowed is 0..{len(addresses) - 1}")
    hosts = [_host(address) for address in addresses]
    mine = hosts[rank]
    local_rank = hosts[:rank].count(mine)
    # The hosts that have a peer of this local rank, in the order of their first peers.
    across = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local_rank]
    return Topology(
        host=mine,
        rank=rank,
        size=len(hosts),
        local_rank=local_rank,
        local_size=hosts.count(mine),
        cross_rank=across.index(mine),
        cross_size=len(across),
    )


def _host(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise UsageError(f"a peer's address is {address!r}; expected is HOST:PORT, for example 10.0.0.7:4000")
    return host
