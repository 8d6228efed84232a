"""Elects a new leader after the loss of the old leader.

The agents that have lost the leader ask each other for pre-votes; ``election_round`` decides which of them is the
candidate. The new leader continues from the newest log among its voters. An agent that cannot be part of a quorum
stops, because the others may have continued. See the package for the invariants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from kungfu.errors import KungfuError
from kungfu.runtime.agent.consensus.agreement import Agreement, Claim
from kungfu.runtime.agent.consensus.election_round import (
    Action,
    ElectionRound,
    GiveUp,
    Stand,
    count_votes,
    has_quorum,
    next_action,
)
from kungfu.runtime.agent.consensus.state import ConsensusState, JobSnapshot, listed_in, parse_request_log
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.requests.request_log import RequestLog
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings

_VOTE_DEADLINE_S = 1.0
_SILENT_S = 0.2  # for the vote of a host from which no answer is expected
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
        reached: The members that answered this agent's pre-vote, including its own host. All of them follow, also a
            host that voted for itself at the same time: without it the next loss of a host might cost the quorum. A
            host that the snapshot does not count, because its removal was not committed, joins again.
        uncommitted: The states of the cluster that a follower may still hold until it acknowledges this state.
    """

    term: int
    version: int
    snapshot: JobSnapshot
    request_log: RequestLog
    voters: frozenset[int]
    reached: frozenset[int]
    uncommitted: tuple[Cluster, ...]


@dataclass(frozen=True)
class NoQuorum:
    """The result of an election after which this agent must stop; ``why`` is the reason."""

    why: str


def elect(
    consensus: ConsensusState,
    settings: Settings,
    *,
    agreement: Agreement | None = None,
    how: str,
    is_over: Callable[[], bool] = lambda: False,
) -> Elected | NoQuorum | None:
    """Stands for election, or waits for the leader that others elect.

    Args:
        consensus: The consensus state of this agent, which has lost its leader.
        settings: The settings of the job.
        agreement: Decides who leads; by default the agents among themselves.
        how: A description of the loss of the leader.
        is_over: Returns True if this agent should end without a leader.

    Returns:
        ``Elected`` if this agent leads now, ``NoQuorum`` if it must stop, ``None`` once another agent leads or
        ``is_over`` returns True.

    Cost:
        Ends within twice ``--heartbeat`` and one round of the start or of the last vote for another agent, and in any
        case within six times ``--heartbeat`` and one round of the start or of the last quorum of pre-votes. A round
        takes at most 1.2 seconds, and 0.4 if only the lost leader, hosts that were lost before, and hosts that were
        silent in the last round do not answer.
    """
    agreement = agreement or MajorityAgreement(consensus, settings)
    hosts, began = dict(consensus.hosts), time.monotonic()
    quorate_at = began
    # A listed host that is no member was lost before, and has no vote; one that has just joined answers soon.
    silent: AbstractSet[int | None] = {consensus.lost_leader, *(hosts.keys() - consensus.log.members)}
    while consensus.leader is None and not is_over():
        log, now = consensus.log, time.monotonic()
        others = {number: host for number, host in hosts.items() if number != consensus.host}
        pre_vote = pb.VoteRequest(
            job=consensus.job, host=consensus.host, log_term=log.term, log_version=log.version
        )  # fmt: skip
        with consensus.waiting():
            votes = _request_votes(others, settings, pre_vote, silent=silent)
        silent = others.keys() - votes.keys()
        at = ElectionRound(
            consensus.host, log, votes, now=now, began=began, quorate_at=quorate_at,
            voted_term=consensus.voted_term, voted_at=consensus.voted_at, heartbeat_s=settings.deadlines.heartbeat_s,
        )  # fmt: skip
        consensus.has_quorum = at.pre_votes.is_quorum
        quorate_at = now if at.is_quorate else quorate_at
        # A voter holds a newer list: its hosts are asked before this agent stands, since a new leader gives up the
        # hosts that it has not reached.
        if (newer := listed_in(at.pre_votes.log)).keys() - hosts.keys():
            hosts |= newer
            continue
        with consensus.waiting():
            action = agreement.next_action(at, others)
        if isinstance(action, Stand) and consensus.leader is None:
            with consensus.waiting():
                elected = agreement.stand(action, others)
            # A quorum has voted for this agent. Otherwise the agent repeats the pre-vote, and may stand once more.
            if elected is not None:
                return elected
        # A leader was heard in the meantime.
        if consensus.leader is not None:
            return None
        # The job continued without this host.
        if action == "fenced":
            return NoQuorum(f"the other hosts gave this one up while it stood still or could not be reached; {how}")
        if action == "no quorum":
            return NoQuorum(_no_quorum_reason(at, hosts, how))
        if isinstance(action, GiveUp):
            return NoQuorum(f"{how}; {action.why}: so it stops here")
        with consensus.waiting():
            time.sleep(_BETWEEN_ROUNDS_S)
    return None


