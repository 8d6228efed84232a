"""What an agent does that has lost the head: takes over, follows whoever does, or stops.

Of the agents that hear each other the one with the lowest number takes over, once all of them have lost the head and
they run a strict majority of the peers (of two halves, the one with rank 0). It goes on from the newest state that one
of them holds. Who is not among a majority stops: the others may have gone on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kungfu.errors import KungfuError
from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.agent.consensus.standby import Standby
from kungfu.runtime.core.cluster import Cluster, has_majority
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings

__all__ = ["CutOff", "Taken", "majority", "succeed"]

_POLL_S = 1.0
_BETWEEN_S = 0.2


@dataclass(frozen=True)
class Taken:
    """This agent is the head of ``term``: from this state on, counted as ``version``, with the hosts ``present``.

    ``open`` are all the clusters that may hold as long as not all of them hold this state.
    """

    term: int
    version: int
    standby: Standby
    present: frozenset[int]
    open: tuple[Cluster, ...]


@dataclass(frozen=True)
class CutOff:
    """This agent must stop, and why."""

    why: str


def majority(clusters: Sequence[Cluster], present: frozenset[int]) -> bool:
    """Whether the hosts ``present`` may go on without the others, whichever of ``clusters`` holds.

    Before the first view nobody may.
    """
    return bool(clusters) and all(
        one.view is not None and has_majority(one.view, one.hosts.of, present) for one in clusters
    )


def succeed(
    allegiance: Allegiance,
    hosts: Mapping[int, Host],
    settings: Settings,
    *,
    how: str,
    over: Callable[[], bool] = lambda: False,
) -> Taken | CutOff | None:
    """What comes after the loss of the head, ``how`` says of which; ``None`` once another agent leads, or it is
    ``over``. Takes twice ``--heartbeat``, or so long after this agent has promised to follow another one, and six times
    ``--heartbeat`` at most."""
    began, patience_s = time.monotonic(), 2 * settings.deadlines.heartbeat_s
    term, votes = 0, dict[int, pb.Vote]()
    while allegiance.head is None and not over():
        held = allegiance.held
        votes = _polled(allegiance, hosts, settings, pb.Ballot(job=allegiance.job, host=allegiance.place))
        if allegiance.head is not None:
            return None  # it was heard while the others were asked
        if any(vote.fenced for vote in votes.values()):
            return CutOff(f"the other hosts gave this one up while it stood still or could not be reached; {how}")
        votes = {number: votes[number] for number in _taking_part(held.standby, votes)}
        first = min([allegiance.place, *votes]) == allegiance.place
        hears = any(vote.hears for vote in votes.values())
        # A promise is not asked for in vain: whoever has given one does not go back to the head, if that was not lost.
        if first and not hears and majority(held.clusters, frozenset({allegiance.place, *votes})):
            term = max([term, held.term, *(vote.promised for vote in votes.values())]) + 1
            taken = _taken(allegiance, {number: hosts[number] for number in votes}, settings, term)
            if taken is not None:
                return taken
        if allegiance.head is not None:
            return None
        # Whom this agent has promised to follow leads by now, it may be, and its first orders are on their way.
        if time.monotonic() > min(max(began, allegiance.promised_at) + patience_s, began + 3 * patience_s):
            return CutOff(_minority(allegiance, hosts, votes, how))
        time.sleep(_BETWEEN_S)
    return None


def _taken(allegiance: Allegiance, hosts: Mapping[int, Host], settings: Settings, term: int) -> Taken | None:
    """Asks all of them for their promise: what this agent leads from now on, if they are enough."""
    if not allegiance.promise(term, allegiance.place):
        return None
    ballot = pb.Ballot(job=allegiance.job, host=allegiance.place, term=term, promise=True)
    granted = {number: vote for number, vote in _polled(allegiance, hosts, settings, ballot).items() if vote.granted}
    held, present = allegiance.held, frozenset({allegiance.place, *granted})
    newest = max(granted.values(), key=lambda vote: (vote.term, vote.version), default=None)
    if newest is not None and (newest.term, newest.version) > (held.term, held.version):
        held = held.with_state(newest.term, newest.version, newest.state)
    standby, present = held.standby, _taking_part(held.standby, present)
    if standby is None or not majority(held.clusters, present):
        return None
    if not allegiance.lead(allegiance.job, term):
        return None  # while it asked it has itself promised to follow another one
    return Taken(term, held.version, standby, present, held.clusters)


def _taking_part(standby: Standby | None, numbers: Iterable[int]) -> frozenset[int]:
    """Without the hosts that were given up: one that has woken up answers, but has no peers in the job any more."""
    return frozenset(numbers) if standby is None else standby.cluster.hosts.known & frozenset(numbers)


def _minority(allegiance: Allegiance, hosts: Mapping[int, Host], votes: Mapping[int, pb.Vote], how: str) -> str:
    held = allegiance.held
    view = held.standby.cluster.view if held.standby else None
    present = {allegiance.place, *(number for number, vote in votes.items() if not vote.hears)}
    if view is None or held.standby is None:
        return f"{how}, before the first view was formed"
    of = held.standby.cluster.hosts.of
    here = sum(of.get(peer, 0) in present for peer in view.ids)
    names = ", ".join(hosts[number].name for number in sorted(present))
    hearing = sorted(hosts[number].name for number, vote in votes.items() if vote.hears)
    others = f"; {', '.join(hearing)} still hears it" if hearing else ""
    return (
        f"{how}{others}; {names} would go on with {here} of the {view.size} peers of view {view.version}, which is no "
        "majority, and the others may go on: so it stops here"
    )


def _polled(
    allegiance: Allegiance, hosts: Mapping[int, Host], settings: Settings, ballot: pb.Ballot
) -> dict[int, pb.Vote]:
    """The votes of those who answer, all asked at the same time."""
    votes: dict[int, pb.Vote] = {}

    def ask(number: int, host: Host) -> None:
        try:
            with rpc.connect(host.address, secret=settings.secret) as channel:
                what = f"the agent of {host.name}"
                vote = rpc.call(HostServiceStub(channel).Stand, ballot, deadline_s=_POLL_S, what=what)
                if vote.ByteSize():  # else it knows nothing of this job
                    votes[number] = vote
        except KungfuError:
            return  # it does not answer: it has no vote

    others = [(number, host) for number, host in hosts.items() if number != allegiance.place]
    threads = [threading.Thread(target=ask, args=one) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(votes)
