"""The decisions of the agent: a pure function of the peers that it started and the events that it receives.

``react(cluster, event, now)`` returns the next cluster and the commands to perform. A peer is *starting* from its spawn
until it trains in a view; then it is a member, until it ends or a later view lacks it.

| event                             | reaction                                                               |
| --------------------------------- | ---------------------------------------------------------------------- |
| a starting peer is ready          | if no other is on its way: form the first view, or offer the joiners   |
| a starting peer runs another      | in the first view: the job fails; else: it is dismissed without a      |
| program                           | replacement                                                            |
| a starting peer ends or is late   | in the first view: the job fails; a replacement: start another, up to  |
|                                   | three in a row; else: offer the ready joiners                          |
| a barrier decides on a size       | spawn missing peers, kill surplus ones, offer the remaining joiners    |
| a member ends during training     | announce its end; the survivors report                                 |
| a member reports a loss of others | once all running members have reported: form a view (``recovery``)     |
| a view with joiners trains        | kill peers that are still starting: the job has the size it wanted     |
| the view of survivors trains      | spawn replacements, within the budgets                                 |
| the program of a member exits     | see ``program_exits``                                                  |
| a member is given notice          | ask the coordinator to remove and replace it; if no slot is free, the  |
|                                   | replacement starts when the member has left the view                   |
| a host is given notice            | the same for all its members; its joiners start elsewhere; the host is |
|                                   | released when no process runs on it                                    |
| a host is lost                    | all its peers have ended                                               |
| a host comes                      | its slots are free; lost peers that have no replacement are replaced   |
| a phase of the program is over    | see ``phases``                                                         |
| a script fails after its training | record it: the job fails when the others have ended                    |
| no member runs                    | kill starting peers: no peer could admit them                          |
| a spare ends, or peers are wanted | see ``spares``                                                         |
| all processes have ended, except  | the job is done                                                        |
| spares                            |                                                                        |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kungfu.runtime.core.cluster import events, joiners, phases, placement, program_exits, recovery, spares
from kungfu.runtime.core.cluster.cluster import (
    PREEMPTED,
    Cluster,
    Hosts,
    JobLimits,
    Processes,
    Starting,
    Transition,
    exit_in_words,
)
from kungfu.runtime.core.next_membership import Decision
from kungfu.runtime.core.request import AGENT, Asked, Leave, Resize, Retry
from kungfu.runtime.core.view import View

_KILLED = -9
_NOBODY_ENDED = (
    "training ended without a peer that came to the end of its program: all had been let go, and nobody was left to "
    "whom the state had been given; go on from a checkpoint (kungfu-run --resume)"
)
_KILL_AGAIN = "the leader before was lost when it had decided so"


def start_job(
    size: int, *, limits: JobLimits, now: float, hosts: Hosts | None = None, first_peer: int = 0, first_view: int = 1
) -> Transition:
    """Starts a job of ``size`` peers on ``hosts``, which must have enough slots; by default, on a single host. A job
    that is started again numbers its peers and views from ``first_peer`` and ``first_view`` on."""
    people = Processes(next_id=first_peer)
    cluster = Cluster(limits, hosts=hosts or Hosts(), processes=people, first_view=first_view)
    return joiners.spawn(cluster, [None] * size, now)


def react(cluster: Cluster, event: events.Event, now: float) -> Transition:
    """The next state of the cluster, and the commands to perform, in order; ``now`` is seconds of the agent's clock."""
    cluster, commands = _react(cluster, event, now)
    # The programs are compared once, when the last peer is ready.
    may_form = not isinstance(event, events.Tick | events.ProgramDiffers)
    cluster, forms = phases.form_phase(cluster, now) if may_form else (cluster, [])
    cluster, spawns = joiners.spawn_queued(cluster, now)
    cluster, releases = placement.release_empty_hosts(cluster)
    commands = [*commands, *forms, *spawns, *releases]
    # A job that ends needs no spares.
    is_over = any(isinstance(command, events.Done | events.Fail) for command in commands)
    cluster, more = (cluster, []) if is_over else spares.fill(cluster, now)
    return cluster, [*commands, *more]


