"""The state of an agent in consensus: its term, its vote, and its log of the job's state.

An agent follows the leader of the latest term that it knows, and votes for at most one host in each term. See the
package for the invariants.

Every agent holds the state of the job, so that a new leader can continue from it. The state has two parts. The snapshot
changes with nearly every event and is small. The request log changes seldom and is large after many requests, so it is
sent only after a change and decoded only by a new leader.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from kungfu.runtime.agent.consensus.host_list import HostList
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.requests.request_log import RequestLog
from kungfu.runtime.core.view import Peer
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb

NO_HOSTS: Mapping[int, Host] = MappingProxyType({})


@dataclass(frozen=True)
class JobSnapshot:
    """The state of a job between two events.

    Args:
        cluster: The view, the processes and the hosts.
        addresses: The address of each peer, by its id.
        pids: The process id of each peer, by its id.
        last_events: The number of the last event that each host has reported.
        incarnations: The last admitted agent of each host, identified by a random number drawn when the agent started.
        end: The end of the job, a serialized ``JobEnd``; empty while the job goes on. A leader tells the end to other
            hosts once a quorum holds it, and a leader that takes over a state with an end ends the job with it.
        hosts: The list of the hosts.
    """

    cluster: Cluster
    addresses: Mapping[int, Peer] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    last_events: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, str] = field(default_factory=dict)
    end: bytes = b""
    hosts: HostList = field(default_factory=HostList)


def serialize_snapshot(snapshot: JobSnapshot) -> bytes:
    """Serializes the state as MessagePack; messages carry the bytes undecoded, like a snapshot in Raft."""
    return msgspec.msgpack.encode(snapshot)


def parse_snapshot(encoded: bytes) -> JobSnapshot:
    """Decodes the bytes of ``serialize_snapshot``."""
    return msgspec.msgpack.decode(encoded, type=JobSnapshot)


class RequestLogEncoder:
    """Encodes a request log once after each change."""

    def __init__(self) -> None:
        self._log: RequestLog | None = None
        self._encoded = b""

    def encode(self, log: RequestLog) -> bytes:
        """The log as MessagePack; never empty.

        Cost: nothing if the log is the same as in the previous call, else 0.6 ms for a thousand requests.
        """
        # The log has a new request, or a new answer.
        if log is not self._log:
            self._log, self._encoded = log, msgspec.msgpack.encode(log)
        return self._encoded


def parse_request_log(encoded: bytes) -> RequestLog:
    """Decodes a request log; empty bytes mean that no log was sent, and decode to an empty log."""
    return msgspec.msgpack.decode(encoded, type=RequestLog) if encoded else RequestLog()


@dataclass(frozen=True)
class FollowerLog:
    """The newest state of the job that a follower holds, and the clusters that may be in force.

    Args:
        term: The term of the leader that sent the state.
        version: The version of the state; every leader continues the count of the previous leader.
        snapshot: The state; ``None`` before the first state has arrived.
        encoded: The state as bytes, as received.
        requests: The request log of the state as bytes, as last received; decoded only when this agent leads.
        uncommitted: The last state known to be acknowledged by every follower, then every later state, each as its
            version and its cluster. Until a later state commits, a quorum is required under each of these states.
    """

    term: int = 0
    version: int = 0
    snapshot: JobSnapshot | None = None
    encoded: bytes = b""
    requests: bytes = b""
    uncommitted: tuple[tuple[int, Cluster], ...] = ()

    def with_state(self, term: int, version: int, encoded: bytes, requests: bytes = b"") -> FollowerLog:
        """The log after the arrival of a newer state; empty ``requests`` keep the previous request log."""
        snapshot = parse_snapshot(encoded)
        uncommitted = (*self.uncommitted, (version, snapshot.cluster))
        return FollowerLog(term, version, snapshot, encoded, requests or self.requests, uncommitted)

    def after_commit(self, version: int) -> FollowerLog:
        """The log without the clusters that are obsolete once every follower has acknowledged ``version``."""
        last = max((one for one, _ in self.uncommitted if one <= version), default=0)
        kept = tuple(entry for entry in self.uncommitted if entry[0] >= last)
        return self if kept == self.uncommitted else replace(self, uncommitted=kept)

    @property
    def possible_clusters(self) -> tuple[Cluster, ...]:
        """Every cluster that may be valid: the last committed cluster and all later ones, see `HostList.covers`."""
        hosts = self.snapshot.hosts if listed_in(self) and self.snapshot is not None else None
        return tuple(cluster for _, cluster in self.uncommitted if hosts is None or hosts.covers(cluster))

    @property
    def members(self) -> frozenset[int]:
        """The hosts of any cluster that may be valid, without those off the list: a host whose removal is not committed
        may still be a member."""
        known = frozenset[int]().union(*(cluster.hosts.known for cluster in self.possible_clusters))
        return known & (listed_in(self).keys() or known)


def listed_in(log: FollowerLog) -> Mapping[int, Host]:
    """The listed hosts of the state in ``log``, by number; empty before the first state."""
    return log.snapshot.hosts.listed if log.snapshot is not None else NO_HOSTS


class ConsensusState:
    """The term, the leader, the vote and the log of the agent on ``host``, shared by all threads of the agent.

    Args:
        host: The number of the agent's host; -1 until a leader has given the host a number.
        hosts: The hosts of the job as this agent knows them at its start, by number.
        incarnation: A random number drawn when the agent started.
        clock: A monotonic clock in seconds.
        patience_s: The seconds for which the main thread may handle one event; then it hangs.

    Attributes:
        job: The job of this agent; empty while the agent is in no job.
        term: The term of the leader that this agent follows.
        leader: The host of the leader; ``None`` while the leader is lost or not known yet.
        lost_leader: The host of the leader that this agent lost last; ``None`` before.
        log: The log of the job on this agent.
        hosts: The hosts of the newest state that this agent knows, by number.
        voted_at: The time of this agent's last vote for another agent, on this agent's clock.
        is_closed: True once this agent ends.
        has_quorum: True if the pre-votes of this agent are a quorum; ``None`` while they are not counted.
    """

    def __init__(
        self, host: int, hosts: Mapping[int, Host] = NO_HOSTS, *, incarnation: str = "",
        clock: Callable[[], float] = time.monotonic, patience_s: float = math.inf,
    ) -> None:  # fmt: skip
        self.host, self.hosts, self.incarnation, self._clock, self._patience_s = (
            host, hosts, incarnation, clock, patience_s
        )  # fmt: skip
        self._changed = threading.Condition()
        self.job, self.term, self._number = "", 0, 0
        self.leader: int | None = None
        self.lost_leader: int | None = None
        self.is_closed = False
        self._voted, self.voted_at = (0, -1), -math.inf  # the term and the host of the last vote
        self.log = FollowerLog()
        self.has_quorum: bool | None = None
        self._heard, self._leader_now = clock(), 0.0
        self._busy_since = math.inf  # the time since which the main thread handles an event; infinite while it waits

    def name_of(self, host: int) -> str:
        """The name of a host, or its number: the first message of a new leader may come before its list of hosts."""
        return self.hosts[host].name if host in self.hosts else f"number {host}"

    @property
    def is_leader(self) -> bool:
        """True if this agent leads the job."""
        return self.leader == self.host

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that this agent holds; ``None`` before the first state has arrived."""
        snapshot = self.log.snapshot
        return snapshot.cluster if snapshot else None

    def leader_clock(self) -> Callable[[], float]:
        """The clock of the leader, derived from the leader's messages; a new leader continues this clock."""
        shift = self._leader_now - self._heard
        return lambda: self._clock() + shift

    def silence_s(self) -> float:
        """Seconds since the leader was last heard."""
        return self._clock() - self._heard

    @property
    def voted_term(self) -> int:
        """The last term in which this agent has voted, for another agent or for itself; 0 before its first vote."""
        return self._voted[0]

    @property
    def hangs(self) -> bool:
        """True if the main thread has handled one event for longer than ``patience_s``, for example because a disk does
        not answer: this agent then neither leads nor votes, although its other threads continue."""
        return self._clock() - self._busy_since > self._patience_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait of the main thread, for an event or for other agents: it has a deadline of its own."""
        self._busy_since = math.inf
        try:
            yield
        finally:
            self._busy_since = self._clock()

    # ---- following a leader ------------------------------------------------------------------------------------------

    def follow(self, job: str, leader: int, term: int = 0) -> None:
        """Follows the leader that has admitted this agent, unless a leader of a later term has been heard already."""
        with self._changed:
            # No message of a leader has arrived before the admission.
            if not self.job and term >= max(self.term, self._voted[0]):
                self.job, self.leader, self._heard = job, leader, self._clock()
                self.term = term
                self._changed.notify_all()

    def append(self, request: pb.ReplicateRequest) -> str:
        """Adopts the term, clock and state in a leader's message; returns the reason for a refusal, '' if accepted."""
        with self._changed:
            # A message of another job: two jobs share a host and a port by mistake.
            if self.job and request.job != self.job:
                return f"this host is in another job, {self.job}"
            # The name of another host leads here.
            if request.HasField("host") and request.host != self.host:
                return f"this is host {self.host}, not host {request.host}"
            # This agent was restarted: the message is for its predecessor, which received the earlier messages.
            if request.incarnation != self.incarnation or (not self.job and request.number > 1):
                return "the agent of this host has begun anew"
            # The sender led an earlier term, or this agent has voted for the candidate of a later term.
            if request.term < max(self.term, self._voted[0]):
                return f"this host follows another leader: of term {max(self.term, self._voted[0])}"
            # Another agent claims the term that this agent leads.
            if self.is_leader:
                return "this host leads the job"
            # A late copy from a broken connection: later messages of this leader were received meanwhile.
            if request.term == self.term and request.number < self._number:
                return ""
            # The first message of a new leader: its numbers start again.
            if request.term > self.term:
                self._number = 0
            self.job, self.term, self.leader = request.job, request.term, request.leader
            self._heard, self._leader_now = self._clock(), request.now
            # The state is newer; heartbeats and commands carry no state, and a new leader may repeat a state.
            if request.state and (request.term, request.version) > (self.log.term, self.log.version):
                self.log = self.log.with_state(request.term, request.version, request.state, request.requests)
                self.hosts = listed_in(self.log) or self.hosts
            self.log = self.log.after_commit(request.committed)
            self._changed.notify_all()
            return ""

    def is_new(self, request: pb.ReplicateRequest) -> bool:
        """True if the message was not received before: the leader repeats a message if the reply was lost. Messages are
        numbered within each term, so a message of an earlier term never counts as new."""
        with self._changed:
            # The leader of that term is replaced, or this message was received before.
            if request.term != self.term or request.number <= self._number:
                return False
            self._number = request.number
            return True

    def lose_leader(self) -> bool:
        """Notes that the leader is lost; returns True if this agent had not noted the loss before."""
        with self._changed:
            news = self.leader is not None and not self.is_leader
            # This agent followed the leader until now; a leader does not lose itself.
            if news:
                self.leader, self.lost_leader, self.has_quorum = None, self.leader, None
            self._changed.notify_all()
            return news

    def await_leader(self, timeout_s: float) -> int | None:
        """Waits for a leader and returns its host; ``None`` after the timeout, or if this agent ends."""
        with self._changed:
            self._changed.wait_for(lambda: self.leader is not None or self.is_closed, timeout=timeout_s)
            return self.leader

    def close(self) -> None:
        """Ends all waits for a leader and gives up the vote, because this agent ends."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    # ---- elections ---------------------------------------------------------------------------------------------------

    def become_leader(self, job: str, term: int) -> bool:
        """Makes this agent the leader of ``term``; ``False`` if the term has a leader, or a later term is known."""
        with self._changed:
            # This agent follows the leader of that term or of a later one, or has voted for a later candidate.
            if term <= self.term or term < self._voted[0]:
                return False
            self.job, self.term, self.leader = job, term, self.host
            self._changed.notify_all()
            return True

    def grant_vote(self, term: int, host: int) -> bool:
        """Votes for ``host`` in ``term`` and refuses earlier terms from then on; ``False`` if the vote is refused."""
        with self._changed:
            last, candidate = self._voted
            # The term is over, or this agent has voted in a later term, or for another candidate in this term.
            if term <= self.term or term < last or (term == last and host != candidate):
                return False
            # The vote is for another agent, which is given time to lead.
            if (term, host) != self._voted and host != self.host:
                self.voted_at = self._clock()
            self._voted = (term, host)
            return True

    def answer_vote(self, request: pb.VoteRequest) -> pb.VoteReply:
        """Answers the vote request of a candidate or, without ``binding``, a pre-vote. The reply contains the present
        log; no message of a leader is handled meanwhile."""
        with self._changed:
            log, cluster, voted = self.log, self.cluster, max(self.term, self._voted[0])
            # This agent is not in that job, or could not follow the new leader, or ends: it has no vote.
            if request.job != self.job or cluster is None or self.hangs or self.is_closed:
                return pb.VoteReply()
            reply = pb.VoteReply(
                term=log.term, version=log.version, state=log.encoded, requests=log.requests, voted_term=voted
            )
            # This agent has counted its own pre-votes.
            if self.has_quorum is not None:
                reply.has_quorum = self.has_quorum
            is_newer = (log.term, log.version) > (request.log_term, request.log_version)
            members = log.members if self.leader is None else cluster.hosts.known
            # The candidate was declared lost while it could not be reached: it must stop. If the leader that removed it
            # is lost too, the removal must be committed.
            if is_newer and request.host not in members:
                reply.fenced = True
            # This agent still hears the leader, so it does not vote.
            elif self.leader is not None:
                reply.hears_leader = True
            # The request is no pre-vote: the answer binds this agent.
            elif request.binding:
                reply.granted = self.grant_vote(request.term, request.host)
            return reply
