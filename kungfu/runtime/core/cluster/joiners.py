"""Spawns joiners (peers on their way into the job), awaits them, offers them to the coordinator, or dismisses them.

A spare that waits on the host takes the place of a new process, see ``spares``.

The program of a ready joiner is compared with the job's, by digest, before a view admits the joiner. The first peers
must all run the same program, else the job ends, since it is unknown which program is right. A later joiner must run
the program of the peers that train. If digests differ, the peers' descriptions of their programs are fetched
(``ComparePrograms``), to name the difference in the error; this reply (``ProgramDiffers``) decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kungfu.runtime.core.cluster import events, placement, spares
from kungfu.runtime.core.cluster.cluster import Cluster, Starting, Transition, mark_to_kill
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.request import AGENT, Resize
from kungfu.runtime.core.view import View

UNLIKE_CODE = 2
_ANOTHER = "its program is not that of the job"
# After this many consecutive replacements that never trained, no more are started: the cause is persistent.
CRASH_LOOP = 3


def spawn(
    cluster: Cluster,
    replacing: Iterable[int | None],
    now: float,
    *,
    host: int | None = None,
    leaving: Iterable[int] = (),
) -> Transition:
    """Makes joiners of spares, or starts peers; a peer for which no host has a free slot counts as missing.

    Args:
        replacing: For each new peer, the id of the lost peer that it replaces; ``None`` for a requested peer.
        host: The host on which the peers should run; ``None`` for the one that `host_for` chooses.
        leaving: The peers that the new peers will replace; free slots on hosts without such peers are preferred.
    """
    hosts, room = cluster.hosts, placement.free_slots(cluster)
    avoided, left = placement.avoided_slots(hosts, now), {hosts.of[peer] for peer in leaving if peer in hosts.of}
    room = {one: count for one, count in room.items() if host in (None, one)}
    spread_over = hosts.slots if cluster.limits.place == "spread" else None
    commands: list[events.Command] = []
    for other in replacing:
        free_host = placement.host_for(
            room, avoided, left=left, spares=spares.hosts_of_spares(cluster), spread_over=spread_over
        )
        if free_host is None:
            # The next offer reports the missing peer to the coordinator.
            cluster = _without_slot(cluster)
            continue
        room[free_host] -= 1
        giving_way = _peers_giving_way(cluster, free_host, leaving)
        claimed = spares.claim(cluster, free_host, now, replaces=other)
        if claimed is None:
            # No spare waits on the host.
            cluster, peer = _with_process(cluster, free_host, Starting(now, replaces=other))
        else:
            cluster, peer = claimed
            commands.append(events.ReportSpare(peer, "wanted"))
        if claimed is None or cluster.starting[peer].loads_only:
            commands.append(_spawn_of(cluster, peer, leaving=giving_way))
    return cluster, commands


def _without_slot(cluster: Cluster) -> Cluster:
    """The cluster with one more requested peer that will not come, since no host has a free slot."""
    people = cluster.processes
    return replace(
        cluster,
        missing={**cluster.missing, people.next_id: placement.NO_SLOT},
        processes=replace(people, next_id=people.next_id + 1),
        hosts=replace(cluster.hosts, lacked_slot=True),
    )


def _with_process(cluster: Cluster, host: int, entry: Starting) -> tuple[Cluster, int]:
    """The cluster with a joiner whose process starts on this host, and the id of the joiner."""
    people, hosts = cluster.processes, cluster.hosts
    peer = people.next_id
    people = replace(people, alive=people.alive | {peer}, next_id=peer + 1)
    hosts = replace(hosts, of={**hosts.of, peer: host})
    return replace(cluster, processes=people, hosts=hosts).with_joiner(peer, entry), peer


def _spawn_of(cluster: Cluster, peer: int, *, leaving: tuple[int, ...] = ()) -> events.Spawn:
    hosts = cluster.hosts
    return events.Spawn(peer, hosts.of[peer], leaving, cluster.view is not None, hosts.threads)


def repeat_releases(cluster: Cluster) -> list[events.Command]:
    """The commands that let former "loaded" spares run their programs, which a lost leader may not have sent."""
    held = [peer for peer, entry in cluster.starting.items() if entry.loads_only and entry.attached is None]
    return [_spawn_of(cluster, peer) for peer in held if peer in cluster.alive]


def dismiss(cluster: Cluster, peers: Iterable[int], reason: str) -> Transition:
    """Kills joiners that are no longer needed."""
    going = list(peers)
    return mark_to_kill(cluster.without_joiners(going), going), [events.Kill(peer, reason) for peer in going]


def _peers_giving_way(cluster: Cluster, host: int, leaving: Iterable[int]) -> tuple[int, ...]:
    """The peers with a process on this host that are leaving or have left the job; their processors become free."""
    staying = {*cluster.members, *cluster.starting, *cluster.spares.waiting} - {*leaving}
    return tuple(peer for peer in placement.peers_on(cluster, host) if peer not in staying)


def on_decision(cluster: Cluster, decision: Decision, now: float) -> Transition:
    """Handles a barrier's decision on the number of processes: spawns missing peers or dismisses surplus joiners."""
    size, host, leaving = decision.prepare, decision.host, decision.terms.leaving
    asked = next(iter(decision.requests), None)
    if asked is not None and asked.id != AGENT and isinstance(asked.what, Resize):
        # A host that comes later restores the size before a loss only up to the size that was requested since then.
        goal = min(cluster.hosts.goal, decision.terms.target_size or decision.view.size)
        cluster = replace(cluster, hosts=replace(cluster.hosts, goal=goal))
    if size is None or cluster.view is None or cluster.processes.finished & set(cluster.view.ids):
        # The decision needs no change, there is no coordinator yet, or training is over.
        return cluster, []
    have = len(cluster.members) + len(cluster.starting)
    # The newest size counts: joiners that wait for a slot were requested for an older size.
    cluster = replace(cluster, missing={}, hosts=replace(cluster.hosts, queue=()))
    if size > have:
        # Some peers are missing.
        lacking = max(0, size - have - sum(placement.free_slots(cluster).values()))
        # Members with a notice, removed by the same barrier, still occupy their slots for a moment.
        waiting = 0 if host is not None else min(lacking, placement.about_to_be_free(cluster, leaving))
        cluster, spawns = spawn(cluster, [None] * (size - have - waiting), now, host=host, leaving=leaving)
        return offer_if_ready(replace(cluster, hosts=replace(cluster.hosts, queue=(now,) * waiting)), spawns)
    # There are enough peers or too many: the least advanced joiners are dismissed, since their loss costs the least.
    order = sorted(cluster.starting, key=lambda peer: (cluster.starting[peer].ready is not None, -peer))
    reason = f"the job wants {size} peer{'' if size == 1 else 's'} now"
    return offer_if_ready(*dismiss(cluster, order[: have - size], reason))


