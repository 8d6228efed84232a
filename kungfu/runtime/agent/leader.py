"""The role of the leader: handles events, decides for the whole job, and admits and removes hosts.

The consequences of an event are performed only when every follower holds the state that includes the event, so a new
leader always knows everything that was reported to peers.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from kungfu.errors import DeadlineExceeded
from kungfu.event_log import events
from kungfu.runtime.agent.agent_service import PhaseProgressAsked
from kungfu.runtime.agent.consensus.consensus_service import AdmissionRequested, LeaderLost, ReplicateReceived
from kungfu.runtime.agent.consensus.election import Elected
from kungfu.runtime.agent.consensus.host_admission import RECORD, listed_reply, refusal_of
from kungfu.runtime.agent.consensus.replication import HostReported
from kungfu.runtime.agent.context import AgentContext, Ending, JobSpec, SignalReceived
from kungfu.runtime.agent.controller.job_controller import JobController
from kungfu.runtime.agent.controller.peer_client import FormationFailed, NotifyFailed
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.core.cluster.cluster import UNBOUNDED, Cluster, Hosts
from kungfu.runtime.core.cluster.placement import peers_on
from kungfu.runtime.core.cluster.transitions import start_job
from kungfu.runtime.core.requests.request_log import current
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import from_peer


@dataclass(frozen=True)
class QueueFlush:
    """A marker in the queue; ``passed`` is set when all events before the marker are handled."""

    passed: threading.Event


class Leader:
    """Decides for the whole job, from the start of the job or from the loss of the previous leader."""

    def __init__(
        self, context: AgentContext, *, elected: Elected | None = None, restart: events.RestartedEvent | None = None
    ) -> None:
        self._context, self._job, self._clock = context, context.job, context.clock
        self._restart = restart
        self._has_followers = self._job.is_networked
        self._controller = JobController(context, elected)
        # The running peers according to the previous leader's state; some of its last commands may be lost.
        self._inherited = self.cluster.alive if elected else frozenset[int]()
        self._refused_at = dict[str, float]()  # the time of the first request of each agent whose name is in use
        self._elected, self._began = elected, self._clock()
        if self._has_followers:
            broadcast = self._controller.replicator.broadcast
            context.recorder.replicate = lambda records: broadcast(pb.ReplicateRequest(reports=[records]))

    @property
    def cluster(self) -> Cluster:
        """The state of the job after the latest decision."""
        return self._controller.cluster

    @property
    def is_idle(self) -> bool:
        """True if no deadline is near."""
        is_asked = current(self._controller.requests.request_log) is not None
        return self._controller.has_begun and not is_asked and not _awaits(self.cluster)

    def begin(self) -> Ending | None:
        """Starts the job once the agents of all its hosts are admitted, or continues the job after an election."""
        # The job began under another leader, and that leader is lost.
        if self._elected is not None:
            return self._take_over(self._elected)
        self._controller.incarnations[self._job.own_host] = self._context.consensus.incarnation
        if self._restart is not None:
            self._context.recorder.event(self._restart, shown=True)
            self._controller.requests.on_record(self._restart)
        self._record_host(self._job.own_host, os.getpid())
        supervisor = self._context.supervisor
        return self._add_host(self._job.own_host, supervisor.threads, len(supervisor.devices))

    def handle(self, event: Any) -> Ending | None:
        """Handles an event of this agent's queue; returns the ending of the job, if it ends."""
        match event:
            # A thread waits until this point of the queue is reached.
            case QueueFlush(passed):
                passed.set()
                return None
            # The event concerns the previous leader, and was queued during the election.
            case ReplicateReceived() | LeaderLost():
                return None
            case SignalReceived(number):
                return self._on_signal(self._job.own_host, number)
            case AdmissionRequested():
                return self._on_admission(event)
            # A follower has heard this leader for the first time.
            case HostReported():
                return self._reconcile(event)
            case decided.HostLost():
                return self._on_host_lost(event)
            case FormationFailed(error):
                return self._controller.fail(decided.Fail(-1, str(error), late=isinstance(error, DeadlineExceeded)))
            # A message to a peer failed, and is repeated.
            case NotifyFailed(peer, error):
                # The silence of a peer that is known to have ended is not worth recording.
                if peer in self.cluster.alive:
                    self._controller.record(events.UnheardEvent(peer=peer, error=error))
                return None
            case pb.HostEvent():
                return self._on_host_event(event)
            # A joiner asks for the phases that it has missed.
            case PhaseProgressAsked(peer, reply):
                reply.set_result(_phase_progress(self.cluster, peer))
                return None
            # The job waits for hosts: nothing else has a deadline yet.
            case decided.Tick() if not self._controller.has_begun:
                return self._check_missing_hosts()
            case decided.Tick() if (ending := self._controller.forget_host()) is not None:
                return ending
            # A host that has caught up, or a lease that has ended, leads to no decision that would be replicated.
            case decided.Tick() if self._has_followers and (ending := self._controller.claim()) is not None:
                return ending
        return self._controller.handle(event)

    def close(self, ending: Ending | None) -> None:
        """Notifies the followers that the job has ended, or that this agent leaves and they must elect another leader.
        ``ending`` is the ending of this host's part of the job; ``None`` if this agent has failed."""
        # The whole job has ended, or only this host's part of it.
        end = None if ending is None or ending.leaves else ending.to_message()
        self._context.recorder.replicate = lambda records: None  # the links are about to close
        self._controller.replicator.broadcast(pb.ReplicateRequest(end=end, leaves=end is None))
        self._controller.replicator.close()
        self._controller.executor.close()

    # ---- admission of hosts ------------------------------------------------------------------------------------------

    def _record_host(self, number: int, pid: int) -> None:
        host = self._controller.hosts.listed[number]
        event = events.HostJoinedEvent(host=number, name=host.name, pid=pid, port=host.port)
        self._context.recorder.event(event, shown=self._has_followers)
        self._controller.requests.on_record(event)

    def _on_admission(self, requested: AdmissionRequested) -> Ending | None:
        """Handles a request for admission, at the start or because a host has returned."""
        # The agent's call has timed out meanwhile, and the agent will repeat the request.
        if not requested.reply.set_running_or_notify_cancel():
            return None
        host, known = requested.request.host, self.cluster.hosts.known
        # The host has another command line, or a record that the job would begin anew.
        refusal = refusal_of(requested.request, self._job, now=time.time())
        if refusal := refusal or self._refuse_record(dict(requested.request.command_line).get(RECORD, "")):
            requested.reply.set_result(pb.HostAdmissionReply(refusal=refusal, job=self._context.settings.job))
            return None
        number, ending = self._number_of(host)
        # Without a quorum this leader admits no host; the next leader may.
        if ending is not None:
            return ending
        reply = listed_reply(
            self._controller.hosts.listed, job=self._context.settings.job, leader=self._job.own_host
        )  # fmt: skip
        is_same = number is not None and self._controller.incarnations.get(number) == host.incarnation
        # Another agent with the name of a member: perhaps it follows one that has ended and is not missed yet. (The
        # same agent, already a member, has only lost the reply, and receives it again.)
        if number is None or (number in known and not is_same):
            reply.retry, reply.refusal = not self._is_alive(host), self._name_in_use(host)
        # The host does not know its number yet, and asks again.
        elif number != host.number:
            reply.retry, reply.number = True, number
        else:
            # The host is no member: admit it.
            ending = self._admit(host, anew=not is_same) if number not in known else None
            reply.settings, reply.term = self._context.settings.to_json(), self._controller.replicator.term
        if ending is None:
            requested.reply.set_result(reply)
        return ending

    def _number_of(self, host: pb.HostInfo) -> tuple[int | None, Ending | None]:
        """The number of the host that asks for admission, which is listed first if necessary; ``None`` if another host
        has its name. May return an ending, if no quorum holds the new list."""
        controller, asks = self._controller, Host(host.name, host.slots, host.port)
        number = controller.hosts.number_of(host.name)
        if number is not None and controller.hosts.listed[number] == asks:
            return number, None
        # The host is listed with other slots or another port, and no majority needs it: it is listed anew.
        if number is not None:
            if not controller.may_leave(number):
                return None, None
            if (ending := controller.change_hosts(controller.hosts.without([number]))) is not None:
                return None, ending
        number = controller.hosts.next_number
        return number, controller.change_hosts(controller.hosts.with_host(asks))

    def _is_alive(self, host: pb.HostInfo) -> bool:
        """True if the member with the name of this other agent has answered since the other agent first asked."""
        number, since = self._controller.hosts.number_of(host.name), self._clock()
        since = self._refused_at.setdefault(host.incarnation, since)
        return number is not None and self._controller.replicator.has_heard(number, since=since)

    def _name_in_use(self, host: pb.HostInfo) -> str:
        listed = self._controller.hosts.listed[self._controller.hosts.number_of(host.name) or 0]
        return (
            f"a host with the name {host.name} is in it, at {listed.address} with {listed.slots} slots; give this one "
            "another name (--self), or end kungfu-run there"
        )

    def _refuse_record(self, name: str) -> str:
        """The reason why a host with the record of the job ``name`` is refused: this host would begin the job anew."""
        if not name or not self._job.restarts or self._restart is not None or self._controller.has_begun:
            return ""
        own = self._controller.names[self._job.own_host]
        return (
            f"its --logdir holds the record of job {name}, and that of {own}, which founds the job, holds none: give "
            f"{own} the folder that it had before, or all hosts new folders"
        )

    def _admit(self, host: pb.HostInfo, *, anew: bool) -> Ending | None:
        listed = self._controller.hosts.listed[host.number]
        self._controller.incarnations[host.number] = host.incarnation
        if anew:
            self._controller.last_events.pop(host.number, None)  # an agent counts its events from its start
        # An agent that starts has no record yet: it receives the record so far, and then follows it.
        if anew:
            with self._context.recorder.so_far(shown=not self._controller.has_begun) as records:
                self._controller.replicator.add_follower(host.number, listed, incarnation=host.incarnation)
                self._controller.replicator.send(host.number, pb.ReplicateRequest(reports=records))
        else:
            self._controller.replicator.add_follower(host.number, listed, incarnation=host.incarnation, anew=False)
        self._record_host(host.number, host.pid)
        return self._add_host(host.number, host.threads, host.devices)

    def _add_host(self, number: int, threads: int, devices: int) -> Ending | None:
        job = self._job
        if devices:
            hosts = replace(self.cluster.hosts, devices={**self.cluster.hosts.devices, number: devices})
            self._controller.cluster = replace(self.cluster, hosts=hosts)
        slots = self._controller.hosts.listed[number].slots if self._has_followers else UNBOUNDED
        # The host joins, or returns to, a running job.
        if self._controller.has_begun:
            return self._controller.decide(decided.HostJoined(number, slots))
        before = self.cluster.hosts
        shares = {**before.shares, number: threads}
        hosts = Hosts({**before.slots, number: slots}, shares=shares, devices=before.devices)
        self._controller.cluster = replace(self.cluster, hosts=hosts)
        # Other hosts are still to come.
        if not may_begin(hosts, job):
            return None
        settings, again = self._context.settings, self._restart
        size, first = job.size, dict[str, int]()
        if again is not None:
            size, first = again.size, {"first_peer": again.first_peer, "first_view": again.first_view}
        self._controller.record(
            events.StartedEvent(
                job=settings.job,
                size=size,
                command=job.command,
                attachment=settings.attachment,
                spares=job.spares.number,
                spare_level=job.spares.level,
            ),
            shown=True,
        )
        # Hosts that come later bring the job to its size.
        size, hosts = min(size, sum(hosts.slots.values())), replace(hosts, goal=size)
        return self._controller.apply(start_job(size, limits=job.limits, now=self._clock(), hosts=hosts, **first))

    def _check_missing_hosts(self) -> Ending | None:
        limit_s = self._job.deadlines.ready_s
        # There is time left.
        if self._clock() - self._began <= limit_s:
            return None
        there, listed = self.cluster.hosts.slots, self._controller.hosts.listed
        who = "the agents of " + ", ".join(host.name for number, host in listed.items() if number not in there)
        if self._job.min_hosts:
            who = f"{self._job.min_hosts} hosts with {self._job.limits.minimum} slots or more; {len(there)} came"
        return self._controller.fail(
            decided.Fail(-1, f"waited {limit_s:.0f} s for {who}: start the same line there", late=True)
        )

    # ---- events of hosts ---------------------------------------------------------------------------------------------

    def _on_host_event(self, event: pb.HostEvent) -> Ending | None:
        # A repeated report: the confirmation of the first report was lost.
        if 0 < event.number <= self._controller.last_events.get(event.host, 0):
            return None
        # An agent counts the events of its host; events that a new leader adds itself have no number.
        if event.number:
            self._controller.last_events[event.host] = event.number
        if event.kind == pb.HOST_EVENT_KIND_SPAWNED:
            self._controller.executor.record_spawn(event.peer, event.pid, host=event.host)
            # The previous leader decided to start the peer, but was lost before any other agent knew of this decision.
            if event.peer not in self.cluster.alive:
                self._controller.executor.kill(event.peer, host=event.host)
            return None
        if event.kind == pb.HOST_EVENT_KIND_SIGNALLED:
            return self._on_signal(event.host, event.code)
        if event.kind == pb.HOST_EVENT_KIND_LOADED:
            return self._controller.handle(decided.SpareLoaded(event.peer, event.memory_bytes))
        self._controller.executor.tails[event.peer] = list(event.tail)
        # The peer's host was declared lost, or the end of the peer is known already.
        if event.peer not in self.cluster.alive:
            return None
        return self._controller.handle(decided.ProcessEnded(event.peer, event.code))

    def _on_signal(self, host: int, number: int) -> Ending | None:
        """Treats the first SIGTERM or SIGHUP to a host as a preemption notice, if another host can run the peers; any
        other signal ends the job."""
        hosts, named = self.cluster.hosts, signal.Signals(number).name
        # The host was released, and ends.
        if self._controller.has_begun and host not in hosts.known:
            return None
        is_notice = number in (signal.SIGTERM, signal.SIGHUP) and host not in hosts.leaving
        # Before the first view nobody could remove the host's peers, and no other host could lead.
        may_leave = self.cluster.view is not None or (host != self._job.own_host and not peers_on(self.cluster, host))
        # Another host can run the peers: they leave this host at the next barrier.
        if is_notice and set(hosts.slots) - {host} and self._controller.has_begun and may_leave:
            event = events.HostNoticedEvent(host=host, name=self._controller.names[host], signal=named)
            self._controller.record(event, shown=True)
            return self._controller.decide(decided.HostNoticed(host))
        return self._controller.end(Ending(128 + number), host=host if self._has_followers else None)

    def _on_host_lost(self, lost: decided.HostLost) -> Ending | None:
        host, how = lost.host, lost.how
        self._controller.replicator.remove_follower(host)
        hosts = self.cluster.hosts
        # The host was released.
        if host not in hosts.known:
            return None
        # Without the host this leader has no quorum, or hears no quorum: the others may elect another leader.
        ending = self._controller.end_without_quorum() or self._controller.replicate(anew=True)
        if ending is not None:
            return ending
        self._controller.record(events.HostLostEvent(host=host, name=self._controller.names[host], why=how), shown=True)
        # The peers of that host are lost with it.
        if self._controller.has_begun:
            return self._controller.decide(replace(lost, how=f"host {self._controller.names[host]} is lost: {how}"))
        # Before the job begins, the host is simply awaited again.
        self._controller.cluster = replace(self.cluster, hosts=_without(hosts, host))
        return None

    # ---- after an election -------------------------------------------------------------------------------------------

    def _take_over(self, elected: Elected) -> Ending | None:
        """Continues the job as its new leader, after the loss of the previous leader; may return an ending."""
        for number in sorted(elected.reached - {self._job.own_host}):
            incarnation, host = self._controller.incarnations.get(number, ""), self._controller.hosts.listed[number]
            self._controller.replicator.add_follower(number, host, incarnation=incarnation)
        own = self._job.own_host
        event = events.LeaderEvent(host=own, name=self._controller.names[own], term=elected.term)
        self._controller.record(event, shown=True)
        # The voters must hold the state under this term before anything is decided.
        if (ending := self._controller.replicate()) is not None:
            return ending
        # The previous leader has ended the job, and may not have told all hosts.
        if elected.snapshot.end:
            return self._controller.end(Ending.from_message(pb.JobEnd.FromString(elected.snapshot.end)))
        own_report = HostReported(own, tuple(self._context.supervisor.started), os.getpid())
        ending = self._reconcile(own_report) or self._controller.decide(decided.LeaderTookOver())
        # Hosts that did not answer in the election are lost with the leader.
        for number in sorted(self.cluster.hosts.known - elected.reached):
            lost = decided.HostLost(number, "its agent has ended or cannot be reached")
            ending = ending or self._on_host_lost(lost)
        # The job has ended with the leader, or has not begun to train: no request was possible yet.
        if ending is not None or self.cluster.view is None:
            return ending
        # The request under way is completed if the view is as requested, and sent again otherwise.
        return self._controller.handle_request(decided.ViewStarted(self.cluster.view))

    def _reconcile(self, event: HostReported) -> Ending | None:
        """Performs the last decisions of the previous leader for one host, if they were not performed yet."""
        # The leader that founded the job has performed all its decisions.
        if self._elected is None:
            return None
        here = {peer for peer in self._inherited if self.cluster.hosts.of.get(peer, 0) == event.host}
        # Peers that were never started count as killed.
        for peer in sorted(here - set(event.started)):
            killed = pb.HostEvent(host=event.host, kind=pb.HOST_EVENT_KIND_ENDED, peer=peer, code=-signal.SIGKILL)
            self._context.put(killed)
        # Peers that were never killed are killed now.
        for peer in sorted(set(event.started) - self.cluster.alive):
            self._controller.executor.kill(peer, host=event.host)
        # The host is a member, or was lost or released meanwhile.
        if event.host in self.cluster.hosts.known or event.host not in self._controller.replicator.reachable:
            return None
        # The removal of the host was not committed: it joins again, without its peers.
        self._record_host(event.host, event.pid)
        return self._add_host(event.host, threads=0, devices=0)