def _react(cluster: Cluster, event: events.Event, now: float) -> Transition:
    match event:
        # No phase is under way: ready peers wait for the next phase.
        case events.PeerProgressed(ready=True) if cluster.phases.is_over:
            return phases.on_peer_ready_for_phase(cluster, event, now)
        case events.PeerProgressed():
            return joiners.on_peer_progressed(cluster, event, now)
        case events.SpareLoaded():
            return spares.on_loaded(cluster, event, now)
        case events.ProgramDiffers(peer, how) if cluster.phases.is_over:
            return phases.on_phase_differs(cluster, peer, how)
        case events.ProgramDiffers(peer, how):
            return joiners.on_program_differs(cluster, peer, how, now)
        case Decision():
            return joiners.on_decision(cluster, event, now)
        case events.ViewStarted():
            return _on_view_started(cluster, event, now)
        case events.TrainingFinished(peer, False, phase) if phase:
            return phases.on_phase_over(cluster, peer, phase, now)
        case events.TrainingFinished(peer, leaving):
            return _on_training_finished(cluster, peer, now, leaving=leaving)
        case events.PeersLost() if cluster.phases.is_forming:
            return phases.on_reported_while_forming(cluster, event)
        case events.PeersLost():
            return recovery.on_peers_lost(cluster, event, now)
        case events.CoordinatorUnreachable(view):
            return recovery.on_coordinator_unreachable(cluster, view)
        case events.PeerNoticed(peer):
            return _on_peers_noticed(cluster, peer)
        # The peer's host was given up, or the report is repeated.
        case events.ProcessEnded(peer, _) if peer not in cluster.alive:
            return cluster, []
        case events.ProcessEnded(peer, code):
            people = replace(cluster.processes, alive=cluster.alive - {peer})
            return _on_process_ended(
                program_exits.with_exit_code(replace(cluster, processes=people), peer, code), peer, code, now
            )
        case events.ProgramExiting():
            return program_exits.on_program_exiting(cluster, event, now)
        case events.HostJoined(host, slots):
            return _on_host_joined(cluster, host, slots)
        case events.HostNoticed(host):
            return _on_host_noticed(cluster, host, now)
        case events.HostLost(host, how):
            return _on_host_lost(cluster, host, how, now)
        case events.LeaderTookOver():
            return _on_leader_took_over(cluster, now)
        case events.Tick():
            return _on_tick(cluster, now)


def _on_view_started(cluster: Cluster, event: events.ViewStarted, now: float) -> Transition:
    """Handles a view that has begun to train; requests the removal of preempted members if it had to wait."""
    left = _removed_peers(cluster, event.view)
    # The size that the job would have without losses; a view from which a decision removed peers sets a smaller goal.
    goal = event.view.size if left else max(cluster.hosts.goal, event.view.size)
    # Removed peers also report their removal, but a request that comes before the report must avoid their slots.
    hosts = placement.with_departures(replace(cluster.hosts, goal=goal), left & set(cluster.members), now)
    cluster = replace(cluster, hosts=hosts, terms=event.terms)
    begins = cluster.phases.is_forming and cluster.view == event.view
    cluster, commands = phases.on_phase_began(cluster, now) if begins else recovery.on_view_started(cluster, event, now)
    cluster, spawns = joiners.spawn_queued(_forget_ended(cluster), now)
    missed = sorted(cluster.losses.noticed & set(cluster.members)) if cluster.regrouping is None else []
    cluster, asks = _fill_new_hosts(cluster)
    return cluster, [*commands, *spawns, *_request_leave(cluster, missed), *asks]


def _forget_ended(cluster: Cluster) -> Cluster:
    """Forgets each peer that neither runs nor is in the view: the peer's host and the reported exit of its program."""
    known = cluster.alive | set(cluster.view.ids if cluster.view else ())
    of = {peer: host for peer, host in cluster.hosts.of.items() if peer in known}
    exiting = {peer: one for peer, one in cluster.losses.exiting.items() if peer in known}
    losses = replace(cluster.losses, exiting=exiting, killed=cluster.losses.killed & known)
    return replace(cluster, hosts=replace(cluster.hosts, of=of), losses=losses)


def _on_training_finished(cluster: Cluster, peer: int, now: float, *, leaving: bool) -> Transition:
    """Handles a peer whose training is over, because training is complete or a view removed the peer."""
    people = cluster.processes
    if leaving:
        # A view removed the peer. If the peer was preempted by its platform, the host is not slow.
        noticed = peer in cluster.losses.noticed
        hosts = cluster.hosts if noticed else placement.with_departures(cluster.hosts, [peer], now)
        return replace(cluster, hosts=hosts, processes=replace(people, released=people.released | {peer})), []
    # The job has trained to its end: joiners are not needed any more.
    hosts = replace(cluster.hosts, queue=())
    cluster = replace(cluster, processes=replace(people, finished=people.finished | {peer}), hosts=hosts)
    return joiners.dismiss(cluster, cluster.starting, "training is over")


