"""Peers whose programs end by themselves while the others train: they say so first, and their processes end later.

| what the program did              | what follows                                                                     |
| --------------------------------- | -------------------------------------------------------------------------------- |
| ``UsageError``, ``PolicyError``   | the job ends with 2: no other peer could do better                               |
| ``sys.exit(n)``, n above 0        | the job ends with n, as the program wants it                                     |
| an exception of its own           | the peer is lost and replaced; the same one at the same line again ends the job  |
| the end of the script, or a       | the others hear that it is gone; if they train on, it is lost and replaced;      |
| ``sys.exit(0)``                   | if all end so, the job is done                                                   |
| ``break`` out of the loop         | nothing yet; if the others then wait for it, it is lost and replaced             |
| any of these, of a ready joiner   | it is let go, and offered to nobody                                              |

Nobody waits for a peer that is gone in this way. It has ``grace_s`` to end; then it is killed.
"""

from __future__ import annotations

from dataclasses import replace

from kungfu.runtime.core.cluster.cluster import PREEMPTED, Cluster, Departure, Transition, exit_in_words
from kungfu.runtime.core.cluster.events import AnnounceFailure, Command, Fail, Kill, ProgramExiting
from kungfu.runtime.core.cluster.joiners import give_up_joiner
from kungfu.runtime.core.cluster.recovery import on_member_lost
from kungfu.runtime.core.exit import Exit, described

_USAGE = 2


def on_program_exiting(cluster: Cluster, event: ProgramExiting, now: float) -> Transition:
    """A peer says how its program ends: what follows, by the table of this module."""
    peer, exit = event.peer, event.exit
    before = cluster.losses.exiting.get(peer)
    if peer not in cluster.alive or (before is not None and before.is_gone):
        # It was told twice, or its process has ended.
        return cluster, []
    trains, is_between = peer in cluster.members, peer in cluster.between_phases
    departure = Departure(exit, now, trained=trains)
    departed = {**cluster.losses.exiting, peer: departure}
    cluster = replace(cluster, losses=replace(cluster.losses, exiting=departed))
    if not departure.is_gone:
        # It left its loop, and may come back for the last barrier; if the others miss it, they report that.
        return cluster, []
    first = _raised_before(cluster, peer, exit)
    if first is not None and (trains or is_between or peer in cluster.starting):
        # A second peer raised the same exception at the same line, so a replacement would as well.
        reason = f"{described(exit)}, as peer {first} did before: it would happen to every peer"
        return cluster, [Fail(peer, reason, code=1)]
    if exit.kind == "usage" and (trains or is_between):
        # No other peer could do better.
        return cluster, [Fail(peer, described(exit), code=_USAGE)]
    if is_between and exit.kind == "exception":
        # The others may go on to another phase without it, unless they raise the same.
        return replace(cluster, losses=replace(cluster.losses, raised={**cluster.losses.raised, peer: exit})), []
    if not trains:
        # No view in force needs it.
        return _on_exit_outside_view(cluster, peer, exit, now)
    if cluster.phases.is_forming and cluster.view is not None:
        # Whoever waits for it in the view of a phase hears of it; its end forms the next one.
        return cluster, [AnnounceFailure(peer, cluster.view.version, described(exit))]
    if exit.kind == "exit" and cluster.regrouping is None:
        # If the others train on, they will miss it and report; the last ones to train do not miss each other.
        return cluster, [AnnounceFailure(peer, 0, described(exit))]
    # It is lost: by an exception, or because it ends in the middle of a recovery.
    return on_member_lost(_count_failure(cluster, peer, exit), peer, described(exit), now)


def _on_exit_outside_view(cluster: Cluster, peer: int, exit: Exit, now: float) -> Transition:
    """A peer that does not train says how its program ends: it has not joined yet, was let go, or has finished."""
    entry = cluster.starting.get(peer)
    if cluster.view is None or entry is None or entry.ready is None:
        # The end of its process will tell what that means.
        return cluster, []
    # A joiner that is ready must not be offered any more, and peers that wait for it in a view hear of its end.
    cluster, commands = give_up_joiner(cluster, peer, described(exit), now)
    return cluster, [AnnounceFailure(peer, 0, described(exit)), *commands]


