"""The role of a follower: performs the leader's commands on its host, and writes the records that the leader sends."""

from __future__ import annotations

from functools import partial
from typing import Any

from kungfu.runtime.agent.consensus.consensus_service import LeaderLost, ReplicateReceived
from kungfu.runtime.agent.context import AgentContext, Ending, SignalReceived
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import to_spawn


class Follower:
    """Follows the leader of the job, until the job is over or the leader is lost."""

    def __init__(self, context: AgentContext) -> None:
        self._context, self._number = context, context.job.own_host

    @property
    def cluster(self) -> Cluster:
        """The newest state of the job that this agent has received from a leader."""
        return self._context.consensus.cluster or Cluster(JobLimits(self._context.job.deadlines))

    @property
    def is_idle(self) -> bool:
        """True if no deadline is near; always True, because only the leader checks deadlines."""
        return True

    def handle(self, event: Any) -> Ending | LeaderLost | None:
        """Handles an event of this agent's queue; returns an ending if the job ends on this host, and ``LeaderLost`` if
        a new leader must be elected."""
        # A signal to this host: the leader decides its meaning.
        if isinstance(event, SignalReceived):
            return self._on_signal(event.number)
        # The leader's commands for this host, and the leader's records.
        if isinstance(event, ReplicateReceived):
            return self._perform(event.request)
        # A leader that was heard again, or was replaced, is not lost any more.
        return event if isinstance(event, LeaderLost) and self._context.consensus.leader is None else None

    def _on_signal(self, number: int) -> Ending | None:
        """Reports a signal to the leader, which decides whether this host leaves or the job ends."""
        # The leader has not confirmed the previous signal and may be lost: this signal ends the host's part of the job.
        if self._context.host_events.holds(pb.HOST_EVENT_KIND_SIGNALLED):
            return Ending(128 + number)
        signalled = pb.HostEvent(host=self._number, kind=pb.HOST_EVENT_KIND_SIGNALLED, code=number)
        self._context.host_events.put(signalled)
        return None

    def _perform(self, request: pb.ReplicateRequest) -> Ending | LeaderLost | None:
        for records in request.reports:
            self._context.recorder.receive(records, leads=False)
        # In another term, another agent leads and has not decided on these commands.
        if request.term == self._context.consensus.term:
            for start in request.starts:
                # Reported before the process is watched: the leader must know of the start before the exit.
                report = partial(self._report_spawned, start.peer)
                settings = self._context.settings_in(self.cluster)
                self._context.supervisor.start(settings, to_spawn(start), on_start=report)
            for peer in request.kills:
                self._context.supervisor.kill(peer)
        # The job is over, or this host was released.
        if request.HasField("end"):
            return Ending.from_message(request.end, leaves=request.leaves)
        # The leader leaves the job, which may continue: its followers elect another leader, unless one leads already.
        if request.leaves and request.term == self._context.consensus.term:
            self._context.consensus.lose_leader()
            return LeaderLost("the host that led the job has left it")
        return None

    def _report_spawned(self, peer: int, pid: int) -> None:
        spawned = pb.HostEvent(host=self._number, kind=pb.HOST_EVENT_KIND_SPAWNED, peer=peer, pid=pid)
        self._context.host_events.put(spawned)