def _on_peers_noticed(cluster: Cluster, *peers: int) -> Transition:
    """Handles a preemption notice to peers: members are asked to leave at the next barrier; others are ignored."""
    losses = cluster.losses
    there = {*cluster.members, *cluster.between_phases}
    news = [peer for peer in peers if peer in there and peer not in losses.noticed]
    cluster = replace(cluster, losses=losses.with_preempted(*news))
    # Without a view that trains there is no coordinator: the request follows later.
    is_idle = cluster.regrouping is not None or cluster.phases.is_over or cluster.phases.is_forming
    return cluster, [] if is_idle else _request_leave(cluster, news)


def _request_leave(cluster: Cluster, peers: Sequence[int]) -> list[events.Command]:
    """The request to the coordinator to remove preempted peers; replacements come within the budget of preemptions."""
    if not peers:
        # No peer is to be removed.
        return []
    people = len(cluster.members) + len(cluster.starting)
    beyond_budget = max(0, cluster.losses.preemptions - cluster.limits.replacements.preemptions)
    size = people - min(len(peers), beyond_budget)
    return [Asked(Leave(tuple(peers), "noticed", size), "preemption notice", id=AGENT)]


def _on_leader_took_over(cluster: Cluster, now: float) -> Transition:
    """Handles a new leader: repeats commands for peers, which detect repetitions by version or id."""
    late = cluster.regrouping.killed if cluster.regrouping else frozenset[int]()
    late |= {peer for peer, one in cluster.losses.exiting.items() if one.killed}
    dead = sorted((cluster.processes.to_kill | late) & cluster.alive)
    repeated = [*(events.Kill(peer, _KILL_AGAIN) for peer in dead), *joiners.repeat_releases(cluster)]
    if cluster.regrouping is not None:
        # In the middle of a recovery.
        cluster, commands = recovery.resume(cluster, now)
        return cluster, [*repeated, *commands] if cluster.wanted or commands else [_job_end(cluster)]
    if not cluster.wanted:
        # All processes ended, but the previous leader could not report this.
        return cluster, [_job_end(cluster)]
    if cluster.phases.is_over or cluster.phases.is_forming:
        # Between two phases: the admission to the next phase is repeated.
        return cluster, [*repeated, *phases.repeat_admission(cluster)]
    noticed = sorted(cluster.losses.noticed & set(cluster.members))
    again = [*repeated, *_request_leave(cluster, noticed), *joiners.compare_waiting(cluster)]
    return joiners.offer_if_ready(cluster, again)


# ---- hosts -----------------------------------------------------------------------------------------------------------


def _on_host_joined(cluster: Cluster, host: int, slots: int) -> Transition:
    """Handles a new host: asks the coordinator to restore the former size, or to retry requests that lacked a slot."""
    before = cluster.hosts
    hosts = replace(before, slots={**before.slots, host: slots}, leaving=before.leaving - {host}, has_new=True)
    return _fill_new_hosts(replace(cluster, hosts=hosts))


def _fill_new_hosts(cluster: Cluster) -> Transition:
    """Asks the coordinator once for the peers that had no slot before hosts came; without a coordinator, later."""
    hosts, why = cluster.hosts, "a host with free slots has come"
    if not hosts.has_new or cluster.view is None or cluster.regrouping is not None:
        # No host has come, or there is no coordinator at the moment.
        return cluster, []
    cluster = replace(cluster, hosts=replace(hosts, has_new=False, lacked_slot=False))
    if len(cluster.members) + len(cluster.starting) < hosts.goal:
        # A lost peer is still to be replaced, or the job began with fewer peers.
        return cluster, [Asked(Resize(hosts.goal), why, id=AGENT)]
    # The coordinator was informed that no host had a free slot: now it may request peers again.
    return cluster, [Asked(Retry(), why, id=AGENT)] if hosts.lacked_slot else []


def _removed_peers(cluster: Cluster, view: View) -> set[int]:
    """The peers that a new view removes by a decision, and not because of a loss or a preemption."""
    gone = set(cluster.view.ids if cluster.view else ()) - set(view.ids)
    return gone - cluster.losses.noticed - set(cluster.regrouping.lost if cluster.regrouping else ())


