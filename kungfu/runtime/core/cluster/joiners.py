"""Joiners: peers on their way into the job, which are spawned, awaited, offered to the coordinator, or dismissed.

Once one is ready, and before a view admits it, it is checked by digest that it runs the program of the job. The first
peers must all run the same program, else the job ends: nobody can say which of them is right. A later joiner must run
the program of the peers that train. Where digests differ, the descriptions are fetched (``ComparePrograms``); the
answer (``ProgramDiffers``) decides nothing any more, it says what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kungfu.runtime.core.cluster import placement
from kungfu.runtime.core.cluster.cluster import Cluster, Starting, Transition, mark_to_kill
from kungfu.runtime.core.cluster.events import (
    AdmitFirstView,
    Command,
    ComparePrograms,
    Fail,
    Kill,
    PeerProgressed,
    ReportMachines,
    Spawn,
)
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.view import View

UNLIKE_CODE = 2
_ANOTHER = "its program is not that of the job"
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
    """Starts peers; one for which no host has a free slot counts as missing.

    Args:
        cluster: The cluster.
        replacing: For each new peer the id of the lost one that it replaces; ``None`` for one that a request requested.
        now: Seconds of the agent's clock.
        host: The host on which they should run; without it the first one that has a free slot, see `place_for`.
        leaving: The peers that will leave for them, on other hosts if there is one with a free slot.
    """
    people, hosts, room = cluster.processes, cluster.hosts, placement.free_slots(cluster)
    avoided, left = placement.avoided_slots(hosts, now), {hosts.of[peer] for peer in leaving if peer in hosts.of}
    room = {one: count for one, count in room.items() if host in (None, one)}
    starting, of, missing = dict(cluster.starting), dict(hosts.of), dict(cluster.missing)
    spawns: list[Spawn] = []
    next_id = people.next_id
    for peer, other in enumerate(replacing, start=people.next_id):
        next_id = peer + 1
        place = placement.place_for(room, avoided, left=left)
        if place is None:
            # The coordinator hears of it with the next offer.
            missing[peer] = placement.NO_SLOT
            continue
        room[place] -= 1
        starting[peer], of[peer] = Starting(now, replaces=other), place
        giving_way, joins = _peers_giving_way(cluster, place, leaving), cluster.view is not None
        spawns.append(Spawn(peer, place, giving_way, joins, hosts.threads))
    alive = people.alive | {spawn.peer for spawn in spawns}
    lacked_slot = hosts.lacked_slot or len(missing) > len(cluster.missing)
    people, hosts = replace(people, alive=alive, next_id=next_id), replace(hosts, of=of, lacked_slot=lacked_slot)
    return replace(cluster, starting=starting, missing=missing, processes=people, hosts=hosts), [*spawns]


def dismiss(cluster: Cluster, peers: Iterable[int], reason: str) -> Transition:
    """Kills joiners that are not needed any more."""
    going = list(peers)
    return mark_to_kill(cluster.without_joiners(going), going), [Kill(peer, reason) for peer in going]


def _peers_giving_way(cluster: Cluster, host: int, leaving: Iterable[int]) -> tuple[int, ...]:
    """The peers whose processes run on a host, and that leave the job or have left it: their processors become free."""
    staying = {*cluster.members, *cluster.starting} - {*leaving}
    return tuple(peer for peer in placement.peers_on(cluster, host) if peer not in staying)


def on_decision(cluster: Cluster, decision: Decision, now: float) -> Transition:
    """A barrier decides on a number of processes: spawns what is missing, dismisses what is too much."""
    size, host, leaving = decision.prepare, decision.host, decision.terms.leaving
    if size is None or cluster.view is None or cluster.processes.finished & set(cluster.view.ids):
        # It wants none, or there is no coordinator yet that could decide, or training is over.
        return cluster, []
    have = len(cluster.members) + len(cluster.starting)
    # The newest size counts: whoever waits for a slot was asked for by an older one.
    cluster = replace(cluster, missing={}, hosts=replace(cluster.hosts, queue=()))
    if size > have:
        # Some are missing.
        waiting = 0 if host is not None else _waiting_for_slots(cluster, size - have, leaving)
        cluster, spawns = spawn(cluster, [None] * (size - have - waiting), now, host=host, leaving=leaving)
        return offer_if_ready(replace(cluster, hosts=replace(cluster.hosts, queue=(now,) * waiting)), spawns)
    # As many as asked for, or too many: those leave that have come least far, for they cost least.
    order = sorted(cluster.starting, key=lambda peer: (cluster.starting[peer].ready is not None, -peer))
    reason = f"the job wants {size} peer{'' if size == 1 else 's'} now"
    return offer_if_ready(*dismiss(cluster, order[: have - size], reason))


def _waiting_for_slots(cluster: Cluster, count: int, leaving: Iterable[int]) -> int:
    """The number of new peers without a slot now, but with one when the members with a notice are gone.

    The coordinator requests their replacements in the barrier that lets them go, a moment before their slots are free.

    Args:
        cluster: The cluster.
        count: The number of new peers.
        leaving: The members that leave only when their replacements have come.
    """
    lacking = max(0, count - sum(placement.free_slots(cluster).values()))
    return min(lacking, placement.about_to_be_free(cluster, {*leaving}))


def spawn_queued(cluster: Cluster, now: float) -> Transition:
    """Starts the joiners that waited for a slot, as far as slots are free."""
    queue = cluster.hosts.queue
    if not queue or not cluster.members or cluster.regrouping is not None:
        # Nobody waits, or nobody trains; or the view after a recovery will show who has left and who was lost.
        return cluster, []
    count = min(len(queue), sum(placement.free_slots(cluster).values()))
    limit, left = cluster.limits.deadlines.ready_s, queue[count:]
    # No slot will be free for them any more: a host was lost, say, or a member that was given notice did not leave.
    given_up = len(left) if not placement.about_to_be_free(cluster, ()) else sum(now - since > limit for since in left)
    if not count and not given_up:
        # All slots are still taken.
        return cluster, []
    cluster = replace(cluster, hosts=replace(cluster.hosts, queue=left[given_up:]))
    return offer_if_ready(*spawn(cluster, [None] * (count + given_up), now))


def on_peer_progressed(cluster: Cluster, event: PeerProgressed, now: float) -> Transition:
    """A joiner has attached, or is ready."""
    entry = cluster.starting.get(event.peer.id)
    if entry is None or entry.ready is not None:
        # It was dismissed meanwhile, and its end is under way; or it has said so before.
        return cluster, []
    if not event.ready:
        # It has attached, and traces its first step; or it says so again, while it reads to where the others are, or
        # compiles.
        entry = replace(entry, attached=now) if entry.attached is None else replace(entry, reads=now)
        return offer_if_ready(cluster.with_joiner(event.peer.id, entry))
    if cluster.view is not None and event.phase != cluster.phases.number:
        # It is ready for a phase that is over: it finds out, and gets ready for this one.
        return cluster, []
    entry = replace(entry, said=event)
    if not runs_same_program(cluster, entry):
        # It is not taken for ready until it is known what differs.
        cluster = cluster.with_joiner(event.peer.id, entry)
        return cluster, compare_waiting(cluster)
    usual, machine = cluster.identity.machine, entry.identity.machine
    # It runs on another machine than the job began with; for the first view that is found out for all together.
    differs = cluster.view is not None and machine != usual
    remarks = [ReportMachines(usual, {event.peer.id: machine})] if differs else []
    return offer_if_ready(cluster.with_joiner(event.peer.id, replace(entry, ready=now)), remarks)


def offer_if_ready(cluster: Cluster, commands: Sequence[Command] = ()) -> Transition:
    """Forms the first view, or offers the joiners to the coordinator, once all of them are ready.

    Args:
        cluster: The cluster after what was decided before.
        commands: The commands of that; those of this decision follow them.
    """
    if any(entry.ready is None for entry in cluster.starting.values()) or cluster.hosts.queue:
        # Some are still on their way, or wait for a slot.
        return cluster, [*commands]
    if cluster.regrouping is not None or cluster.phases.is_over or cluster.phases.is_forming:
        # There is no coordinator just now: the view after the recovery, or of the next phase, gets the offer.
        return cluster, [*commands]
    if cluster.view is None:
        # The first peers are all ready.
        cluster, forms = form_first_view(cluster)
        return cluster, [*commands, *forms]
    peers = tuple(entry.peer for _, entry in sorted(cluster.starting.items()) if entry.peer is not None)
    if not peers and not cluster.missing:
        # No peer was asked for.
        return cluster, [*commands]
    reason = "; ".join(f"peer {peer}: {why}" for peer, why in sorted(cluster.missing.items()))
    offer = JoinerOffer(peers, tuple(sorted(cluster.missing)), reason, _parts(cluster))
    return replace(cluster, missing={}), [*commands, offer]


def _parts(cluster: Cluster) -> dict[str, float]:
    """The seconds of the slowest joiner from its spawn to ``attach``, and from there until it was ready."""
    entries = [entry for entry in cluster.starting.values() if entry.attached and entry.ready]
    if not entries:
        return {}
    slowest = max(entries, key=lambda entry: (entry.ready or 0.0) - entry.since)
    attached, ready = slowest.attached or 0.0, slowest.ready or 0.0
    return {"spawn": attached - slowest.since, "ready": ready - attached}


def on_joiner_lost(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """A joiner will not come: one that replaces a lost peer is started again; without another one the run continues."""
    entry = cluster.starting[peer]
    cluster = cluster.without_joiners([peer])
    if entry.replaces is None:
        # It was asked for by a request, whose change of the size falls short by one.
        return offer_if_ready(replace(cluster, missing={**cluster.missing, peer: why}))
    losses = replace(cluster.losses, untrained=cluster.losses.untrained + 1)
    cluster = replace(cluster, losses=losses)
    if losses.untrained < CRASH_LOOP:
        # Another replacement may fare better.
        return offer_if_ready(*spawn(cluster, [entry.replaces], now))
    why = f"{why}; {losses.untrained} replacements in a row never trained, so no other one is started"
    return offer_if_ready(replace(cluster, missing={**cluster.missing, peer: why}))


def give_up_joiner(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """Kills a joiner that lives but is too late, or whose program ends; the run continues without it."""
    cluster, commands = on_joiner_lost(mark_to_kill(cluster, [peer]), peer, why, now)
    return cluster, [Kill(peer, why), *commands]


def late_joiner(cluster: Cluster, now: float) -> tuple[int, str] | None:
    """A joiner that has been on its way for too long, and how far it came."""
    limit = cluster.limits.deadlines.ready_s
    waiting = {peer: max(entry.since, entry.reads) for peer, entry in cluster.starting.items() if entry.ready is None}
    late = [peer for peer, since in waiting.items() if now - since > limit]
    if not late:
        # All are within their time.
        return None
    stage = "called kf.attach()" if cluster.starting[late[0]].attached else "started"
    why = f"waited {limit:.0f} s for peer {late[0]} to get ready; it has {stage} and not yet finished its first step"
    return late[0], why


# ---- the program of a joiner -----------------------------------------------------------------------------------------


def on_program_differs(cluster: Cluster, peer: int, how: str) -> Transition:
    """A starting peer does not run the program of the job."""
    if peer not in cluster.starting:
        # It ended meanwhile, or was dismissed.
        return cluster, []
    if cluster.view is None:
        # Of the first peers nobody can say which one is right.
        return cluster, [fail_as_different(how)]
    return offer_if_ready(*dismiss_as_different(cluster, peer, how))


def form_first_view(cluster: Cluster) -> Transition:
    """All first peers are ready: their view, if they are alike."""
    entries = [entry for _, entry in sorted(cluster.starting.items())]
    peers = tuple(entry.peer for entry in entries if entry.peer is not None)
    identity = entries[0].identity
    for peer, entry in zip(peers, entries, strict=True):
        if entry.identity.program != identity.program:
            # The answer will end the job, and tell what differs.
            return cluster, [ComparePrograms(peers[:1], peer)]
    # A resumed job may begin with a later phase.
    first = entries[0].said
    phases = replace(cluster.phases, number=first.phase if first else 1)
    cluster = replace(cluster, identity=identity, phases=phases)
    # Machines may differ, though they may round in another way: people are told.
    others = {
        peer.id: entry.identity.machine
        for peer, entry in zip(peers, entries, strict=True)
        if entry.identity.machine != identity.machine
    }
    remarks: list[Command] = [ReportMachines(identity.machine, others)] if others else []
    return cluster, [*remarks, AdmitFirstView(View(1, peers))]


def runs_same_program(cluster: Cluster, entry: Starting) -> bool:
    """True if this peer, which is ready, may join the view; before the first one that is decided together."""
    return cluster.view is None or entry.identity.program == cluster.identity.program


def compare_waiting(cluster: Cluster) -> list[Command]:
    """The comparisons that are under way: of joiners that are ready, and not known to run the same program."""
    if cluster.view is None:
        # Before the first view all are compared together.
        return []
    members = tuple(peer for peer in cluster.view.peers if peer.id in cluster.members)
    if not members:
        # No member is left that could describe the job's program.
        return []
    waiting = [
        entry.peer for _, entry in sorted(cluster.starting.items()) if entry.peer is not None and not entry.ready
    ]
    return [ComparePrograms(members, peer) for peer in waiting]


def fail_as_different(how: str) -> Fail:
    """The end of a job whose first peers differ."""
    return Fail(-1, f"the peers of this job must run the same program: {how}", code=UNLIKE_CODE)


def dismiss_as_different(cluster: Cluster, peer: int, how: str) -> Transition:
    """Dismisses a joiner that differs; no other one comes in its place, since it would run the same program."""
    cluster = replace(cluster.without_joiners([peer]), missing={**cluster.missing, peer: _ANOTHER})
    return mark_to_kill(cluster, [peer]), [Kill(peer, f"{_ANOTHER}: {how}")]