def _awaits(cluster: Cluster) -> bool:
    """True while peers start or wait for slots, or while the peers of a view or a phase are being assembled."""
    phases = cluster.phases
    awaited = cluster.starting or cluster.hosts.queue or phases.ready or phases.is_forming
    return bool(awaited) or cluster.regrouping is not None


def may_begin(hosts: Hosts, job: JobSpec) -> bool:
    """True if enough hosts are present for the job to begin: all that the founder's command line lists or, with
    ``--min-hosts``, this number of any hosts, with a slot for each of the fewest peers that the job may have."""
    if not job.min_hosts:
        return {*range(len(job.hosts))} <= hosts.slots.keys()
    return len(hosts.slots) >= job.min_hosts and sum(hosts.slots.values()) >= job.limits.minimum


def _without(hosts: Hosts, host: int) -> Hosts:
    """The hosts without ``host``, which was lost before the job began."""
    slots = {number: count for number, count in hosts.slots.items() if number != host}
    shares = {number: share for number, share in hosts.shares.items() if number != host}
    return Hosts(slots, shares=shares, devices=hosts.devices)


def _phase_progress(cluster: Cluster, peer: int) -> pb.PhaseProgress:
    """The number of completed phases, and the peers that hold their results, as the answer to a peer."""
    view, phases = cluster.view, cluster.phases
    # The program may end after this phase: a spare, which has no part in its end, waits until another phase begins.
    is_known = phases.is_over and peer not in cluster.spares.waiting
    over = phases.number if is_known else phases.number - 1
    there = {*cluster.members, *cluster.between_phases} - cluster.starting.keys()
    holders = [from_peer(peer) for peer in (view.peers if view else ()) if peer.id in there]
    return pb.PhaseProgress(over=over, holders=holders)
