"""The phases of a job: the consecutive trainings of its program.

A phase ends like the training of a job: its peers hold a last barrier, and each peer reports that it has finished. It
is then unknown whether the program trains again. The next phase begins like the job: each peer that reaches the phase
reports that it is ready; when all are ready, they form a view and begin with the state of rank 0. Between two phases a
peer is in no barrier, and only this module waits for the peer.

| event                             | reaction                                                                        |
| --------------------------------- | ------------------------------------------------------------------------------- |
| a member has finished a phase     | joiners stay, and get ready again for the next phase                            |
| a former member is ready          | if it is the last: all form the first view of the phase, with the ready joiners |
| a joiner is ready                 | for the next phase: it joins with the others; for a phase that is over: it is   |
|                                   | ignored, finds out which phases are over, and gets ready again                  |
| programs differ                   | of former members: the job fails; of a joiner: it is dismissed, as always       |
| a former member ends              | the others form the view without it; if it failed, it is replaced               |
| some are not ready in time        | they are killed                                                                 |
| a peer is lost while the view is  | the others form another view, with the same state; if rank 0 is lost, whose     |
| forming                           | state all receive, the job fails                                                |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kungfu.runtime.core.cluster import events, spares
from kungfu.runtime.core.cluster.cluster import Cluster, Phases, Starting, Transition, mark_to_kill
from kungfu.runtime.core.cluster.joiners import dismiss_as_different, fail_as_different, offer_if_ready, spawn
from kungfu.runtime.core.cluster.recovery import within_budgets
from kungfu.runtime.core.view import View

# The time in which a view must begin, in multiples of --deadline: its peers attach, and receive the state.
_FORMING_WAITS = 3


def on_phase_over(cluster: Cluster, peer: int, phase: int, now: float) -> Transition:
    """Handles a member that has finished a phase, after which another may follow."""
    phases, people = cluster.phases, cluster.processes
    if phase != phases.number:
        # The report is repeated: the next phase is under way.
        return cluster, []
    if not phases.is_over:
        # The first report. Joiners were getting ready for this phase: they notice its end, and get ready for the next.
        unready = {id_: replace(entry, since=now, ready=None, said=None) for id_, entry in cluster.starting.items()}
        cluster = spares.end_phase(replace(cluster, starting=unready, phases=replace(phases, is_over=True)))
    return replace(cluster, processes=replace(people, finished=people.finished | {peer})), []


def on_peer_ready_for_phase(cluster: Cluster, event: events.PeerProgressed, now: float) -> Transition:
    """Handles a former member or a joiner that has reported, between two phases, that it is ready."""
    peer, phases = event.peer.id, cluster.phases
    if event.phase != phases.number + 1:
        # The joiner does not know yet that the phase is over.
        return cluster, []
    reported = Starting(now, attached=now, ready=now, said=event)
    if peer in cluster.starting:
        before = cluster.starting[peer]
        entry = replace(reported, since=before.since, attached=before.attached, replaces=before.replaces)
        return cluster.with_joiner(peer, entry), []
    if peer in cluster.between_phases and peer not in phases.ready:
        return replace(cluster, phases=replace(phases, ready={**phases.ready, peer: reported})), []
    # The report is repeated, or the peer was dismissed.
    return cluster, []


# ---- the first view of a phase ---------------------------------------------------------------------------------------


def form_phase(cluster: Cluster, now: float) -> Transition:
    """Forms the first view of the next phase once all running former members are ready for it."""
    phases = cluster.phases
    if not phases.is_over or not phases.ready or cluster.members or cluster.between_phases - phases.ready.keys():
        # No phase is over, or some peers have not reached the next phase.
        return cluster, []
    reports = _in_rank_order(cluster)
    if not reports:
        # All ready peers have ended.
        return cluster, []
    reference = reports[0]
    for report in reports:
        if report.identity.program != reference.identity.program:
            # The answer names the difference and ends the job.
            return cluster, [events.ComparePrograms((reference.peer,), report.peer)]
    waiting = [entry.said for _, entry in sorted(cluster.starting.items()) if entry.ready is not None and entry.said]
    alike = [report for report in waiting if report.identity.program == reference.identity.program]
    # Joiners with another program are dismissed when the difference is known.
    others = [events.ComparePrograms((reference.peer,), report.peer) for report in waiting if report not in alike]
    cluster, commands = _with_view(cluster, [*reports, *alike], now)
    return cluster, [*others, *commands]


def _in_rank_order(cluster: Cluster) -> list[events.PeerProgressed]:
    """The reports of the ready, running former members, by rank in the last view; members outside it follow by id."""
    ids = cluster.view.ids if cluster.view else ()
    ready = {peer: entry.said for peer, entry in cluster.phases.ready.items() if entry.said}
    between = cluster.between_phases & ready.keys()
    order = sorted(between, key=lambda peer: (ids.index(peer) if peer in ids else len(ids), peer))
    return [ready[peer] for peer in order]


def _with_view(cluster: Cluster, reports: Sequence[events.PeerProgressed], now: float) -> Transition:
    """Begins the next phase; the peers that sent ``reports`` form its first view."""
    assert cluster.view is not None
    view = View(cluster.view.version + 1, tuple(report.peer for report in reports), begins_phase=True)
    losses = cluster.losses
    for peer, code in cluster.phases.lost.items():
        losses = losses.with_ended(peer, code)
    # Peers lost in the last barrier or after it are replaced within the budgets.
    regrouping = cluster.regrouping
    replaced = within_budgets(cluster, losses, (*(regrouping.lost if regrouping else ()), *cluster.phases.lost))
    coming = _number_coming(cluster, view, replaced)
    if view.size + coming < cluster.limits.minimum:
        # The job would continue below its minimum of peers.
        lost = {**cluster.losses.broken_after}
        root = min(cluster.phases.lost, default=-1)
        left = f"{view.size} peer{'' if view.size == 1 else 's'} came to phase {cluster.phases.number + 1}"
        reason = f"{lost.pop(root, '')}; ".lstrip("; ") + f"{left}, fewer than --min {cluster.limits.minimum}"
        return cluster, [events.Fail(root, reason, others=lost)]
    # The training continues, so the peers lost between the phases did not fail after the end of training.
    losses = replace(losses, broken_after={})
    phases = Phases(cluster.phases.number + 1, is_forming=True, since=now, replaced=replaced)
    people = replace(cluster.processes, finished=frozenset())
    cluster = replace(
        cluster, view=view, phases=phases, processes=people, losses=losses, regrouping=None,
        identity=reports[0].identity,
    )  # fmt: skip
    return cluster, repeat_admission(cluster)


def on_phase_began(cluster: Cluster, now: float) -> Transition:
    """Handles the first view of a phase once it trains: keeps unready joiners, and replaces lost peers."""
    assert cluster.view is not None
    fresh = cluster.starting.keys() & {*cluster.view.ids}
    losses = replace(cluster.losses, untrained=0) if fresh else cluster.losses
    replaced, phases = cluster.phases.replaced, Phases(cluster.phases.number)
    cluster = spares.begin_phase(replace(cluster.without_joiners(fresh), losses=losses, phases=phases), now)
    return offer_if_ready(*spawn(cluster, replaced, now))


def repeat_admission(cluster: Cluster) -> list[events.Command]:
    """Repeats the admission to a forming view of a phase, since some peers may have missed the admission."""
    view, phases = cluster.view, cluster.phases
    if not phases.is_forming or view is None:
        # No admission is to be repeated.
        return []
    coming = _number_coming(cluster, view, phases.replaced)
    return [events.AdmitPhase(view, phases.number, view.size + coming if coming else 0)]


def _number_coming(cluster: Cluster, view: View, replaced: Sequence[int]) -> int:
    """The number of peers that join after this view: joiners, replacements and joiners that wait for a slot."""
    return len(cluster.starting.keys() - {*view.ids}) + len(replaced) + len(cluster.hosts.queue)


# ---- failures --------------------------------------------------------------------------------------------------------


def on_phase_differs(cluster: Cluster, peer: int, how: str) -> Transition:
    """Handles a peer whose program differs from the others', between two phases."""
    if peer in cluster.phases.ready:
        # It is unknown which former member runs the right program.
        return cluster, [fail_as_different(how)]
    return dismiss_as_different(cluster, peer, how) if peer in cluster.starting else (cluster, [])


