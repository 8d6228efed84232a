"""The placement of peers on hosts: a slot for each new peer, and hosts that come, leave or are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, Transition
from kungfu.runtime.core.cluster.events import ReleaseHost
from kungfu.runtime.core.view import View

NO_SLOT = "no host has a free slot"
# The seconds for which the slot of a removed peer is used only if no other slot is free.
AVOIDED_S = 600.0


def free_slots(cluster: Cluster) -> dict[int, int]:
    """The number of further peers that each host accepts; a removed or finished peer needs no slot."""
    hosts, people = cluster.hosts, {*cluster.members, *cluster.starting, *cluster.between_phases}
    there = Counter(hosts.of[peer] for peer in people if peer in hosts.of)
    return {host: slots - there[host] for host, slots in sorted(hosts.slots.items()) if slots > there[host]}


def about_to_be_free(cluster: Cluster, leaving: Collection[int]) -> int:
    """The number of slots freed by the next view, since it removes the members with a preemption notice in any case.

    The members in ``leaving`` leave only once their replacements have come, so their slots do not count."""
    going = cluster.losses.noticed & {*cluster.members} - {*leaving}
    return sum(cluster.hosts.of.get(peer, 0) in cluster.hosts.slots for peer in going)


def host_for(
    room: Mapping[int, int],
    avoided: Mapping[int, int],
    *,
    left: Collection[int] = (),
    spares: Collection[int] = (),
    spread_over: Mapping[int, int] | None = None,
) -> int | None:
    """The first host with a free slot that need not be avoided; else the first host with any free slot.

    The host of a peer that the new peer replaces comes after other hosts, since that host may have made the replaced
    peer slow. A slot on that host still comes before a slot to avoid. Among equal hosts, one with a spare comes first.

    Args:
        room: The free slots of each host, by number.
        avoided: The number of slots to avoid on each host; see `avoided_slots`.
        left: The hosts of the peers that leave.
        spares: The hosts on which a spare waits.
        spread_over: The slots of each host; then of equally good hosts the one with the fewest peers is chosen, and not
            the first. ``None`` to fill one host after the other.

    >>> host_for({0: 1, 1: 2}, {0: 1}), host_for({0: 1}, {0: 1}), host_for({0: 0}, {})
    (1, 0, None)
    >>> host_for({0: 2, 1: 1}, {}, left={0}), host_for({0: 2, 1: 1}, {1: 1}, left={0})
    (1, 0)
    >>> host_for({0: 1, 1: 1}, {}, spares={1}), host_for({0: 1, 1: 1}, {}, left={1}, spares={1})
    (1, 0)
    >>> host_for({0: 3, 1: 2}, {}, spread_over={0: 4, 1: 2}), host_for({0: 3, 1: 2}, {1: 2}, spread_over={0: 4, 1: 2})
    (1, 0)
    """
    free = [host for host, count in room.items() if count > 0]
    peers = {host: slots - room.get(host, 0) for host, slots in (spread_over or {}).items()}

    def order(host: int) -> tuple[bool, bool, bool, int]:
        return room[host] <= avoided.get(host, 0), host in left, host not in spares, peers.get(host, 0)

    return min(free, key=order, default=None)


def avoided_slots(hosts: Hosts, now: float) -> Counter[int]:
    """The slots to avoid on each (perhaps slow) host: one for each peer removed in the last ``AVOIDED_S`` seconds."""
    return Counter(host for host, at in hosts.departures.values() if now - at < AVOIDED_S)


def with_departures(hosts: Hosts, peers: Iterable[int], now: float) -> Hosts:
    """Records the host and the time of each peer that a decision removes; a peer recorded earlier keeps its time."""
    recent = {peer: (host, at) for peer, (host, at) in hosts.departures.items() if now - at < AVOIDED_S}
    news = {peer: (hosts.of.get(peer, 0), now) for peer in peers if peer not in recent}
    return replace(hosts, departures={**recent, **news})


def peers_on(cluster: Cluster, host: int) -> tuple[int, ...]:
    """The ids of the peers whose processes run on a host."""
    return tuple(sorted(peer for peer in cluster.alive if cluster.hosts.of.get(peer, 0) == host))


def close_host(cluster: Cluster, host: int, *, leaving: bool) -> Cluster:
    """Closes a host to new peers; ``leaving`` is True if it got a preemption notice, and False if it was lost."""
    hosts = cluster.hosts
    slots = {other: count for other, count in hosts.slots.items() if other != host}
    going = hosts.leaving | {host} if leaving else hosts.leaving - {host}
    return replace(cluster, hosts=replace(hosts, slots=slots, leaving=going))


def release_empty_hosts(cluster: Cluster) -> Transition:
    """Releases the hosts that got a preemption notice and no longer run a process."""
    empty = sorted(host for host in cluster.hosts.leaving if not peers_on(cluster, host))
    if not empty:
        return cluster, []
    hosts: Hosts = replace(cluster.hosts, leaving=cluster.hosts.leaving - set(empty))
    return replace(cluster, hosts=hosts), [ReleaseHost(host) for host in empty]


def has_majority(view: View, of: Mapping[int, int], present: Collection[int]) -> bool:
    """True if the hosts whose agents reach each other may continue without the others.

    They may continue if they run a strict majority of the view's peers, or exactly half of the peers including rank 0.
    So two groups of hosts that cannot reach each other never both continue.

    Args:
        of: The host of each peer, by id.
        present: The hosts whose agents reach each other.

    >>> from kungfu.runtime.core.view import Peer
    >>> view = View(1, (Peer(0, "a:1"), Peer(1, "b:1"), Peer(2, "b:2"), Peer(3, "c:1")))
    >>> of = {0: 0, 1: 1, 2: 1, 3: 2}
    >>> has_majority(view, of, {1, 2}), has_majority(view, of, {0, 2}), has_majority(view, of, {1})
    (True, True, False)
    """
    here = [peer for peer in view.ids if of.get(peer, 0) in present]
    return 2 * len(here) > view.size or (2 * len(here) == view.size and view.ids[0] in here)
