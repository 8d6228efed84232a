"""The recovery of a view that lost peers: the survivors form a view, adopt one state, and get replacements.

A member that loses another member disconnects from its view, reports the loss, and waits. When all running members have
reported, they form the next view in their old order. They adopt the state of the most advanced members, so a step that
any of them has completed is never undone. A member that does not report in time is killed, so that it cannot
resume in a view that has continued without it. Further losses may come before the new view trains: a report from a
later view restarts the recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kungfu.runtime.core.cluster import events
from kungfu.runtime.core.cluster.cluster import Cluster, Losses, Regrouping, Transition
from kungfu.runtime.core.cluster.joiners import dismiss, give_up_joiner, offer_if_ready, spawn
from kungfu.runtime.core.failure import described
from kungfu.runtime.core.view import View

# The description of the end of a peer whose script ended while the other peers needed the peer.
QUIT = "its script ended (exit code 0) while the others trained"
# The time in which a peer named in the survivors' errors may report: it may be a survivor with a broken connection.
SUSPECT_S = 2.0
_NO_HOLDER = (
    "no survivor holds the state of the job: a joiner holds it only after it has received the registered values too, "
    "before its next step; go on from a checkpoint (kungfu-run --resume)"
)
# The job fails after this many consecutive views that broke after members entered them but before they trained, since
# the cause is persistent. A view that admitted no peer, because its first peer hangs or has exited, is not counted.
STUCK = 6
# The stage of a member that has completed the last step and its barrier, and has exchanged nothing since.
_AFTER_STEP = 1


def on_member_lost(cluster: Cluster, peer: int, how: str, now: float) -> Transition:
    """Handles the loss of a member: the others are notified, and their reports determine the next view."""
    assert cluster.view is not None
    version = max(cluster.view.version, cluster.regrouping.version if cluster.regrouping else 0)
    regrouping = cluster.regrouping or Regrouping(now, version)
    reports = {other: report for other, report in regrouping.reports.items() if other != peer}
    regrouping = replace(regrouping, lost={**regrouping.lost, peer: how}, reports=reports)
    cluster = replace(cluster, regrouping=regrouping)
    if (failed := _nobody_left(cluster)) is not None:
        # The lost peer was the last member.
        return cluster, [failed]
    # The others may have reported already, and wait only for this peer's end.
    cluster, commands = form_view(cluster, now)
    return cluster, [events.AnnounceFailure(peer, version, how), *commands]


def _nobody_left(cluster: Cluster) -> events.Fail | None:
    """The command that ends a job whose last member was lost during training; ``None`` if other members are left."""
    lost = cluster.regrouping.lost if cluster.regrouping else {}
    if not lost or cluster.members or _is_trained(cluster):
        # Members are left, or nothing is left to train.
        return None
    (root, why), *rest = lost.items()
    return events.Fail(root, why, others=dict(rest))


def on_peers_lost(cluster: Cluster, event: events.PeersLost, now: float) -> Transition:
    """Handles a peer's report that it has lost other peers."""
    peer, report = event.peer, event.report
    if peer not in cluster.alive:
        # The peer has ended since its report.
        return cluster, []
    if cluster.view is None:
        # The first view broke before it trained: there is nothing to recover.
        return cluster, [events.Fail(peer, report.error, late=report.late, kind="loss")]
    if peer not in cluster.members:
        # A joiner waits, and is offered again when a view has begun.
        return cluster, []
    version = max(report.version, cluster.view.version)
    regrouping = cluster.regrouping or Regrouping(now, version)
    if regrouping.formed is not None and report.version >= regrouping.formed.version:
        # The view of the survivors broke before it trained: all members must report again.
        stuck = regrouping.stuck + 1
        regrouping = replace(regrouping, since=now, formed=None, reports={}, stuck=stuck)
    elif regrouping.formed is not None:
        # The report was sent before the reporting peer was admitted to the view of the survivors.
        return cluster, []
    # Members whose programs exited unnoticed now count as lost.
    exits, departed = cluster.losses.exiting, [id_ for id_ in _departed_members(cluster) if id_ not in regrouping.lost]
    quitters = {id_: described(exits[id_].exit) if id_ in exits else QUIT for id_ in departed}
    cluster = replace(cluster, losses=cluster.losses.with_failed(*quitters))
    regrouping = replace(regrouping, lost={**regrouping.lost, **quitters})
    # The first report is announced to the members that have not noticed the loss.
    announced = [events.AnnounceFailure(-1, version, report.error)] if not regrouping.reports else []
    reports = {**regrouping.reports, peer: report}
    regrouping = replace(regrouping, version=max(version, regrouping.version), reports=reports)
    cluster, kills = _dismiss_stalled(replace(cluster, regrouping=regrouping), report, now)
    cluster, commands = form_view(cluster, now)
    return cluster, [*announced, *kills, *commands]