def spawn_queued(cluster: Cluster, now: float) -> Transition:
    """Starts joiners that waited for a slot, up to the number of free slots."""
    queue = cluster.hosts.queue
    if not queue or not cluster.members or cluster.regrouping is not None:
        # No joiner waits, or no member trains; in a recovery, the next view decides which slots are free.
        return cluster, []
    count = min(len(queue), sum(placement.free_slots(cluster).values()))
    limit, left = cluster.limits.deadlines.ready_s, queue[count:]
    # No slot will become free for these joiners: a host was lost, for example, or a member with a notice stayed.
    given_up = len(left) if not placement.about_to_be_free(cluster, ()) else sum(now - since > limit for since in left)
    if not count and not given_up:
        # All slots are still taken.
        return cluster, []
    cluster = replace(cluster, hosts=replace(cluster.hosts, queue=left[given_up:]))
    return offer_if_ready(*spawn(cluster, [None] * (count + given_up), now))


def on_peer_progressed(cluster: Cluster, event: events.PeerProgressed, now: float) -> Transition:
    """Handles the report of a joiner or a spare that it has called ``attach`` or is ready."""
    is_spare = event.peer.id in cluster.spares.waiting
    entry = (cluster.spares.waiting if is_spare else cluster.starting).get(event.peer.id)
    if entry is None or entry.ready is not None:
        # The joiner was dismissed and is about to end, or the report is repeated.
        return cluster, []
    if not event.ready:
        # The joiner has attached, and traces its first step; or it repeats the report while it reads its data up to
        # the others' position, or compiles.
        entry = replace(entry, attached=now) if entry.attached is None else replace(entry, reads=now)
        cluster = cluster.with_joiner(event.peer.id, entry)
        return (cluster, []) if is_spare else offer_if_ready(cluster)
    if cluster.view is not None and event.phase != cluster.phases.number:
        # The joiner is ready for another phase: it will notice, and get ready for the present phase.
        return cluster, []
    entry = replace(entry, said=event)
    if cluster.view is not None and entry.identity.program != cluster.identity.program:
        # The joiner does not count as ready: the difference is determined. The first peers are compared together.
        cluster = cluster.with_joiner(event.peer.id, entry)
        return cluster, compare_waiting(cluster)
    usual, machine = cluster.identity.machine, entry.identity.machine
    # A machine unlike that of the job's first peer is reported; for the first view, all are reported together.
    differs = cluster.view is not None and machine != usual
    remarks: list[events.Command] = [events.ReportMachines(usual, {event.peer.id: machine})] if differs else []
    cluster = cluster.with_joiner(event.peer.id, replace(entry, ready=now))
    # A spare is offered only when the job wants a peer.
    return (cluster, [*remarks, spares.report_ready(event)]) if is_spare else offer_if_ready(cluster, remarks)


