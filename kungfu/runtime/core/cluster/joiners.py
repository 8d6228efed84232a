"""Peers on their way into the job: spawned, awaited, offered, dismissed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kungfu.runtime.core.barrier import Prepared
from kungfu.runtime.core.cluster.events import Command, Kill, Offer, PeerProgressed, Remark, Spawn
from kungfu.runtime.core.cluster.placement import NO_SLOT, avoided_slots, free_slots, peers_on, place_for
from kungfu.runtime.core.cluster.program_check import (
    compare_waiting,
    dismiss_as_different,
    fail_as_different,
    form_first_view,
    runs_same_program,
)
from kungfu.runtime.core.cluster.state import Cluster, Starting, Transition, mark_doomed

__all__ = [
    "dismiss",
    "give_up",
    "late_joiner",
    "offer_if_ready",
    "on_joiner_lost",
    "on_peer_progressed",
    "on_program_differs",
    "on_size_wanted",
    "spawn",
]

# Replacements in a row that never came to train: what ends them is not chance.
CRASH_LOOP = 3


def spawn(
    cluster: Cluster,
    replacing: Iterable[int | None],
    now: float,
    *,
    host: int | None = None,
    leaving: Iterable[int] = (),
) -> Transition:
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


def dismiss(cluster: Cluster, peers: Iterable[int], reason: str) -> Transition:
    """Lets peers go that are on their way."""
    going = list(peers)
    starting = {peer: entry for peer, entry in cluster.starting.items() if peer not in going}
    cluster = mark_doomed(replace(cluster, starting=starting), going)
    return cluster, [Kill(peer, reason) for peer in going]


def _giving_way(cluster: Cluster, host: int, leaving: Iterable[int]) -> tuple[int, ...]:
    """Those on a host whose processes run, and who leave or are not in the job any more."""
    staying = {*cluster.members, *cluster.starting} - {*leaving}
    return tuple(peer for peer in peers_on(cluster, host) if peer not in staying)


def on_size_wanted(
    cluster: Cluster, size: int, now: float, *, host: int | None = None, leaving: Iterable[int] = ()
) -> Transition:
    """The leader asks for a size: spawns what is missing, dismisses what is too much."""
    if cluster.view is None or cluster.processes.finished & set(cluster.view.ids):
        return cluster, []  # there is no leader yet who could ask, or training is over
    have, cluster = len(cluster.members) + len(cluster.starting), replace(cluster, missing={})
    if size > have:
        cluster, changes = spawn(cluster, [None] * (size - have), now, host=host, leaving=leaving)
    else:
        cluster, changes = _thinned(cluster, have - size, f"the job wants {size} peers now")
    cluster, offers = offer_if_ready(cluster)
    return cluster, [*changes, *offers]


def _thinned(cluster: Cluster, count: int, reason: str) -> Transition:
    """Lets ``count`` of those go who start: first those that have come least far, they are the cheapest."""
    order = sorted(cluster.starting, key=lambda peer: (cluster.starting[peer].ready is not None, -peer))
    return dismiss(cluster, order[:count], reason)


def on_peer_progressed(cluster: Cluster, event: PeerProgressed, now: float) -> Transition:
    """A starting peer has come further."""
    entry = cluster.starting.get(event.peer.id)
    if entry is None or entry.ready is not None:
        return cluster, []  # dismissed in the meantime, and its end is under way; or said before
    if not event.ready:
        entry = replace(entry, attached=now)
        return offer_if_ready(replace(cluster, starting={**cluster.starting, event.peer.id: entry}))
    entry = replace(entry, peer=event.peer, identity=event.identity)
    if not runs_same_program(cluster, entry):
        cluster = replace(cluster, starting={**cluster.starting, event.peer.id: entry})
        return cluster, compare_waiting(cluster)
    entry = replace(entry, ready=now)
    cluster, commands = offer_if_ready(replace(cluster, starting={**cluster.starting, event.peer.id: entry}))
    return cluster, [*_remarked(cluster, entry), *commands]


def _remarked(cluster: Cluster, entry: Starting) -> list[Command]:
    """A joiner may run on another machine than the job began with; of the first peers that is told with their view."""
    usual, machine = cluster.identity.machine, entry.identity.machine
    if cluster.view is None or entry.peer is None or machine == usual:
        return []
    return [Remark(usual, {entry.peer.id: machine})]


def on_program_differs(cluster: Cluster, peer: int, how: str) -> Transition:
    """A starting peer does not run the program of the job."""
    if peer not in cluster.starting:
        return cluster, []  # it ended meanwhile, or was dismissed
    if cluster.view is None:
        return cluster, [fail_as_different(how)]
    cluster, kills = dismiss_as_different(cluster, peer, how)
    cluster, offers = offer_if_ready(cluster)
    return cluster, [*kills, *offers]


def offer_if_ready(cluster: Cluster) -> Transition:
    """Once nobody is on the way any more: the first view, or an offer to the leader, if there is one just now."""
    if any(entry.ready is None for entry in cluster.starting.values()) or cluster.regrouping is not None:
        return cluster, []
    if cluster.view is None:
        return form_first_view(cluster)
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


def on_joiner_lost(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """A starting peer will not come: one that replaces another is started again, else the run goes on without it."""
    entry = cluster.starting[peer]
    starting = {other: one for other, one in cluster.starting.items() if other != peer}
    cluster = replace(cluster, starting=starting)
    if entry.replaces is None:
        return offer_if_ready(replace(cluster, missing={**cluster.missing, peer: why}))
    losses = replace(cluster.losses, untrained=cluster.losses.untrained + 1)
    cluster = replace(cluster, losses=losses)
    if losses.untrained < CRASH_LOOP:
        cluster, spawns = spawn(cluster, [entry.replaces], now)
        cluster, offers = offer_if_ready(cluster)
        return cluster, [*spawns, *offers]
    why = f"{why}; {losses.untrained} replacements in a row never trained, so no other one is started"
    return offer_if_ready(replace(cluster, missing={**cluster.missing, peer: why}))


def give_up(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """A starting peer that lives, but is too late: it is ended, and the run goes on without it."""
    cluster, commands = on_joiner_lost(mark_doomed(cluster, [peer]), peer, why, now)
    return cluster, [Kill(peer, why), *commands]


def late_joiner(cluster: Cluster, now: float) -> tuple[int, str] | None:
    """A peer that has been on its way for too long, and how far it came."""
    limit = cluster.rules.deadlines.ready_s
    late = [peer for peer, entry in cluster.starting.items() if entry.ready is None and now - entry.since > limit]
    if not late:
        return None
    stage = "called kf.attach()" if cluster.starting[late[0]].attached else "started"
    why = f"waited {limit:.0f} s for peer {late[0]} to get ready; it has {stage} and not yet finished its first step"
    return late[0], why