class MajorityAgreement:
    """The agreement of the agents among themselves: the hosts that run most of the peers decide.

    Args:
        consensus: The consensus state of this agent.
        settings: The settings of the job.
    """

    def __init__(self, consensus: ConsensusState, settings: Settings) -> None:
        self._consensus, self._settings = consensus, settings

    def open(self) -> None:
        """See ``Agreement``."""

    def found(self, job: str, job_exists: bool, is_silent: bool) -> int:
        """See ``Agreement``: host 0 founds. A silent host might be in a job, if this host was cut off and restarted."""
        return int(self._consensus.host == 0 and not job_exists and not is_silent)

    def leader(self) -> None:
        """See ``Agreement``: there is no store."""

    def next_action(self, at: ElectionRound, others: Mapping[int, Host]) -> Action:
        """See ``Agreement``, and the table of ``election_round``."""
        return next_action(at)

    def stand(self, action: Stand, others: Mapping[int, Host]) -> Elected | None:
        """See ``Agreement``: a quorum of votes elects."""
        consensus, voters = self._consensus, {number: others[number] for number in action.voters}
        # This agent has voted for another candidate meanwhile.
        if not consensus.grant_vote(action.term, consensus.host):
            return None
        log = consensus.log
        request = pb.VoteRequest(
            job=consensus.job, host=consensus.host, term=action.term, binding=True, log_term=log.term,
            log_version=log.version,
        )  # fmt: skip
        return elected_by(consensus, _request_votes(voters, self._settings, request), action.term, reached=voters)

    def is_quorum(self, clusters: Sequence[Cluster], hosts: frozenset[int]) -> bool:
        """See ``Agreement``: under every cluster, most of the peers must run on ``hosts``."""
        return has_quorum(clusters, hosts)

    def claim(self, hosts: frozenset[int]) -> Claim:
        """See ``Agreement``: the commit has made sure that a quorum holds the state, and every quorum shares a host."""
        return "granted"

    def close(self, *, is_over: bool) -> None:
        """See ``Agreement``."""


def elected_by(
    consensus: ConsensusState, votes: Mapping[int, pb.VoteReply], term: int, *, reached: Iterable[int]
) -> Elected | None:
    """Makes this agent the leader of ``term`` if the ``votes`` are those of a quorum; else returns ``None``."""
    tally = count_votes(consensus.host, consensus.log, {host: vote for host, vote in votes.items() if vote.granted})
    log = tally.log
    # The voters are no quorum under the newest state, or under another state that may be in force; or meanwhile this
    # agent has voted for the candidate of a later term.
    if not tally.is_quorum or log.snapshot is None or not consensus.become_leader(consensus.job, term):
        return None
    members = log.members & (listed_in(log) or consensus.hosts).keys() & {consensus.host, *reached}
    requests = parse_request_log(log.requests)
    return Elected(term, log.version, log.snapshot, requests, tally.voters, members, log.possible_clusters)


def _no_quorum_reason(at: ElectionRound, hosts: Mapping[int, Host], how: str) -> str:
    tally = at.pre_votes
    snapshot, present = tally.log.snapshot, tally.voters
    view = snapshot.cluster.view if snapshot else None
    # Without a view it is not defined which hosts are a quorum.
    if view is None or snapshot is None:
        return f"{how}, before the first view was formed"
    of = snapshot.cluster.hosts.of
    here = sum(of.get(peer, 0) in present for peer in view.ids)
    names = ", ".join(hosts[number].name for number in sorted(present))
    hearing = sorted(hosts[number].name for number, vote in at.votes.items() if vote.hears_leader)
    others = f"; {', '.join(hearing)} still hears it" if hearing else ""
    return (
        f"{how}{others}; {names} would go on with {here} of the {view.size} peers of view {view.version}, which is no "
        "majority, and the others may continue: so it stops here"
    )


def _request_votes(
    others: Mapping[int, Host],
    settings: Settings,
    request: pb.VoteRequest,
    *,
    silent: AbstractSet[int | None] = frozenset(),
) -> dict[int, pb.VoteReply]:
    """Requests the votes of all agents at once; returns the votes that arrive in time, by host.

    The ``silent`` hosts, from which no answer is expected, get 0.2 s after all others have answered.
    """

    def ask(host: Host) -> pb.VoteReply:
        try:
            with rpc.connect(host.address, secret=settings.secret) as channel:
                method, what = HostServiceStub(channel).RequestVote, f"the agent of {host.name}"
                vote: pb.VoteReply = rpc.call(method, request, deadline_s=_VOTE_DEADLINE_S, what=what)
                return vote
        except KungfuError:
            return pb.VoteReply()

    pool = ThreadPoolExecutor(len(others) or 1)
    asked = {number: pool.submit(ask, host) for number, host in others.items()}
    wait([vote for number, vote in asked.items() if number not in silent])
    wait(asked.values(), timeout=_SILENT_S)
    pool.shutdown(wait=False)
    votes = {number: vote.result() for number, vote in asked.items() if vote.done()}
    # An empty reply: the agent does not answer, or is not in this job.
    return {number: vote for number, vote in votes.items() if vote.ByteSize()}