def _dismiss_stalled(cluster: Cluster, report: events.LossReport, now: float) -> Transition:
    """Dismisses the running joiners for which a view waited until a deadline expired, as named by ``report``."""
    commands: list[events.Command] = []
    for peer in sorted(set(report.suspects) & set(cluster.starting)) if report.late else ():
        cluster, more = give_up_joiner(cluster, peer, report.error, now)
        commands += more
    return cluster, commands


def _departed_members(cluster: Cluster) -> list[int]:
    """The members whose programs have exited without being counted as lost."""
    assert cluster.view is not None
    people, exits = cluster.processes, cluster.losses.exiting
    gone = {peer for peer, one in exits.items() if one.is_gone} | set(cluster.view.ids) - people.alive
    return [peer for peer in cluster.view.ids if peer in gone - people.released - people.finished]


def form_view(cluster: Cluster, now: float) -> Transition:
    """Forms the view of the survivors once all running members have reported the loss."""
    view, regrouping, members = cluster.view, cluster.regrouping, cluster.members
    if view is None or regrouping is None or regrouping.formed is not None:
        # No member was lost, or the view is formed already.
        return cluster, []
    if not members or not regrouping.reports or set(members) - set(regrouping.reports):
        # Some running members have not reported yet.
        return cluster, []
    if (defect := _reason_to_fail(cluster)) is not None:
        # The survivors cannot continue: the job ends.
        return cluster, [defect]
    # The lost coordinator may have announced the next version to some peers, so that version is skipped.
    view = View(regrouping.version + 2, tuple(peer for peer in view.peers if peer.id in members))
    cluster = replace(cluster, regrouping=replace(regrouping, formed=view, version=view.version, since=now))
    return cluster, [_admit_survivors(cluster, view)]


def _admit_survivors(cluster: Cluster, view: View) -> events.AdmitSurvivors:
    regrouping, coming = cluster.regrouping, _number_coming(cluster)
    assert regrouping is not None
    sources = tuple(view.ids.index(peer) for peer in _most_advanced(regrouping.reports, view.ids))
    return events.AdmitSurvivors(view, sources, view.size + coming if coming else 0, regrouping.lost)


def resume(cluster: Cluster, now: float) -> Transition:
    """Resumes a recovery that another agent began: announces the losses or admits the survivors once more."""
    regrouping = cluster.regrouping
    assert regrouping is not None
    if (failed := _nobody_left(cluster)) is not None:
        return cluster, [failed]
    # Some members may not know of the loss.
    gone = [events.AnnounceFailure(peer, regrouping.version, how) for peer, how in regrouping.lost.items()]
    if not gone and regrouping.reports:
        # A view broke although no process has ended.
        gone = [events.AnnounceFailure(-1, regrouping.version, next(iter(regrouping.reports.values())).error)]
    if regrouping.formed is not None:
        # The view is formed: the coordinator may not know of its role.
        return cluster, [_admit_survivors(cluster, regrouping.formed)]
    cluster, commands = form_view(cluster, now)
    return cluster, [*gone, *commands]