def on_lost_between_phases(cluster: Cluster, peer: int, code: int, how: str) -> Cluster:
    """Records a failed former member: if the others begin another phase, the member is replaced; else the job fails."""
    losses = replace(cluster.losses, broken_after={**cluster.losses.broken_after, peer: how})
    phases = replace(cluster.phases, lost={**cluster.phases.lost, peer: code})
    return replace(cluster, losses=losses, phases=phases)


def on_lost_while_forming(cluster: Cluster, peer: int, how: str, now: float) -> Transition:
    """Handles the loss of a peer of the forming view: the others form another view; without rank 0, the job fails."""
    view, phases = cluster.view, cluster.phases
    assert view is not None
    if peer == view.ids[0]:
        reason = (
            f"{how}, while phase {phases.number} of the job began with its state, which no other peer holds; go on "
            "from a checkpoint (kungfu-run --resume)"
        )
        return cluster, [events.Fail(peer, reason)]
    smaller = View(view.version + 1, tuple(one for one in view.peers if one.id != peer), begins_phase=True)
    losses = cluster.losses
    if peer not in cluster.starting:
        # A former member counts as failed, and is replaced. A joiner was not yet part of the job.
        losses = losses.with_failed(peer)
        phases = replace(phases, replaced=(*phases.replaced, peer))
    phases = replace(phases, since=now)
    cluster = replace(cluster.without_joiners([peer]), view=smaller, phases=phases, losses=losses)
    # Peers that have begun to enter the view leave it; the other peers do not know of this view.
    return cluster, [events.AnnounceFailure(peer, view.version, how), *repeat_admission(cluster)]


