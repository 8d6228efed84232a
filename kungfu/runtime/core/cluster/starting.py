"""Peers on their way into the job: spawned, awaited, offered, dismissed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kungfu.runtime.core.barrier import Prepared
from kungfu.runtime.core.cluster.alike import (
    compared_again,
    dismissed_as_unlike,
    ends_as_unlike,
    first_view,
    joins_alike,
)
from kungfu.runtime.core.cluster.events import Command, Kill, Offer, Remark, Seen, Spawn
from kungfu.runtime.core.cluster.hosts import NO_SLOT, avoided_slots, free_slots, people_on, place_for
from kungfu.runtime.core.cluster.state import Cluster, Outcome, Starting, doomed

__all__ = [
    "differs",
    "dismissed",
    "gathered",
    "given_up",
    "late_to_start",
    "lost_on_the_way",
    "seen",
    "spawned",
    "wanted",
]

# Replacements in a row that never came to train: what ends them is not chance.
CRASH_LOOP = 3


def spawned(
    cluster: Cluster,
    replacing: Iterable[int | None],
    now: float,
    *,
    host: int | None = None,
    leaving: Iterable[int] = (),
) -> Outcome:
    """Starts a peer for each entry, which is the id that it replaces or ``None``: on ``host``, else on the first one
    that has a free slot, see ``place_for``. For whom there is none, it is missing. ``leaving`` will leave for them."""
    people, hosts, room = cluster.processes, cluster.hosts, free_slots(cluster)
    avoided = avoided_slots(hosts, now)
    room = {one: count for one, count in room.items() if host in (None, one)}
    starting, of, missing = dict(cluster.starting), dict(hosts.of), dict(cluster.missing)
    spawns: list[Spawn] = []
    next_id = people.next_id
    for peer, other in enumerate(replacing, start=people.next_id):
        next_id = peer + 1
        place = place_for(room, avoided)
        if place is None:
            missing[peer] = NO_SLOT
            continue
        room[place] -= 1
        starting[peer], of[peer] = Starting(now, replaces=other), place
        spawns.append(Spawn(peer, place, _giving_way(cluster, place, leaving)))
    alive = people.alive | {spawn.peer for spawn in spawns}
    people, hosts = replace(people, alive=alive, next_id=next_id), replace(hosts, of=of)
    return replace(cluster, starting=starting, missing=missing, processes=people, hosts=hosts), [*spawns]


def dismissed(cluster: Cluster, peers: Iterable[int], reason: str) -> Outcome:
    """Lets peers go that are on their way."""
    going = list(peers)
    starting = {peer: entry for peer, entry in cluster.starting.items() if peer not in going}
    cluster = doomed(replace(cluster, starting=starting), going)
    return cluster, [Kill(peer, reason) for peer in going]


def _giving_way(cluster: Cluster, host: int, leaving: Iterable[int]) -> tuple[int, ...]:
    """Those on a host whose processes run, and who leave or are not in the job any more."""
    staying = {*cluster.members, *cluster.starting} - {*leaving}
    return tuple(peer for peer in people_on(cluster, host) if peer not in staying)


def wanted(cluster: Cluster, size: int, now: float, *, host: int | None = None, leaving: Iterable[int] = ()) -> Outcome:
    """The leader asks for a size: spawns what is missing, dismisses what is too much."""
    if cluster.view is None or cluster.processes.finished & set(cluster.view.ids):
        return cluster, []  # there is no leader yet who could ask, or training is over
    have, cluster = len(cluster.members) + len(cluster.starting), replace(cluster, missing={})
    if size > have:
        cluster, changes = spawned(cluster, [None] * (size - have), now, host=host, leaving=leaving)
    else:
        cluster, changes = _thinned(cluster, have - size, f"the job wants {size} peers now")
    cluster, offers = gathered(cluster)
    return cluster, [*changes, *offers]


def _thinned(cluster: Cluster, count: int, reason: str) -> Outcome:
    """Lets ``count`` of those go who start: first those that have come least far, they are the cheapest."""
    order = sorted(cluster.starting, key=lambda peer: (cluster.starting[peer].ready is not None, -peer))
    return dismissed(cluster, order[:count], reason)


def seen(cluster: Cluster, event: Seen, now: float) -> Outcome:
    """A starting peer has come further."""
    entry = cluster.starting.get(event.peer.id)
    if entry is None or entry.ready is not None:
        return cluster, []  # dismissed in the meantime, and its end is under way; or said before
    if not event.ready:
        entry = replace(entry, attached=now)
        return gathered(replace(cluster, starting={**cluster.starting, event.peer.id: entry}))
    entry = replace(entry, peer=event.peer, identity=event.identity)
    if not joins_alike(cluster, entry):
        cluster = replace(cluster, starting={**cluster.starting, event.peer.id: entry})
        return cluster, compared_again(cluster)
    entry = replace(entry, ready=now)
    cluster, commands = gathered(replace(cluster, starting={**cluster.starting, event.peer.id: entry}))
    return cluster, [*_remarked(cluster, entry), *commands]


def _remarked(cluster: Cluster, entry: Starting) -> list[Command]:
    """A joiner may run on another machine than the job began with; of the first peers that is told with their view."""
    usual, machine = cluster.identity.machine, entry.identity.machine
    if cluster.view is None or entry.peer is None or machine == usual:
        return []
    return [Remark(usual, {entry.peer.id: machine})]


def differs(cluster: Cluster, peer: int, how: str) -> Outcome:
    """A starting peer does not run the program of the job."""
    if peer not in cluster.starting:
        return cluster, []  # it ended meanwhile, or was dismissed
    if cluster.view is None:
        return cluster, [ends_as_unlike(how)]
    cluster, kills = dismissed_as_unlike(cluster, peer, how)
    cluster, offers = gathered(cluster)
    return cluster, [*kills, *offers]


def gathered(cluster: Cluster) -> Outcome:
    """Once nobody is on the way any more: the first view, or an offer to the leader, if there is one just now."""
    if any(entry.ready is None for entry in cluster.starting.values()) or cluster.regrouping is not None:
        return cluster, []
    if cluster.view is None:
        return first_view(cluster)
    peers = tuple(entry.peer for _, entry in sorted(cluster.starting.items()) if entry.peer is not None)
    if not peers and not cluster.missing:
        return cluster, []
    reason = "; ".join(f"peer {peer}: {why}" for peer, why in sorted(cluster.missing.items()))
    prepared = Prepared(peers, tuple(sorted(cluster.missing)), reason, _parts(cluster))
    return replace(cluster, missing={}), [Offer(cluster.view, prepared)]


def _parts(cluster: Cluster) -> dict[str, float]:
    """Of the slowest joiner: seconds from its spawn to ``attach``, and from there to ready."""
    entries = [entry for entry in cluster.starting.values() if entry.attached and entry.ready]
    if not entries:
        return {}
    slowest = max(entries, key=lambda entry: (entry.ready or 0.0) - entry.since)
    attached, ready = slowest.attached or 0.0, slowest.ready or 0.0
    return {"spawn": attached - slowest.since, "ready": ready - attached}


def lost_on_the_way(cluster: Cluster, peer: int, why: str, now: float) -> Outcome:
    """A starting peer will not come: one that replaces another is started again, else the run goes on without it."""
    entry = cluster.starting[peer]
    starting = {other: one for other, one in cluster.starting.items() if other != peer}
    cluster = replace(cluster, starting=starting)
    if entry.replaces is None:
        return gathered(replace(cluster, missing={**cluster.missing, peer: why}))
    losses = replace(cluster.losses, untrained=cluster.losses.untrained + 1)
    cluster = replace(cluster, losses=losses)
    if losses.untrained < CRASH_LOOP:
        cluster, spawns = spawned(cluster, [entry.replaces], now)
        cluster, offers = gathered(cluster)
        return cluster, [*spawns, *offers]
    why = f"{why}; {losses.untrained} replacements in a row never trained, so no other one is started"
    return gathered(replace(cluster, missing={**cluster.missing, peer: why}))


def given_up(cluster: Cluster, peer: int, why: str, now: float) -> Outcome:
    """A starting peer that lives, but is too late: it is ended, and the run goes on without it."""
    cluster, commands = lost_on_the_way(doomed(cluster, [peer]), peer, why, now)
    return cluster, [Kill(peer, why), *commands]


def late_to_start(cluster: Cluster, now: float) -> tuple[int, str] | None:
    """A peer that has been on its way for too long, and how far it came."""
    limit = cluster.rules.deadlines.ready_s
    late = [peer for peer, entry in cluster.starting.items() if entry.ready is None and now - entry.since > limit]
    if not late:
        return None
    stage = "called kf.attach()" if cluster.starting[late[0]].attached else "started"
    why = f"waited {limit:.0f} s for peer {late[0]} to get ready; it has {stage} and not yet finished its first step"
    return late[0], why