def on_coordinator_unreachable(cluster: Cluster, view: View) -> Transition:
    """Handles a coordinator that does not answer in a formed view: another view is formed without this coordinator."""
    regrouping, coordinator = cluster.regrouping, view.ids[0]
    if regrouping is None or regrouping.formed != view:
        # Another view has been formed since.
        return cluster, []
    regrouping = replace(regrouping, formed=None)
    if coordinator not in cluster.members:
        # The coordinator is known to have ended: the next tick forms another view.
        return replace(cluster, regrouping=regrouping), []
    # The coordinator is late, and the others wait for it, so it is killed. Its end leads to the next view.
    reports = {peer: report for peer, report in regrouping.reports.items() if peer != coordinator}
    regrouping = replace(regrouping, reports=reports, killed=regrouping.killed | {coordinator})
    why = f"it did not answer when it was to lead view {view.version}"
    return replace(cluster, regrouping=regrouping), [events.Kill(coordinator, why)]


def _reason_to_fail(cluster: Cluster) -> events.Fail | None:
    """The command that ends the job if the survivors cannot form a view; else ``None``."""
    regrouping, members = cluster.regrouping, cluster.members
    assert regrouping is not None
    root, how = next(iter(regrouping.lost.items()), (members[0], regrouping.reports[members[0]].error))
    others = {peer: why for peer, why in regrouping.lost.items() if peer != root}
    late = all(report.late for report in regrouping.reports.values()) and not regrouping.lost
    if not any(report.holds for report in regrouping.reports.values()):
        # The only peers left are joiners that have not received all of the state.
        return events.Fail(root, f"{how}, and {_NO_HOLDER}", others=others)
    if regrouping.stuck >= STUCK:
        # Each view broke before it trained, and so would the next.
        return events.Fail(root, f"{how}; {STUCK} views in a row broke before they trained", late=late, others=others)
    expected = len(members) + _number_coming(cluster)
    if expected < cluster.limits.minimum and not _is_trained(cluster):
        # The job would continue below its minimum of peers.
        left = f"{expected} peer{'' if expected == 1 else 's'} would be left, fewer than --min {cluster.limits.minimum}"
        return events.Fail(root, f"{how}; {left}, and the budget for replacements is spent", others=others)
    return None


def _is_trained(cluster: Cluster) -> bool:
    """True if some members have finished after the last barrier, so the others have nothing left to train."""
    return cluster.view is not None and bool(cluster.processes.finished & set(cluster.view.ids))


def _most_advanced(reports: Mapping[int, events.LossReport], members: tuple[int, ...]) -> list[int]:
    """The members that hold the most advanced state; all of the returned members hold the same state."""
    holders = [peer for peer in members if peer in reports and reports[peer].holds]
    step, stage = max((reports[peer].step, reports[peer].stage) for peer in holders)
    furthest = [peer for peer in holders if (reports[peer].step, reports[peer].stage) == (step, stage)]
    if stage <= _AFTER_STEP:
        return furthest
    # During an exchange between two steps the peers may hold different states: only one of these states counts.
    return [peer for peer in furthest if reports[peer].digest == reports[furthest[0]].digest]


def _number_coming(cluster: Cluster) -> int:
    """The number of peers that will join the survivors: present joiners, joiners without a slot, and replacements."""
    return len(cluster.starting) + len(_to_be_replaced(cluster)) + len(_still_queued(cluster))


def _still_queued(cluster: Cluster) -> tuple[float, ...]:
    """The queue of waiting joiners, less one per preempted member that is lost by now and replaced as a lost peer."""
    lost = cluster.losses.noticed & (cluster.regrouping.lost.keys() if cluster.regrouping else set())
    return cluster.hosts.queue[len(lost) :]


def _to_be_replaced(cluster: Cluster) -> tuple[int, ...]:
    """The lost peers to replace once the survivors train again, within the limits of `ReplacementLimits`."""
    assert cluster.regrouping is not None
    # After the last barrier nothing is left to train for a replacement.
    return () if _is_trained(cluster) else within_budgets(cluster, cluster.losses, cluster.regrouping.lost)


