"""Handles peers whose programs exit while other peers train: a program reports its exit before its process ends.

| exit of the program               | consequence                                                                      |
| --------------------------------- | -------------------------------------------------------------------------------- |
| ``UsageError``, ``PolicyError``   | the job ends with code 2: every other peer would fail as well                    |
| ``sys.exit(n)``, n above 0        | the job ends with code n, as the program chose                                   |
| another exception                 | the peer is lost and replaced; if it recurs at the same line, the job ends       |
| the end of the script, or         | the others are notified; if they continue to train, the peer is lost and         |
| ``sys.exit(0)``                   | replaced; if all peers end like this, the job is done                            |
| ``break`` out of the loop         | nothing at first; if the others wait for the peer, it is lost and replaced       |
| any of these, of a ready joiner   | the joiner is dismissed, and not offered                                         |
| any of these, of a spare          | another spare starts later                                                       |

The others do not wait for a peer whose program has exited. Its process is killed if it still runs after ``grace_s``.
"""

from __future__ import annotations

from dataclasses import replace

from kungfu.runtime.core.cluster import spares
from kungfu.runtime.core.cluster.cluster import PREEMPTED, Cluster, Departure, Transition, exit_in_words
from kungfu.runtime.core.cluster.events import AnnounceFailure, Command, Fail, Kill, ProgramExiting
from kungfu.runtime.core.cluster.joiners import give_up_joiner
from kungfu.runtime.core.cluster.recovery import on_member_lost
from kungfu.runtime.core.failure import Exit, described

_USAGE = 2


def on_program_exiting(cluster: Cluster, event: ProgramExiting, now: float) -> Transition:
    """Handles a peer's report of the exit of its program, according to the table of this module."""
    peer, exit = event.peer, event.exit
    before = cluster.losses.exiting.get(peer)
    if peer not in cluster.alive or (before is not None and before.is_gone):
        # The report is repeated, or the process has ended.
        return cluster, []
    trains, is_between = peer in cluster.members, peer in cluster.between_phases
    departure = Departure(exit, now, trained=trains)
    departed = {**cluster.losses.exiting, peer: departure}
    cluster = replace(cluster, losses=replace(cluster.losses, exiting=departed))
    if not departure.is_gone:
        # The peer left its loop, and may return for the last barrier; if the others wait in vain, they report the loss.
        return cluster, []
    first = next((one for one, other in cluster.losses.raised.items() if one != peer and exit.repeats(other)), None)
    if first is not None and (trains or is_between or peer in cluster.starting):
        # A second peer raised the same exception at the same line, so a replacement would as well.
        reason = f"{described(exit)}, as peer {first} did before: it would happen to every peer"
        return cluster, [Fail(peer, reason, code=1)]
    if exit.kind == "usage" and (trains or is_between):
        # Every other peer would fail as well.
        return cluster, [Fail(peer, described(exit), code=_USAGE)]
    if is_between and exit.kind == "exception":
        # The others may continue to another phase without the peer, unless they raise the same exception.
        return replace(cluster, losses=replace(cluster.losses, raised={**cluster.losses.raised, peer: exit})), []
    if not trains:
        # No view in force needs the peer.
        return _on_exit_outside_view(cluster, peer, exit, now)
    if cluster.phases.is_forming and cluster.view is not None:
        # The peers that wait for this peer in the view of a phase are notified. They form a view when its process ends.
        return cluster, [AnnounceFailure(peer, cluster.view.version, described(exit))]
    if exit.kind == "exit" and cluster.regrouping is None:
        # If the others continue to train, they will report the loss of this peer; if all end together, none is lost.
        return cluster, [AnnounceFailure(peer, 0, described(exit))]
    # The peer is lost: an exception was raised, or its program ends in the middle of a recovery.
    losses = cluster.losses.with_failed(peer)
    if exit.kind == "exception":
        # If another peer raises the same exception, the program is at fault.
        losses = replace(losses, raised={**losses.raised, peer: exit})
    return on_member_lost(replace(cluster, losses=losses), peer, described(exit), now)