def on_reported_while_forming(cluster: Cluster, event: events.PeersLost) -> Transition:
    """Handles a peer that could not enter the first view of a phase: peers that hang are killed.

    When the processes of the hanging peers have ended, the other peers form another view.
    """
    report, view = event.report, cluster.view
    assert view is not None
    if report.version < view.version or not report.late:
        # The report is of an older view or a closed connection: the end of a process is reported separately.
        return cluster, []
    suspects = [peer for peer in report.suspects if peer in cluster.alive and peer != event.peer]
    if not suspects:
        return cluster, [events.Fail(event.peer, report.error, late=True, kind="loss")]
    # The suspects hang. When they have ended, the others form another view.
    return mark_to_kill(cluster, suspects), [events.Kill(peer, report.error) for peer in suspects]


def kill_late_for_phase(cluster: Cluster, now: float) -> Transition:
    """Kills former members that are late for the next phase; ends the job if that phase does not begin in time."""
    phases, deadlines = cluster.phases, cluster.limits.deadlines
    if phases.is_forming and now - phases.since > _FORMING_WAITS * deadlines.wait_s:
        # All peers of the view are held up.
        late = f"phase {phases.number} of the job had not begun {now - phases.since:.0f} s after all were ready for it"
        return cluster, [events.Fail(-1, late, late=True)]
    first = min((entry.since for entry in phases.ready.values()), default=now)
    missing = sorted((cluster.between_phases | {*cluster.members}) - phases.ready.keys() - cluster.processes.to_kill)
    if not phases.is_over or now - first <= deadlines.ready_s or not missing:
        # No peer waits, or none has waited too long.
        return cluster, []
    why = f"the others have waited {now - first:.0f} s for it to begin phase {phases.number + 1}"
    people = replace(cluster.processes, to_kill=cluster.processes.to_kill | {*missing})
    return replace(cluster, processes=people), [events.Kill(peer, why) for peer in missing]