def within_budgets(cluster: Cluster, losses: Losses, lost: Iterable[int]) -> tuple[int, ...]:
    """The lost peers to replace, as far as the budgets of failed and of preempted peers allow; failed peers first."""
    lost, limits = list(lost), cluster.limits.replacements
    failed = tuple(peer for peer in lost if peer not in losses.noticed)
    preempted = tuple(peer for peer in lost if peer in losses.noticed)
    over_failures = max(0, losses.failures - limits.failures)
    over_preemptions = max(0, losses.preemptions - limits.preemptions)
    return failed[over_failures:] + preempted[over_preemptions:]


def on_view_started(cluster: Cluster, event: events.ViewStarted, now: float) -> Transition:
    """Handles a view that has begun to train; if it is the view of the survivors, lost peers are replaced now."""
    fresh = {peer for peer in event.view.ids if peer in cluster.starting}
    losses = replace(cluster.losses, untrained=0) if fresh else cluster.losses
    regrouping, replaced = cluster.regrouping, () if cluster.regrouping is None else _to_be_replaced(cluster)
    queue = _still_queued(cluster)
    led_anew = cluster.view is not None and cluster.view.peers[0] != event.view.peers[0]
    cluster = replace(cluster.without_joiners(fresh), view=event.view, losses=losses)
    recovered = replace(cluster, regrouping=None)
    if regrouping is None or _is_untouched(regrouping, event.view):
        # The view was decided at a barrier.
        if fresh:
            # The change under way is complete; peers that are still starting are surplus.
            done = replace(recovered, hosts=replace(recovered.hosts, queue=()))
            return dismiss(done, done.starting, "the job has as many peers as it wanted")
        # The ready joiners may have been offered to a coordinator that has left.
        return offer_if_ready(recovered) if regrouping or led_anew else (recovered, [])
    if regrouping.formed is None or event.view.version < regrouping.formed.version:
        # The coordinator reported this view before it lost a peer: the members of that view have yet to report.
        return cluster, []
    # The survivors train.
    recovered = replace(recovered, hosts=replace(recovered.hosts, queue=queue))
    return offer_if_ready(*spawn(recovered, replaced, now))


def _is_untouched(regrouping: Regrouping, view: View) -> bool:
    """True if the view does not contain the lost peers, so that the loss does not affect the view."""
    return not regrouping.reports and view.version > regrouping.version and regrouping.lost.keys().isdisjoint(view.ids)


def kill_late_members(cluster: Cluster, now: float) -> Transition:
    """Kills members that have not reported in time; members named by the error of another peer have less time."""
    regrouping = cluster.regrouping
    if regrouping is None or regrouping.formed is not None or not regrouping.reports:
        # No survivor waits for the reports of others.
        return cluster, []
    silent = [peer for peer in cluster.members if peer not in regrouping.reports]
    suspects = {peer for report in regrouping.reports.values() for peer in report.suspects}
    strayed = [peer for peer in silent if peer in cluster.losses.exiting]
    waited = now - regrouping.since
    limit = SUSPECT_S if set(silent) <= suspects | set(strayed) else cluster.limits.deadlines.wait_s
    if waited <= limit:
        # The silent members may still notice the loss.
        return cluster, []
    if strayed:
        # Some members left their training loops for other work: the others continue without them.
        return _count_as_lost(cluster, strayed, now)
    why = next(iter(regrouping.reports.values())).error
    why = f"it did not regroup with the others within {waited:.1f} s; {why}"
    kills: list[events.Command] = [events.Kill(peer, why) for peer in silent if peer not in regrouping.killed]
    regrouping = replace(regrouping, killed=regrouping.killed | set(silent))
    return replace(cluster, regrouping=regrouping), kills


def _count_as_lost(cluster: Cluster, strayed: list[int], now: float) -> Transition:
    """Counts as lost the members that have left their training loops, although their programs continue."""
    commands: list[events.Command] = []
    for peer in strayed:
        losses = cluster.losses
        departure = losses.exiting[peer]
        gone = replace(departure, exit=replace(departure.exit, kind="exit"), since=now)
        losses = replace(losses.with_failed(peer), exiting={**losses.exiting, peer: gone})
        cluster, more = on_member_lost(replace(cluster, losses=losses), peer, described(departure.exit), now)
        commands += more
    return cluster, commands
