"""Elects a new leader after the loss of the old leader.

Of the agents that hear each other, the agent with the lowest number is the candidate, once all of them have lost the
leader and together run a strict majority of the peers (of two halves, the half with rank 0). The new leader continues
from the newest log among its voters. An agent that cannot be part of a quorum stops, because the others may have
continued. See the package for the invariants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kungfu.errors import KungfuError
from kungfu.runtime.agent.consensus.state import ConsensusState, JobSnapshot, parse_request_log
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.placement import has_majority
from kungfu.runtime.core.requests.request_log import RequestLog
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings

_VOTE_DEADLINE_S = 1.0
_BETWEEN_ROUNDS_S = 0.2


@dataclass(frozen=True)
class Elected:
    """The result of an election that this agent has won: this agent leads from now on.

    Args:
        term: The term of this leader.
        version: The version of the first state of this leader.
        snapshot: The snapshot of the first state: the newest among the voters.
        request_log: The requests of people and schedulers, with their results.
        voters: The hosts that voted for this agent, including its own.
        uncommitted: The states of the cluster that a follower may still hold until it acknowledges this state.
    """

    term: int
    version: int
    snapshot: JobSnapshot
    request_log: RequestLog
    voters: frozenset[int]
    uncommitted: tuple[Cluster, ...]


@dataclass(frozen=True)
class NoQuorum:
    """The result of an election after which this agent must stop; ``why`` is the reason."""

    why: str


def has_quorum(clusters: Sequence[Cluster], hosts: frozenset[int]) -> bool:
    """True if ``hosts`` are a quorum of the view in each of ``clusters``; False before the first view."""
    return bool(clusters) and all(
        one.view is not None and has_majority(one.view, one.hosts.of, hosts) for one in clusters
    )


def elect(
    consensus: ConsensusState,
    hosts: Sequence[Host],
    settings: Settings,
    *,
    how: str,
    is_over: Callable[[], bool] = lambda: False,
) -> Elected | NoQuorum | None:
    """Stands for election, or waits for the leader that others elect.

    Args:
        consensus: The consensus state of this agent, which has lost its leader.
        hosts: All hosts of the job, by number.
        settings: The settings of the job.
        how: A description of the loss of the leader.
        is_over: Returns True if this agent should end without a leader.

    Returns:
        ``Elected`` if this agent leads now, ``NoQuorum`` if it must stop, ``None`` once another agent leads or
        ``is_over`` returns True.

    Cost:
        Ends within twice ``--heartbeat`` of the start or of the last vote for another agent, and in any case within six
        times ``--heartbeat`` of the start.
    """
    others = {number: host for number, host in enumerate(hosts) if number != consensus.host}
    began, patience_s = time.monotonic(), 2 * settings.deadlines.heartbeat_s
    term, votes = 0, dict[int, pb.VoteReply]()
    while consensus.leader is None and not is_over():
        log = consensus.log
        pre_vote = pb.VoteRequest(job=consensus.job, host=consensus.host)
        votes = _request_votes(others, settings, pre_vote)
        # A leader was heard during the pre-vote.
        if consensus.leader is not None:
            return None
        # The job continued without this host.
        if any(vote.fenced for vote in votes.values()):
            return NoQuorum(f"the other hosts gave this one up while it stood still or could not be reached; {how}")
        votes = {number: votes[number] for number in _members_of(log.snapshot, votes)}
        is_first = min([consensus.host, *votes]) == consensus.host
        leader_is_heard = any(vote.hears_leader for vote in votes.values())
        # Votes are requested only if the election can succeed: a voter does not return to its old leader.
        if is_first and not leader_is_heard and has_quorum(log.possible_clusters, frozenset({consensus.host, *votes})):
            term = max([term, log.term, *(vote.voted_term for vote in votes.values())]) + 1
            elected = _stand(consensus, {number: others[number] for number in votes}, settings, term)
            # A quorum has voted for this agent. Otherwise the agent repeats the pre-vote, and may stand once more.
            if elected is not None:
                return elected
        # Another agent has won the election, and its first message has arrived.
        if consensus.leader is not None:
            return None
        # A candidate that this agent voted for may already lead: the deadline leaves time for its first message.
        if time.monotonic() > min(max(began, consensus.voted_at) + patience_s, began + 3 * patience_s):
            return NoQuorum(_no_quorum_reason(consensus, hosts, votes, how))
        time.sleep(_BETWEEN_ROUNDS_S)
    return None


def _stand(consensus: ConsensusState, others: Mapping[int, Host], settings: Settings, term: int) -> Elected | None:
    """Stands as candidate in ``term``; returns the result if a quorum votes for this agent, else ``None``."""
    # This agent has voted for another candidate meanwhile.
    if not consensus.grant_vote(term, consensus.host):
        return None
    request = pb.VoteRequest(job=consensus.job, host=consensus.host, term=term, binding=True)
    votes = _request_votes(others, settings, request)
    granted = {number: vote for number, vote in votes.items() if vote.granted}
    log, voters = consensus.log, frozenset({consensus.host, *granted})
    newest = max(granted.values(), key=lambda vote: (vote.term, vote.version), default=None)
    # A voter holds a newer state: the candidate adopts this state before counting the quorum.
    if newest is not None and (newest.term, newest.version) > (log.term, log.version):
        log = log.with_state(newest.term, newest.version, newest.state, newest.requests)
    snapshot, voters = log.snapshot, _members_of(log.snapshot, voters)
    # The voters are no quorum under the newest state, or under another state that may be in force.
    if snapshot is None or not has_quorum(log.possible_clusters, voters):
        return None
    # Meanwhile this agent has voted for the candidate of a later term.
    if not consensus.become_leader(consensus.job, term):
        return None
    return Elected(term, log.version, snapshot, parse_request_log(log.requests), voters, log.possible_clusters)


def _members_of(snapshot: JobSnapshot | None, numbers: Iterable[int]) -> frozenset[int]:
    """The hosts in ``numbers`` that were not declared lost; a lost host may answer, but has no peers in the job."""
    return frozenset(numbers) if snapshot is None else snapshot.cluster.hosts.known & frozenset(numbers)


def _no_quorum_reason(
    consensus: ConsensusState, hosts: Sequence[Host], votes: Mapping[int, pb.VoteReply], how: str
) -> str:
    log = consensus.log
    view = log.snapshot.cluster.view if log.snapshot else None
    present = {consensus.host, *(number for number, vote in votes.items() if not vote.hears_leader)}
    # Without a view it is not defined which hosts are a quorum.
    if view is None or log.snapshot is None:
        return f"{how}, before the first view was formed"
    of = log.snapshot.cluster.hosts.of
    here = sum(of.get(peer, 0) in present for peer in view.ids)
    names = ", ".join(hosts[number].name for number in sorted(present))
    hearing = sorted(hosts[number].name for number, vote in votes.items() if vote.hears_leader)
    others = f"; {', '.join(hearing)} still hears it" if hearing else ""
    return (
        f"{how}{others}; {names} would go on with {here} of the {view.size} peers of view {view.version}, which is no "
        "majority, and the others may continue: so it stops here"
    )


def _request_votes(others: Mapping[int, Host], settings: Settings, request: pb.VoteRequest) -> dict[int, pb.VoteReply]:
    """Requests the votes of all agents at once; returns the votes that arrive in time, by host."""

    def ask(host: Host) -> pb.VoteReply:
        try:
            with rpc.connect(host.address, secret=settings.secret) as channel:
                method, what = HostServiceStub(channel).RequestVote, f"the agent of {host.name}"
                vote: pb.VoteReply = rpc.call(method, request, deadline_s=_VOTE_DEADLINE_S, what=what)
                return vote
        except KungfuError:
            return pb.VoteReply()

    with ThreadPoolExecutor(len(others) or 1) as pool:
        votes = dict(zip(others, pool.map(ask, others.values()), strict=True))
    # An empty reply: the agent does not answer, or is not in this job.
    return {number: vote for number, vote in votes.items() if vote.ByteSize()}
