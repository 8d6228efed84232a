"""Spares: peers that start, trace and warm up before the job wants them, and then wait to be admitted.

A spare is a peer outside of the job: it counts neither as a member nor as a joiner, no rule sees it, and it occupies no
slot. When the job wants a peer, for a decision or for a loss, `claim` makes a joiner of the oldest ready spare in place
of a new process, and the next barrier admits it like any joiner.

| event                          | reaction                                                                           |
| ------------------------------ | ---------------------------------------------------------------------------------- |
| the job trains, and no joiner  | if there are fewer spares than ``--spares``: start one; the next one starts when   |
| is on its way                  | that one is ready, as a start takes processor time from the peers                  |
| a peer is wanted on a host     | a ready spare of the host joins, else one that still starts; else a process starts |
| a phase is over                | spares wait until the others begin the next phase, and get ready for that phase    |
| a spare ends, is late, or runs | another starts after 2 s; each further failure doubles this time, up to 5 minutes  |
| another program                |                                                                                    |
| a host is lost or given notice | its spares end; others start elsewhere                                             |
| the job has ended              | the agents end all spares                                                          |

The shape of a batch may differ from that of the spare's own batch in the number of samples only, and the traced step
accepts any number: so a spare stays ready when the batch or the number of peers changes.

Hosts with devices (GPUs): a spare that has traced its step holds memory of a device, and waits only on a host with more
devices than peers. A "loaded" spare holds no device, and waits on any host.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from kungfu.runtime.core.cluster import events, placement
from kungfu.runtime.core.cluster.cluster import Cluster, Starting, Transition, mark_to_kill

# The longest wait between the end of a spare and the start of another. A spare that has waited longer was no failure.
LONGEST_RETRY_S = 300.0
_FIRST_RETRY_S = 2.0


def fill(cluster: Cluster, now: float) -> Transition:
    """Starts a spare if one is missing, unless other peers are starting."""
    limits, pool = cluster.limits.spares, cluster.spares
    if len(pool.waiting) >= limits.number or now < pool.retry_at:
        # There are enough spares, or the last one has just ended.
        return cluster, []
    if not _is_training(cluster) or cluster.starting or any(one.ready is None for one in pool.waiting.values()):
        # Nothing trains, or another peer is starting.
        return cluster, []
    host = _host_for_spare(cluster, now)
    if host is None:
        # Every device has a peer.
        return cluster, []
    people, hosts, loads_only = cluster.processes, cluster.hosts, limits.level == "loaded"
    peer = people.next_id
    spawn = events.Spawn(peer, host, threads=hosts.threads, loads_only=loads_only)
    cluster = replace(
        cluster,
        spares=replace(pool, waiting={**pool.waiting, peer: Starting(now, loads_only=loads_only)}),
        processes=replace(people, alive=people.alive | {peer}, next_id=peer + 1),
        hosts=replace(hosts, of={**hosts.of, peer: host}),
    )
    return cluster, [spawn]


def _is_training(cluster: Cluster) -> bool:
    """True if a view trains, and is complete except for joiners."""
    phases = cluster.phases
    is_between = phases.is_over or phases.is_forming or cluster.hosts.queue or cluster.regrouping is not None
    is_over = cluster.view is None or cluster.processes.finished & {*cluster.view.ids}
    return bool(cluster.members) and not is_between and not is_over


def _host_for_spare(cluster: Cluster, now: float) -> int | None:
    """The host of the next spare: one with a slot for it if possible, then the host with the fewest spares and peers.

    The spares of a host without a free slot replace lost peers of that host.
    """
    hosts, room = cluster.hosts, placement.free_slots(cluster)
    spares = Counter(hosts.of.get(peer, 0) for peer in cluster.spares.waiting)
    people = Counter(hosts.of.get(peer, 0) for peer in {*cluster.members, *cluster.between_phases})
    avoided = placement.avoided_slots(hosts, now)

    def has_device(host: int) -> bool:
        free = hosts.devices.get(host, 0) - people[host] - spares[host]
        return host not in hosts.devices or free > 0 or cluster.limits.spares.level == "loaded"

    def order(host: int) -> tuple[bool, int, int, int]:
        has_slot = room.get(host, 0) - spares[host] > avoided[host]
        return not has_slot, spares[host], people[host], host

    return min(filter(has_device, hosts.slots), key=order, default=None)


def claim(cluster: Cluster, host: int, now: float, *, replaces: int | None) -> tuple[Cluster, int] | None:
    """Makes a joiner of a spare of this host, a ready one if possible, the oldest first.

    Returns:
        The cluster, and the id of the peer; ``None`` if no spare waits on the host.
    """
    pool = cluster.spares
    here = [peer for peer in pool.waiting if cluster.hosts.of.get(peer, 0) == host]
    if not here:
        return None
    chosen = min(here, key=lambda peer: (pool.waiting[peer].ready is None, peer))
    spare = pool.waiting[chosen]
    # The times of a joiner tell how long a decision has waited for it, so those of the spare do not count.
    entry = replace(spare, since=now, replaces=replaces, attached=None if spare.attached is None else now)
    entry = replace(entry, ready=None if spare.ready is None or spare.loads_only else now)
    waiting = {peer: one for peer, one in pool.waiting.items() if peer != chosen}
    pool = replace(pool, waiting=waiting, failures=0, retry_at=0.0)
    return replace(cluster, spares=pool, starting={**cluster.starting, chosen: entry}), chosen


def hosts_of_spares(cluster: Cluster) -> frozenset[int]:
    """The hosts on which a spare waits."""
    return frozenset(cluster.hosts.of.get(peer, 0) for peer in cluster.spares.waiting)


def on_spare_lost(cluster: Cluster, peer: int, how: str, now: float) -> Transition:
    """Handles the end of a spare: another one starts later."""
    pool = cluster.spares
    spare = pool.waiting[peer]
    has_served = spare.ready is not None and now - spare.ready > LONGEST_RETRY_S
    failures = 1 if has_served else pool.failures + 1
    retry_s = min(LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
    cluster = replace(cluster, spares=replace(pool, failures=failures, retry_at=now + retry_s))
    return _without(cluster, [peer]), [events.ReportSpare(peer, "lost", how, retry_s)]


def give_up(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """Kills a running spare that is late, or whose program exits or differs; another one starts later."""
    cluster, commands = on_spare_lost(cluster, peer, why, now)
    return mark_to_kill(cluster, [peer]), [events.Kill(peer, why), *commands]


def on_loaded(cluster: Cluster, event: events.SpareLoaded, now: float) -> Transition:
    """Handles a "loaded" spare that has loaded TensorFlow."""
    spare = cluster.spares.waiting.get(event.peer)
    if spare is None or not spare.loads_only or spare.ready is not None:
        # The job wants the peer by now, or the peer has ended; or the report is repeated.
        return cluster, []
    return cluster.with_joiner(event.peer, replace(spare, ready=now)), [report_ready(event)]


def report_ready(event: events.PeerProgressed | events.SpareLoaded) -> events.ReportSpare:
    """The command that notifies the user of a ready spare."""
    peer = event.peer if isinstance(event, events.SpareLoaded) else event.peer.id
    return events.ReportSpare(peer, "ready", memory_bytes=event.memory_bytes)


def close_host(cluster: Cluster, host: int, why: str) -> Transition:
    """Ends the spares of a host that was given notice."""
    there = [peer for peer in cluster.spares.waiting if cluster.hosts.of.get(peer, 0) == host]
    cluster = mark_to_kill(_without(cluster, there), there)
    return cluster, [events.Kill(peer, why) for peer in there]


def late_spare(cluster: Cluster, now: float) -> tuple[int, str] | None:
    """The id of a spare that is not ready in time, and the reason in words; ``None`` if no spare is late."""
    if cluster.phases.is_over or cluster.phases.is_forming:
        # The spares wait until the others train again.
        return None
    limit = cluster.limits.deadlines.ready_s
    for peer, spare in cluster.spares.waiting.items():
        if spare.ready is None and now - max(spare.since, spare.reads) > limit:
            return peer, f"waited {limit:.0f} s for spare peer {peer} to get ready"
    return None


def begin_phase(cluster: Cluster, now: float) -> Cluster:
    """Restarts the time in which the spares must get ready, since the next phase has begun."""
    waiting = {peer: replace(one, since=now) for peer, one in cluster.spares.waiting.items()}
    return replace(cluster, spares=replace(cluster.spares, waiting=waiting))


def end_phase(cluster: Cluster) -> Cluster:
    """Marks the spares as starting, since the phase for which they were ready is over; "loaded" spares stay ready."""
    waiting = {
        peer: one if one.loads_only else replace(one, ready=None, said=None)
        for peer, one in cluster.spares.waiting.items()
    }
    return replace(cluster, spares=replace(cluster.spares, waiting=waiting))


def _without(cluster: Cluster, peers: list[int]) -> Cluster:
    waiting = {peer: one for peer, one in cluster.spares.waiting.items() if peer not in peers}
    return replace(cluster, spares=replace(cluster.spares, waiting=waiting))