def offer_if_ready(cluster: Cluster, commands: Sequence[events.Command] = ()) -> Transition:
    """Forms the first view, or offers the joiners to the coordinator, once all of them are ready.

    The new commands are appended to ``commands``, the commands of the preceding decision.
    """
    if any(entry.ready is None for entry in cluster.starting.values()) or cluster.hosts.queue:
        # Some joiners are still on their way, or wait for a slot.
        return cluster, [*commands]
    if cluster.regrouping is not None or cluster.phases.is_over or cluster.phases.is_forming:
        # There is no coordinator at the moment: the view after the recovery, or the next phase, gets the offer.
        return cluster, [*commands]
    if cluster.view is None:
        # The first peers are all ready.
        cluster, forms = form_first_view(cluster)
        return cluster, [*commands, *forms]
    peers = tuple(entry.peer for _, entry in sorted(cluster.starting.items()) if entry.peer is not None)
    if not peers and not cluster.missing:
        # No peer was requested.
        return cluster, [*commands]
    reason = "; ".join(f"peer {peer}: {why}" for peer, why in sorted(cluster.missing.items()))
    offer = JoinerOffer(peers, tuple(sorted(cluster.missing)), reason, _parts(cluster))
    return replace(cluster, missing={}), [*commands, offer]


def _parts(cluster: Cluster) -> dict[str, float]:
    """The seconds of the slowest joiner: ``spawn``, up to its ``attach``; ``ready``, from then to readiness."""
    entries = [entry for entry in cluster.starting.values() if entry.attached and entry.ready]
    if not entries:
        return {}
    slowest = max(entries, key=lambda entry: (entry.ready or 0.0) - entry.since)
    attached, ready = slowest.attached or 0.0, slowest.ready or 0.0
    return {"spawn": attached - slowest.since, "ready": ready - attached}


