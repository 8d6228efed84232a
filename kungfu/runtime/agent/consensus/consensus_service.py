"""The gRPC service of an agent for other agents: admission, replication, votes, and events of other hosts."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from kungfu.runtime.agent.consensus.host_admission import listed_reply, unreachable
from kungfu.runtime.agent.consensus.replication import HEARTBEAT_EVERY_S, lost_after_s
from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import word_converters
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceServicer
from kungfu.runtime.settings import Settings

_REPLY_S, _PROBE_S = 4.0, 0.2
# Host events remain messages in the queue of an agent; the words appear only in errors.
_, _kind_of = word_converters(pb.HostEventKind, ("spawned", "ended", "signalled", "loaded"))


@dataclass(frozen=True)
class AdmissionRequested:
    """An agent requests admission; ``reply`` receives the settings of the job's peers, or a refusal."""

    request: pb.HostAdmissionRequest
    reply: Future[pb.HostAdmissionReply] = field(default_factory=Future)


@dataclass(frozen=True)
class ReplicateReceived:
    """A new message of the leader has arrived."""

    request: pb.ReplicateRequest


@dataclass(frozen=True)
class LeaderLost:
    """The leader is lost; ``how`` describes the loss."""

    how: str


class HostService(HostServiceServicer):  # type: ignore[misc]  # generated without types
    """Answers the calls of other agents.

    Args:
        consensus: The consensus state of this agent.
        settings: The settings of the job.
        put: Queues an event for the agent's main thread.
        started: Returns the peers that this host has ever started.
        flushed: Waits until all events queued so far are handled and replicated; returns True if they are.
    """

    def __init__(
        self,
        consensus: ConsensusState,
        settings: Settings,
        *,
        put: Callable[[object], None],
        started: Callable[[], list[int]],
        flushed: Callable[[], bool],
    ) -> None:
        self._consensus, self._settings = consensus, settings
        self._put, self._started, self._flushed = put, started, flushed

    def AdmitHost(self, request: pb.HostAdmissionRequest, context: Any) -> pb.HostAdmissionReply:  # noqa: N802 - gRPC's name
        consensus, host = self._consensus, request.host
        listed = listed_reply(consensus.hosts, job=consensus.job, leader=consensus.leader)
        listed.retry = bool(consensus.job)
        # This agent ends, and only names the other hosts: a job that is started again has another name.
        if consensus.is_closed:
            return pb.HostAdmissionReply(hosts=listed.hosts)
        # A follower cannot admit hosts; while it is in a job, no other job may be founded.
        if not consensus.is_leader:
            return listed if consensus.job else pb.HostAdmissionReply()
        # No list names the host: the leader must be able to reach it.
        if host.number < 0:
            asks, own = Host(host.name, host.slots, host.port), consensus.hosts[consensus.host]
            listed.refusal = unreachable(asks, own=own)
            if listed.refusal:
                return listed
        requested = AdmissionRequested(request)
        self._put(requested)
        try:
            return requested.reply.result(timeout=_REPLY_S)
        except TimeoutError:
            # The main thread is busy. A request that it has begun to handle is answered when the agent asks again.
            requested.reply.cancel()
            return listed

    def Replicate(self, request: pb.ReplicateRequest, context: Any) -> pb.ReplicateReply:  # noqa: N802 - gRPC's name
        if (why := self._consensus.append(request)) != "":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        # A message that is repeated, because its first reply was lost, is acknowledged but not performed again.
        if self._consensus.is_new(request):
            self._put(ReplicateReceived(request))
        return pb.ReplicateReply(started=self._started(), pid=os.getpid())

    def RequestVote(self, request: pb.VoteRequest, context: Any) -> pb.VoteReply:  # noqa: N802 - gRPC's name
        consensus = self._consensus
        leader = consensus.leader
        # The candidate has lost the leader; this agent checks at once instead of waiting for its timeout.
        if leader is not None and leader != consensus.host and not self._hears(leader) and consensus.lose_leader():
            name = consensus.name_of(leader)
            self._put(LeaderLost(f"host {name}, which led the job: neither this host nor another one hears its agent"))
        return consensus.answer_vote(request)

    def ReportHostEvent(self, request: pb.HostEvent, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        if not self._consensus.is_leader:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this host does not lead the job")
        # An agent of a newer version may report an unknown kind, which must not be mistaken for a known one.
        with rpc.refusing(context):
            _kind_of(request.kind)
        self._put(request)
        # This agent is ending, or no longer leads: the event is reported again, to the next leader.
        if not self._flushed():
            context.abort(grpc.StatusCode.UNAVAILABLE, "this host does not lead the job any more")
        return pb.Ack()

    def _hears(self, leader: int) -> bool:
        # The last messages of a leader to two followers may be a whole pause apart: both have missed the same ones.
        is_silent = self._consensus.silence_s() > lost_after_s(self._settings.deadlines) - HEARTBEAT_EVERY_S
        host = self._consensus.hosts.get(leader)
        # The candidate waits for this answer: a machine that is up refuses at once.
        return not is_silent and (host is None or may_be_up(host, within_s=_PROBE_S))


def may_be_up(host: Host, *, within_s: float) -> bool:
    """True if the agent of a host may be running; only a connection that is refused in time proves that it does not."""
    return not rpc.is_refused(host.address, within_s=within_s)