def _on_host_noticed(cluster: Cluster, host: int, now: float) -> Transition:
    """Handles a preemption notice to a host: its members are removed, and its joiners start elsewhere."""
    if host in cluster.hosts.leaving or host not in cluster.hosts.slots:
        # The notice is repeated, or the host is lost.
        return cluster, []
    cluster = placement.close_host(cluster, host, leaving=True)
    cluster, ended = spares.close_host(cluster, host, "its host will be taken away")
    there = placement.peers_on(cluster, host)
    if cluster.view is None:
        # There is no coordinator that could remove the host's peers. A host without peers may leave.
        why = "a host was told to leave before the first view was formed"
        return cluster, [events.Fail(-1, why, is_loss=True)] if there else []
    coming = {peer: cluster.starting[peer].replaces for peer in there if peer in cluster.starting}
    cluster, kills = joiners.dismiss(cluster, coming, "its host will be taken away")
    cluster, spawns = joiners.spawn(cluster, coming.values(), now)
    cluster, notices = _on_peers_noticed(cluster, *there)
    return joiners.offer_if_ready(cluster, [*ended, *kills, *spawns, *notices])


def _on_host_lost(cluster: Cluster, host: int, how: str, now: float) -> Transition:
    """Handles the loss of a host: all processes of the host count as ended."""
    there = placement.peers_on(cluster, host)
    cluster = placement.close_host(cluster, host, leaving=False)
    if cluster.view is None and there:
        # The first view cannot be formed without the host's peers.
        return cluster, [events.Fail(-1, how, is_loss=True)]
    cluster = replace(cluster, processes=replace(cluster.processes, alive=cluster.alive - {*there}))
    commands: list[events.Command] = []
    for peer in there:
        cluster = replace(cluster, losses=cluster.losses.with_killed(peer, _KILLED))
        cluster, more = _on_process_ended(cluster, peer, _KILLED, now, how=how)
        commands += more
    return cluster, commands


# ---- ends ------------------------------------------------------------------------------------------------------------


def _on_process_ended(cluster: Cluster, peer: int, code: int, now: float, *, how: str = "") -> Transition:
    """Handles the end of a process, depending on the state of its peer and on the peer's reports."""
    people, how = cluster.processes, how or exit_in_words(code)
    if peer in cluster.spares.waiting:
        # The job did not want the peer yet.
        return spares.on_spare_lost(cluster, peer, how, now)
    if cluster.phases.is_forming and cluster.view is not None and peer in cluster.view.ids:
        # The peer belongs to the forming view of a phase.
        return phases.on_lost_while_forming(cluster, peer, how, now)
    if peer in cluster.starting:
        # The peer was a joiner.
        return _on_joiner_ended(cluster, peer, code, now, how=how)
    training_is_over = bool(people.finished) and not cluster.wanted
    departure = program_exits.early_departure(cluster, peer)
    said = "" if departure is None else program_exits.describe_departure(departure)
    if departure is not None and (failed := program_exits.chosen_failure(cluster, peer, said)) is not None:
        # The peer's program chose the end of the job, although the others may have finished training by now.
        return cluster, [failed]
    if not training_is_over and departure is not None:
        # The peer reported the exit of its program while others continue to train.
        exited = departure.exit.kind == "exit"
        if code == 0 and exited:
            # If all others end in this way too, the job is done.
            cluster = replace(cluster, processes=replace(people, ended_well=people.ended_well | {peer}))
        if code not in PREEMPTED or not exited:
            # The peer was lost when it reported, or will be lost when the others report its loss.
            return _end_if_nobody_trains(cluster, [])
        if _is_lost(cluster, peer):
            # The process ended by SIGTERM: only now is the preemption known.
            return _end_if_nobody_trains(program_exits.count_as_preempted(cluster, peer), [])
    if cluster.phases.is_over and peer in people.finished:
        # Between two phases, a program that ends well is not missed.
        if code != 0:
            cluster = phases.on_lost_between_phases(cluster, peer, code, how)
        return _end_if_nobody_trains(cluster, [])
    if cluster.view is None or peer not in cluster.view.ids or peer in people.released:
        # No view needs the peer.
        return _end_if_nobody_trains(cluster, [])
    if peer in people.finished or (training_is_over and code > 0):
        # Training is over; if the script failed afterwards, the job fails when the others have ended.
        if code != 0:
            broken = {**cluster.losses.broken_after, peer: how}
            cluster = replace(cluster, losses=replace(cluster.losses, broken_after=broken))
        return _end_if_nobody_trains(cluster, [])
    if code == 0 and cluster.regrouping is None:
        # The script ended without a report. If others continue to train, they will report the loss.
        cluster = replace(cluster, processes=replace(people, ended_well=people.ended_well | {peer}))
        return _end_if_nobody_trains(cluster, [events.AnnounceFailure(peer, 0, recovery.QUIT)])
    # A member was lost while it trained.
    cluster, commands = recovery.on_member_lost(
        replace(cluster, losses=cluster.losses.with_ended(peer, code)), peer, how, now
    )
    return cluster, [*commands, *([_job_end(cluster)] if training_is_over else [])]


