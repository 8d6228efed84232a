"""What the agent decides: a pure function of the peers it started and what it hears of them.

``step(cluster, event, now)`` gives the next cluster and the commands to perform. A peer is *starting* from its spawn
until it trains in a view; then it is a member, until it ends or a later view lacks it.

| event                         | what follows                                                                   |
| ----------------------------- | ------------------------------------------------------------------------------ |
| a starting peer is ready      | when no other one is still on its way: form the first view, or offer them       |
| a starting peer ends or is late | of the first view: the job fails; of a later one: offer those who are ready   |
| the leader wants another size | spawn what is missing, kill what is too much, offer those who are left         |
| a member ends with an error   | the job fails, even if its training is over: its script went on after that     |
| no member is alive            | kill those who start: nobody could take them in                                |
| all processes have ended      | the job is done                                                                |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kungfu.runtime.deciding.decide import Prepared
from kungfu.runtime.deciding.view import Peer, View
from kungfu.runtime.settings import Deadlines

__all__ = [
    "Cluster",
    "Command",
    "Done",
    "Ended",
    "Event",
    "Fail",
    "Finishing",
    "Form",
    "InForce",
    "Kill",
    "Offer",
    "Seen",
    "Spawn",
    "Starting",
    "Tick",
    "Wanted",
    "first",
    "step",
]


@dataclass(frozen=True)
class Starting:
    """A peer on its way: when it was spawned, called ``attach`` and got ready (seconds of the agent's clock)."""

    since: float
    attached: float | None = None
    ready: float | None = None
    peer: Peer | None = None


@dataclass(frozen=True)
class Cluster:
    """The agent's knowledge. ``alive`` are the ids of running processes, ``parting`` those that were let go."""

    deadlines: Deadlines
    view: View | None = None
    starting: Mapping[int, Starting] = field(default_factory=dict)
    missing: Mapping[int, str] = field(default_factory=dict)
    alive: frozenset[int] = frozenset()
    parting: frozenset[int] = frozenset()
    next_id: int = 0


@dataclass(frozen=True)
class Seen:
    """A starting peer reached a stage: it attached, or (with ``ready``) waits to be admitted."""

    peer: Peer
    ready: bool


@dataclass(frozen=True)
class Wanted:
    """The leader wants the job to have ``size`` peers."""

    size: int


@dataclass(frozen=True)
class InForce:
    """A view has begun to train."""

    view: View


@dataclass(frozen=True)
class Finishing:
    """A peer's training is over: by itself, or because a view let it go."""

    peer: int
    leaving: bool


@dataclass(frozen=True)
class Ended:
    """A process ended, with its exit code (negative: the signal)."""

    peer: int
    code: int


@dataclass(frozen=True)
class Tick:
    """Time went by."""


Event = Seen | Wanted | InForce | Finishing | Ended | Tick


@dataclass(frozen=True)
class Spawn:
    peer: int


@dataclass(frozen=True)
class Kill:
    peer: int
    reason: str


@dataclass(frozen=True)
class Form:
    """Admit these peers to the first view."""

    view: View


@dataclass(frozen=True)
class Offer:
    """Tell the leader of ``view`` who is ready and who is missing."""

    view: View
    prepared: Prepared


@dataclass(frozen=True)
class Fail:
    """End the job: ``peer`` is at the root of it, ``reason`` says how; ``late`` means that a deadline expired."""

    peer: int
    reason: str
    late: bool = False


@dataclass(frozen=True)
class Done:
    """Every process has ended well."""


Command = Spawn | Kill | Form | Offer | Fail | Done
Outcome = tuple[Cluster, list[Command]]


def first(size: int, *, deadlines: Deadlines, now: float) -> Outcome:
    """The start of a job of ``size`` peers."""
    return _spawned(Cluster(deadlines), size, now)


def step(cluster: Cluster, event: Event, now: float) -> Outcome:
    """The next cluster, and what to do."""
    match event:
        case Seen():
            return _seen(cluster, event, now)
        case Wanted(size):
            return _wanted(cluster, size, now)
        case InForce(view):
            members = set(view.ids)
            starting = {peer: entry for peer, entry in cluster.starting.items() if peer not in members}
            return replace(cluster, view=view, starting=starting), []
        case Finishing(peer, leaving):
            if leaving:
                return replace(cluster, parting=cluster.parting | {peer}), []
            return _dismissed(cluster, list(cluster.starting), "training is over")
        case Ended(peer, code):
            return _ended(replace(cluster, alive=cluster.alive - {peer}), peer, code, now)
        case Tick():
            return _ticked(cluster, now)


def _spawned(cluster: Cluster, count: int, now: float) -> Outcome:
    ids = list(range(cluster.next_id, cluster.next_id + count))
    starting = {**cluster.starting, **{peer: Starting(now) for peer in ids}}
    cluster = replace(cluster, starting=starting, alive=cluster.alive | set(ids), next_id=cluster.next_id + count)
    return cluster, [Spawn(peer) for peer in ids]


def _dismissed(cluster: Cluster, peers: list[int], reason: str) -> Outcome:
    starting = {peer: entry for peer, entry in cluster.starting.items() if peer not in peers}
    cluster = replace(cluster, starting=starting, parting=cluster.parting | set(peers))
    return cluster, [Kill(peer, reason) for peer in peers]


def _wanted(cluster: Cluster, size: int, now: float) -> Outcome:
    if cluster.view is None:
        return cluster, []  # there is no leader yet who could ask
    have, cluster = cluster.view.size + len(cluster.starting), replace(cluster, missing={})
    if size > have:
        cluster, changes = _spawned(cluster, size - have, now)
    else:
        cluster, changes = _thinned(cluster, have - size, f"the job wants {size} peers now")
    cluster, offers = _gathered(cluster)
    return cluster, [*changes, *offers]


def _thinned(cluster: Cluster, count: int, reason: str) -> Outcome:
    """Lets ``count`` of those go who start: first those that have come least far, they are the cheapest."""
    order = sorted(cluster.starting, key=lambda peer: (cluster.starting[peer].ready is not None, -peer))
    return _dismissed(cluster, order[:count], reason)


def _seen(cluster: Cluster, event: Seen, now: float) -> Outcome:
    entry = cluster.starting.get(event.peer.id)
    if entry is None or entry.ready is not None:
        return cluster, []  # dismissed in the meantime, and its end is under way; or said before
    entry = replace(entry, ready=now, peer=event.peer) if event.ready else replace(entry, attached=now)
    return _gathered(replace(cluster, starting={**cluster.starting, event.peer.id: entry}))


def _gathered(cluster: Cluster) -> Outcome:
    """Once nobody is on the way any more: the first view, or an offer to the leader."""
    if _somebody_is_on_the_way(cluster):
        return cluster, []
    peers = tuple(entry.peer for _, entry in sorted(cluster.starting.items()) if entry.peer is not None)
    if cluster.view is None:
        return cluster, [Form(View(1, peers))]
    if not peers and not cluster.missing:
        return cluster, []
    reason = "; ".join(f"peer {peer}: {why}" for peer, why in sorted(cluster.missing.items()))
    prepared = Prepared(peers, tuple(sorted(cluster.missing)), reason, _parts(cluster))
    return replace(cluster, missing={}), [Offer(cluster.view, prepared)]


def _somebody_is_on_the_way(cluster: Cluster) -> bool:
    return any(entry.ready is None for entry in cluster.starting.values())


def _parts(cluster: Cluster) -> dict[str, float]:
    """Of the slowest joiner: seconds from its spawn to ``attach``, and from there to ready."""
    entries = [entry for entry in cluster.starting.values() if entry.attached and entry.ready]
    if not entries:
        return {}
    slowest = max(entries, key=lambda entry: (entry.ready or 0.0) - entry.since)
    attached, ready = slowest.attached or 0.0, slowest.ready or 0.0
    return {"spawn": attached - slowest.since, "ready": ready - attached}


def _lost(cluster: Cluster, peer: int, why: str) -> Outcome:
    """A starting peer will not come: the run goes on without it."""
    starting = {other: entry for other, entry in cluster.starting.items() if other != peer}
    return _gathered(replace(cluster, starting=starting, missing={**cluster.missing, peer: why}))


def _ended(cluster: Cluster, peer: int, code: int, now: float) -> Outcome:
    if peer in cluster.starting and cluster.view is not None:
        why = f"ended ({ending(code)}) {now - cluster.starting[peer].since:.1f} s after its start"
        return _concluded(*_lost(cluster, peer, why))
    if code != 0 and (peer not in cluster.parting or peer in cluster.starting):
        return cluster, [Fail(peer, ending(code))]
    if code == 0 and peer in cluster.starting:
        return cluster, [Fail(peer, _no_training(cluster.starting[peer]))]
    return _concluded(cluster, [])


def _concluded(cluster: Cluster, commands: list[Command]) -> Outcome:
    """What an end means for the others: without a living member nothing else can happen."""
    if not cluster.alive:
        return cluster, [Done()]
    if cluster.view is None or cluster.alive & set(cluster.view.ids):
        return cluster, commands
    return _dismissed(cluster, list(cluster.starting), "no peer that trains is left")


def _no_training(entry: Starting) -> str:
    if entry.attached is None:
        return "the script ended without calling kf.attach(): nothing was trained under kungfu-run"
    return "the script called kf.attach() but never called a function marked @training.step"


def ending(code: int) -> str:
    """An exit code in words.

    >>> ending(3), ending(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    from signal import Signals

    return f"exit code {code}" if code >= 0 else f"killed by {Signals(-code).name}"


def _ticked(cluster: Cluster, now: float) -> Outcome:
    limit = cluster.deadlines.ready_s
    late = [peer for peer, entry in cluster.starting.items() if entry.ready is None and now - entry.since > limit]
    if not late:
        return cluster, []
    peer, stage = late[0], "called kf.attach()" if cluster.starting[late[0]].attached else "started"
    why = f"waited {limit:.0f} s for peer {peer} to get ready; it has {stage} and not yet finished its first step"
    if cluster.view is None:
        return cluster, [Fail(peer, why, late=True)]
    cluster, commands = _lost(replace(cluster, parting=cluster.parting | {peer}), peer, why)
    return cluster, [Kill(peer, why), *commands]