def _on_exit_outside_view(cluster: Cluster, peer: int, exit: Exit, now: float) -> Transition:
    """Handles the exit of a program outside the view: of a joiner, or of a removed or finished peer."""
    if peer in cluster.spares.waiting:
        return spares.give_up(cluster, peer, described(exit), now)
    entry = cluster.starting.get(peer)
    if cluster.view is None or entry is None or entry.ready is None:
        # The consequence is decided when the peer's process ends.
        return cluster, []
    # A ready joiner must no longer be offered, and peers that wait for the joiner in a view are notified.
    cluster, commands = give_up_joiner(cluster, peer, described(exit), now)
    return cluster, [AnnounceFailure(peer, 0, described(exit)), *commands]


def count_as_preempted(cluster: Cluster, peer: int) -> Cluster:
    """Counts a lost peer as preempted instead of failed: its exit code, known only after its report, shows that."""
    losses = cluster.losses
    failures = losses.failures if peer in losses.noticed else max(0, losses.failures - 1)
    return replace(cluster, losses=replace(losses, failures=failures).with_preempted(peer))


def with_exit_code(cluster: Cluster, peer: int, code: int) -> Cluster:
    """The cluster with the exit code of a peer, if the peer has reported the exit of its program, or was killed."""
    if peer in cluster.starting or (cluster.view is not None and peer in cluster.view.ids):
        cluster = replace(cluster, losses=cluster.losses.with_killed(peer, code))
    departure = cluster.losses.exiting.get(peer)
    if departure is None:
        # The peer was killed, or its script ended without a report.
        return cluster
    departed = {**cluster.losses.exiting, peer: replace(departure, code=code)}
    return replace(cluster, losses=replace(cluster.losses, exiting=departed))


def chosen_failure(cluster: Cluster, peer: int, how: str, *, others: dict[int, str] | None = None) -> Fail | None:
    """The command that ends the job as a peer's program chose, by ``sys.exit(n)`` or a usage error; else ``None``."""
    departure = cluster.losses.exiting.get(peer)
    if departure is None or departure.code is None or departure.killed:
        # The peer reported nothing, its process still runs, or it was killed.
        return None
    exit, code = departure.exit, departure.code
    if exit.kind == "usage":
        # The script cannot work on any peer. It may have printed nothing.
        reason = how if exit.error in how else f"{how}: {exit.error}"
        return Fail(peer, reason, others=others or {}, code=_USAGE)
    if exit.kind != "exit" or code <= 0 or code in PREEMPTED:
        # The program ended well, by an exception, or by a signal of its platform.
        return None
    return Fail(peer, how, others=others or {}, code=code, chosen=True)


def early_departure(cluster: Cluster, peer: int) -> Departure | None:
    """The reported exit of a peer that was a member at the time of its report; ``None`` for other peers."""
    departure = cluster.losses.exiting.get(peer)
    return departure if departure is not None and departure.trained and departure.is_gone else None


def describe_departure(departure: Departure) -> str:
    """Describes the exit of a program; includes the exit code of the process if the program ended by itself."""
    exit, code = departure.exit, departure.code
    return described(exit) if exit.kind != "exit" or code is None else f"{exit_in_words(code)}: {described(exit)}"


def kill_late_exits(cluster: Cluster, now: float) -> Transition:
    """Kills the members whose processes still run ``grace_s`` seconds after their programs reported their exits."""
    departed, grace_s = dict(cluster.losses.exiting), cluster.limits.deadlines.grace_s
    kills: list[Command] = []
    for peer, one in cluster.losses.exiting.items():
        if one.killed or not one.trained or not one.is_gone or peer not in cluster.alive or now - one.since <= grace_s:
            continue
        departed[peer] = replace(one, killed=True)
        kills.append(Kill(peer, f"{described(one.exit)}, and its process had not ended {grace_s:g} s later (--grace)"))
    return (replace(cluster, losses=replace(cluster.losses, exiting=departed)), kills) if kills else (cluster, [])