def _raised_before(cluster: Cluster, peer: int, exit: Exit) -> int | None:
    """Another peer that was lost to the same exception at the same line."""
    return next((one for one, other in cluster.losses.raised.items() if one != peer and exit.repeats(other)), None)


def _count_failure(cluster: Cluster, peer: int, exit: Exit) -> Cluster:
    losses = cluster.losses.with_failed(peer)
    if exit.kind == "exception":
        # If another peer raises the same one, it is no accident.
        losses = replace(losses, raised={**losses.raised, peer: exit})
    return replace(cluster, losses=losses)


def count_as_preempted(cluster: Cluster, peer: int) -> Cluster:
    """Counts a lost peer as preempted: it was lost when it said that it ends, and only its exit code tells why."""
    losses = cluster.losses
    failures = losses.failures if peer in losses.noticed else max(0, losses.failures - 1)
    return replace(cluster, losses=replace(losses, failures=failures).with_preempted(peer))


def with_exit_code(cluster: Cluster, peer: int, code: int) -> Cluster:
    """The cluster with the exit code of a peer that said how its program ends."""
    departure = cluster.losses.exiting.get(peer)
    if departure is None:
        # It was killed, or its script ended without a word.
        return cluster
    departed = {**cluster.losses.exiting, peer: replace(departure, code=code)}
    return replace(cluster, losses=replace(cluster.losses, exiting=departed))


def chosen_failure(cluster: Cluster, peer: int, how: str, *, others: dict[int, str] | None = None) -> Fail | None:
    """The end of the job where a peer's program chose it, by ``sys.exit(n)`` or a usage error; ``None`` if not."""
    departure = cluster.losses.exiting.get(peer)
    if departure is None or departure.code is None or departure.killed:
        # It said nothing, its process still runs, or its exit code is not its own.
        return None
    exit, code = departure.exit, departure.code
    if exit.kind == "usage":
        # Its script cannot work, on any peer. It may have printed nothing.
        reason = how if exit.error in how else f"{how}: {exit.error}"
        return Fail(peer, reason, others=others or {}, code=_USAGE)
    if exit.kind != "exit" or code <= 0 or code in PREEMPTED:
        # It ended well, by an exception, or by a signal of its platform.
        return None
    return Fail(peer, how, others=others or {}, code=code, chosen=True)


def early_departure(cluster: Cluster, peer: int) -> Departure | None:
    """The end of a peer's program, if the peer trained when it reported it; ``None`` for other peers."""
    departure = cluster.losses.exiting.get(peer)
    return departure if departure is not None and departure.trained and departure.is_gone else None


def describe_departure(departure: Departure) -> str:
    """The way in which a training program ended by itself, with its exit code."""
    exit, code = departure.exit, departure.code
    return described(exit) if exit.kind != "exit" or code is None else f"{exit_in_words(code)}: {described(exit)}"


def kill_late_exits(cluster: Cluster, now: float) -> Transition:
    """Kills the processes that take too long to end after their programs have ended while others train."""
    departed, grace_s = dict(cluster.losses.exiting), cluster.limits.deadlines.grace_s
    kills: list[Command] = []
    for peer, one in cluster.losses.exiting.items():
        if one.killed or not one.trained or not one.is_gone or peer not in cluster.alive or now - one.since <= grace_s:
            continue
        departed[peer] = replace(one, killed=True)
        kills.append(Kill(peer, f"{described(one.exit)}, and its process had not ended {grace_s:g} s later (--grace)"))
    return (replace(cluster, losses=replace(cluster.losses, exiting=departed)), kills) if kills else (cluster, [])


def forget_exits(cluster: Cluster) -> Cluster:
    """Forgets how programs ended whose peers neither run nor are in the view."""
    known = cluster.alive | set(cluster.view.ids if cluster.view else ())
    departed = {peer: one for peer, one in cluster.losses.exiting.items() if peer in known}
    return replace(cluster, losses=replace(cluster.losses, exiting=departed))