def _is_lost(cluster: Cluster, peer: int) -> bool:
    """True if the running peers continue, or are about to continue, without this former member."""
    gone = cluster.view is not None and peer not in cluster.view.ids
    return gone or (cluster.regrouping is not None and peer in cluster.regrouping.lost)


def _on_joiner_ended(cluster: Cluster, peer: int, code: int, now: float, *, how: str) -> Transition:
    """Handles the end of a joiner's process."""
    entry, version = cluster.starting[peer], cluster.view.version if cluster.view else 0
    if cluster.view is None and code == 0:
        # The script does not train at all.
        return cluster, [events.Fail(peer, _no_training_reason(entry), code=2)]
    if cluster.view is None:
        # The first view cannot be formed without the joiner.
        departure = cluster.losses.exiting.get(peer)
        said = f"{how}: {departure.exit.error}" if departure is not None and departure.exit.error else how
        return cluster, [program_exits.chosen_failure(cluster, peer, said) or events.Fail(peer, how)]
    if cluster.phases.is_over and code == 0:
        # The joiner skipped all phases and reached the end of its program: no phase was left to join.
        return _end_if_nobody_trains(cluster.without_joiners([peer]), [])
    why = f"ended ({how}) {now - entry.since:.1f} s after its start"
    cluster, commands = joiners.on_joiner_lost(cluster, peer, why, now)
    # Peers in a view may wait for the joiner: they are notified of its end.
    return _end_if_nobody_trains(cluster, [*([events.AnnounceFailure(peer, 0, how)] if version else []), *commands])


def _end_if_nobody_trains(cluster: Cluster, commands: list[events.Command]) -> Transition:
    """Ends the job if no process but spares runs, and dismisses the joiners if no member runs."""
    if not cluster.wanted:
        # The last process has ended.
        return cluster, [_job_end(cluster)]
    if cluster.view is None or cluster.alive & {*cluster.view.ids, *cluster.processes.finished}:
        # The others continue.
        return cluster, commands
    # Only joiners are left, and no peer could admit them.
    return joiners.dismiss(cluster, cluster.starting, "no peer that trains is left")


def _job_end(cluster: Cluster) -> events.Command:
    """The command that ends a job whose processes have all ended."""
    broken, people = dict(cluster.losses.broken_after), cluster.processes
    if not broken and people.finished | people.ended_well:
        # Peers have trained to the end, and every script has ended well.
        return events.Done()
    if not broken:
        # Every peer was removed.
        return events.Fail(-1, _NOBODY_ENDED, is_loss=True)
    # Scripts failed after their training.
    root = min(broken)
    how = f"{broken.pop(root)}, after its training was over"
    return program_exits.chosen_failure(cluster, root, how, others=broken) or events.Fail(root, how, others=broken)


def _no_training_reason(entry: Starting) -> str:
    if entry.attached is None:
        return "the script ended without calling kf.attach(): nothing was trained under kungfu-run"
    return "the script called kf.attach() but never called a function marked @training.step"


def _on_tick(cluster: Cluster, now: float) -> Transition:
    """Handles members, exiting programs and joiners that have missed their deadlines."""
    cluster, commands = recovery.form_view(cluster, now)
    cluster, kills = recovery.kill_late_members(cluster, now)
    cluster, overdue = program_exits.kill_late_exits(cluster, now)
    cluster, late_for_phase = phases.kill_late_for_phase(cluster, now)
    kills = [*commands, *kills, *overdue, *late_for_phase]
    if (late_spare := spares.late_spare(cluster, now)) is not None:
        cluster, more = spares.give_up(cluster, *late_spare, now)
        kills += more
    late = joiners.late_joiner(cluster, now)
    if late is None:
        # All joiners are within their time.
        return cluster, kills
    peer, why = late
    if cluster.view is None:
        # The first view waits for all its peers.
        return cluster, [events.Fail(peer, why, late=True)]
    cluster, commands = joiners.give_up_joiner(cluster, peer, why, now)
    return cluster, [*kills, *commands]