def on_joiner_lost(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """Handles a joiner that will not come: for a lost peer, another one is started; else it is reported as missing."""
    entry = cluster.starting[peer]
    cluster = cluster.without_joiners([peer])
    if entry.replaces is None:
        # The joiner was requested: the change of size falls short by one peer.
        return offer_if_ready(replace(cluster, missing={**cluster.missing, peer: why}))
    losses = replace(cluster.losses, untrained=cluster.losses.untrained + 1)
    cluster = replace(cluster, losses=losses)
    if losses.untrained < CRASH_LOOP:
        # Another replacement may succeed.
        return offer_if_ready(*spawn(cluster, [entry.replaces], now))
    why = f"{why}; {losses.untrained} replacements in a row never trained, so no other one is started"
    return offer_if_ready(replace(cluster, missing={**cluster.missing, peer: why}))


def give_up_joiner(cluster: Cluster, peer: int, why: str, now: float) -> Transition:
    """Kills a running joiner that is too late or whose program exits; the job continues without it."""
    cluster, commands = on_joiner_lost(mark_to_kill(cluster, [peer]), peer, why, now)
    return cluster, [events.Kill(peer, why), *commands]


def late_joiner(cluster: Cluster, now: float) -> tuple[int, str] | None:
    """The id of a late joiner, with a description of the stage that it reached; ``None`` if no joiner is late."""
    limit = cluster.limits.deadlines.ready_s
    waiting = {peer: max(entry.since, entry.reads) for peer, entry in cluster.starting.items() if entry.ready is None}
    late = [peer for peer, since in waiting.items() if now - since > limit]
    if not late:
        # All joiners are within their time.
        return None
    stage = "called kf.attach()" if cluster.starting[late[0]].attached else "started"
    why = f"waited {limit:.0f} s for peer {late[0]} to get ready; it has {stage} and not yet finished its first step"
    return late[0], why


def on_program_differs(cluster: Cluster, peer: int, how: str, now: float) -> Transition:
    """Handles a starting peer or a spare that does not run the program of the job."""
    if peer in cluster.spares.waiting:
        return spares.give_up(cluster, peer, f"{_ANOTHER}: {how}", now)
    if peer not in cluster.starting:
        # The peer has ended or was dismissed.
        return cluster, []
    if cluster.view is None:
        # It is unknown which of the first peers runs the right program.
        return cluster, [fail_as_different(how)]
    return offer_if_ready(*dismiss_as_different(cluster, peer, how))


def form_first_view(cluster: Cluster) -> Transition:
    """Forms the first view once all first peers are ready, if they run the same program."""
    reports = [entry.said for _, entry in sorted(cluster.starting.items()) if entry.said is not None]
    first, peers = reports[0], tuple(report.peer for report in reports)
    for report in reports:
        if report.identity.program != first.identity.program:
            # The answer names the difference and ends the job.
            return cluster, [events.ComparePrograms(peers[:1], report.peer)]
    # A resumed job may begin with a later phase.
    cluster = replace(cluster, identity=first.identity, phases=replace(cluster.phases, number=first.phase))
    # Machines may differ, although they may round differently: the user is notified.
    usual = first.identity.machine
    others = {report.peer.id: report.identity.machine for report in reports if report.identity.machine != usual}
    remarks: list[events.Command] = [events.ReportMachines(usual, others)] if others else []
    view = View(cluster.first_view, peers, begins_phase=cluster.first_view > 1)
    return cluster, [*remarks, events.AdmitFirstView(view)]


def compare_waiting(cluster: Cluster) -> list[events.Command]:
    """The commands that compare programs: one for each joiner or spare that is ready but runs a different program."""
    if cluster.view is None:
        # Before the first view all programs are compared together.
        return []
    members = tuple(peer for peer in cluster.view.peers if peer.id in cluster.members)
    if not members:
        # No member is left that could describe the job's program.
        return []
    coming = {**cluster.starting, **cluster.spares.waiting}
    waiting = [entry for _, entry in sorted(coming.items()) if entry.ready is None]
    return [events.ComparePrograms(members, entry.peer) for entry in waiting if entry.peer is not None]


def fail_as_different(how: str) -> events.Fail:
    """The command that ends the job because its peers run different programs."""
    return events.Fail(-1, f"the peers of this job must run the same program: {how}", code=UNLIKE_CODE)


def dismiss_as_different(cluster: Cluster, peer: int, how: str) -> Transition:
    """Dismisses a joiner with a different program; a replacement would run that program as well, so none is started."""
    cluster = replace(cluster.without_joiners([peer]), missing={**cluster.missing, peer: _ANOTHER})
    return mark_to_kill(cluster, [peer]), [events.Kill(peer, f"{_ANOTHER}: {how}")]
