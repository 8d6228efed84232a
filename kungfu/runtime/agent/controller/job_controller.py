"""Controls a job: decides on each event, replicates the new state, then performs the commands."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kungfu.event_log.events import EndedEvent, FailedEvent, HostLeftEvent, LoggedEvent, StoreEvent
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.agent.consensus.election import Elected
from kungfu.runtime.agent.consensus.host_list import HostList, founded
from kungfu.runtime.agent.consensus.replication import Replicator
from kungfu.runtime.agent.consensus.state import JobSnapshot, RequestLogEncoder, serialize_snapshot
from kungfu.runtime.agent.context import AgentContext, Ending
from kungfu.runtime.agent.controller.executor import Executor
from kungfu.runtime.agent.restarts import next_restart
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.core.cluster.cluster import Cluster, Departure, Hosts, Transition, exit_in_words
from kungfu.runtime.core.cluster.program_exits import chosen_failure, describe_departure
from kungfu.runtime.core.cluster.transitions import react
from kungfu.runtime.core.failure import NO_QUORUM_CODE, Failure, find_root_cause, named
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.job_service import Query
from kungfu.runtime.job_api.request_handler import RequestHandler

# The seconds for which the leader, after the first failure, waits for other peers to end, to find the root cause.
_ROOT_CAUSE_S = 3.0
_ASK_AGAIN_S = 0.2


class JobController:
    """Contains the leader's state of the job, and handles each event.

    Args:
        context: The context of the agent.
        elected: The result of an election; ``None`` for the leader that founds the job.

    Attributes:
        cluster: The view, the processes and the hosts; replaced by each decision.
        last_events: The number of the last event that each host has reported.
        incarnations: The last admitted agent of each host, identified by a random number drawn when the agent started.
        requests: The requests of people and schedulers.
        hosts: The list of the hosts; replaced by each change of it.
        names: The names of all hosts that this agent has seen in the list, by number.
    """

    def __init__(self, context: AgentContext, elected: Elected | None) -> None:
        self._context, self._job, self._clock = context, context.job, context.clock
        # The job continues from the newest state among the voters of this leader.
        if elected is not None:
            snapshot, term, version = elected.snapshot, elected.term, elected.version
        else:
            snapshot = JobSnapshot(Cluster(context.job.limits, hosts=Hosts(slots={})))
            term, version = context.consensus.term, 0
        self.cluster, self.last_events = snapshot.cluster, dict(snapshot.last_events)
        self.incarnations, self._end = dict(snapshot.incarnations), snapshot.end
        self._alone_code = NO_QUORUM_CODE  # of this host, when it stops and the others may continue
        self.names = dict[int, str]()
        self._set_hosts(snapshot.hosts if snapshot.hosts.listed else founded(context.job.hosts))
        # The last cluster that every follower has acknowledged, and all later clusters.
        self._uncommitted: tuple[Cluster, ...] = elected.uncommitted if elected else (self.cluster,)
        self.requests = RequestHandler(
            context.settings, scaling=context.job.scaling, record=partial(self.record, shown=True),
            process_of=lambda peer: self.executor.pids.get(peer, 0), names=self.names,
            request_log=elected.request_log if elected else None,
        )  # fmt: skip
        self._encoder = RequestLogEncoder()
        self.replicator = Replicator(
            context.settings, leader=context.job.own_host, term=term, clock=self._clock,
            put=context.put, hangs=lambda: context.consensus.hangs, version=version,
        )  # fmt: skip
        self.executor = Executor(context, self.replicator, snapshot, record=self.record, known=lambda: self.cluster)

    @property
    def has_begun(self) -> bool:
        """True if any peer was ever started."""
        return self.cluster.processes.next_id > 0

    def handle(self, event: Any) -> Ending | None:
        """Handles an event of a peer, a query, a request or a tick; returns the ending of the job, if it ends."""
        # Queries and records do not change the state of the job.
        if not isinstance(event, Query | NewRecords):
            self.executor.record_event(event, self.cluster)
            if (ending := self.decide(event)) is not None:
                return ending
        return self.handle_request(event)

    def decide(self, event: decided.Event) -> Ending | None:
        """Decides on an event and carries the decision out; returns the ending of the job, if it ends. See `apply`."""
        return self.apply(react(self.cluster, event, self._clock()))

    def handle_request(self, event: Any) -> Ending | None:
        """Handles queries and requests of people and schedulers; updates the current request. May return an ending."""
        request_log = self.requests.request_log
        externals = self.requests.handle(event, self.cluster, self._clock())
        # The request log has changed: no reply before the followers know of the change.
        if self.requests.request_log is not request_log:
            # A job does not end below a minimum that a person has raised: the peers for it may never come.
            minimum = min(self.requests.limits.minimum, self._job.limits.minimum)
            self.cluster = replace(self.cluster, limits=replace(self.cluster.limits, minimum=minimum))
            if (ending := self.replicate()) is not None:
                return ending
        self.requests.send_replies()
        for external in externals:
            # Every request carries the newest limits of the size, and the hold, also if it is sent again.
            self.executor.perform(replace(external, sizes=self.requests.request_log.sizes), self.cluster)
        return None

    def apply(self, outcome: Transition) -> Ending | None:
        """Replicates the decided state, then performs the decided commands; returns the ending of the job, if any."""
        before, (self.cluster, commands) = self.cluster, outcome
        # Hosts that leave after a notice leave the list with the decision that releases them.
        self._set_hosts(self.hosts.without([one.host for one in commands if isinstance(one, decided.ReleaseHost)]))
        # A command may only be performed once a quorum knows of the decision.
        if (commands or self.cluster is not before) and (ending := self.replicate()) is not None:
            return ending
        for command in commands:
            ending = self._perform(command)
            if ending is not None:
                return ending
        return None

    def change_hosts(self, hosts: HostList) -> Ending | None:
        """Changes the list of hosts by one host, and replicates it; returns the ending of this host's part if no quorum
        acknowledges the change."""
        self._set_hosts(hosts)
        return self.replicate()

    def forget_host(self) -> Ending | None:
        """Removes the host that is lost for the longest time from the list, if it is lost for ``--forget-host``."""
        forget_s = self._job.deadlines.forget_s
        number = self.hosts.to_forget(self._uncommitted, now=self._clock(), forget_s=forget_s)
        # No host is lost for so long.
        if number is None:
            return None
        ending = self.change_hosts(self.hosts.without([number]))
        if ending is None:
            why = f"it is lost for {forget_s:g} s (--forget-host), and will have another number if it comes back"
            self.record(HostLeftEvent(host=number, name=self.names[number], why=why), shown=True)
        return ending

    def may_leave(self, number: int) -> bool:
        """True if a host is absent, and no view that may be in force needs it."""
        return number not in self.cluster.hosts.known and self.hosts.may_leave(number, self._uncommitted)

    def _set_hosts(self, hosts: HostList) -> None:
        self.hosts, self._context.consensus.hosts = hosts, hosts.listed
        self.names.update({number: host.name for number, host in hosts.listed.items()})

    # ---- consensus with the followers --------------------------------------------------------------------------------

    def replicate(self, *, anew: bool = False) -> Ending | None:
        """Replicates the state; returns the ending of this host's part if no quorum acknowledges the state. With
        ``anew`` a quorum must answer now: followers might hear, and hold, what a leader decides that hears nobody."""
        # A job on one host ends with its agent: no other agent needs the state.
        if not self._job.is_networked:
            return None
        self._set_hosts(self.hosts.with_present(self.cluster.hosts.known, self._clock()))
        self.executor.forget_all_but(self.cluster.alive)
        snapshot = JobSnapshot(
            self.cluster, self.executor.addresses, self.executor.pids, self.last_events, self.incarnations, self._end,
            self.hosts,
        )  # fmt: skip
        state, requests = serialize_snapshot(snapshot), self._encoder.encode(self.requests.request_log)
        self._uncommitted = (*self._uncommitted, self.cluster)
        with self._context.consensus.waiting():
            outcome = self.replicator.commit(state, requests, is_quorum=self._is_quorum, anew=anew)
        # Every follower holds the state: no earlier state counts any more.
        if outcome == "committed":
            self._uncommitted = (self.cluster,)
        # Some followers are late or lost: the others must be a quorum, or this leader stops.
        if outcome == "no quorum":
            return self.end_without_quorum(self.replicator.acknowledged_by)
        return self.claim()

    def claim(self) -> Ending | None:
        """Makes sure that every later leader holds the newest state; returns an ending if another host leads by now."""
        agreement, until = self._context.agreement, time.monotonic() + self._job.deadlines.ready_s
        is_told = False
        with self._context.consensus.waiting():
            # A follower that acknowledges the state in the meantime is no longer in the way.
            while (claim := agreement.claim(self.replicator.acknowledged_by)) == "unknown":
                if self._context.interrupted.is_set():
                    self._alone_code = 128 + signal.SIGINT
                    return self._stop("interrupted while it waited for the store, and the others may continue")
                if time.monotonic() > until:
                    break
                if not is_told:
                    host, is_told = self._job.own_host, True
                    self.record(StoreEvent(host=host, name=self.names[host], state="awaited"), shown=True)
                time.sleep(_ASK_AGAIN_S)
        if claim == "granted":
            return None
        why = "another host leads the job by now"
        if claim == "unknown":
            why = f"waited {self._job.deadlines.ready_s:.0f} s for the store, and another host may lead the job"
        return self._stop(f"{why}: so this host stops")

    def _is_quorum(self, hosts: frozenset[int]) -> bool:
        """True if ``hosts`` may continue without the others; before the first view a leader needs no other hosts.

        An uncommitted state without a view requires no other hosts either: before the first view no agent is elected.
        """
        begun = [one for one in self._uncommitted if one.view is not None and self.hosts.covers(one)]
        return not begun or self._context.agreement.is_quorum(begun, hosts)

    def end_without_quorum(self, hosts: frozenset[int] | None = None) -> Ending | None:
        """Returns the ending of this host's part of the job if ``hosts`` are not a quorum, else ``None``; ``hosts`` are
        by default the reachable hosts."""
        hosts = self.replicator.reachable if hosts is None else hosts
        if self._is_quorum(hosts) or self.cluster.view is None:
            return None
        others = sorted(self.cluster.hosts.known - hosts)
        names = ", ".join(self.names[number] for number in others)
        return self._stop(
            f"lost {names}, without which this host has too few of the peers of view {self.cluster.view.version}: "
            "the others may continue without it, so it stops"
        )

    def _stop(self, why: str) -> Ending:
        """Ends this host's part of the job. Followers that still hear this leader may be part of a quorum: they elect
        another leader, and do not end."""
        self._context.recorder.replicate = lambda records: None  # the record of the others does not end here
        self.record(FailedEvent(peer=-1, error=why, code=self._alone_code))
        return Ending(self._alone_code, Failure(-1, why, self._alone_code), leaves=True)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _perform(self, command: decided.Command) -> Ending | None:
        match command:
            case decided.ReleaseHost(host):
                return self._release(host)
            case decided.Fail():
                return self.fail(command)
            case decided.Done():
                return self.end(Ending(0))
            case _:
                self.executor.perform(command, self.cluster)
        return None

    def fail(self, command: decided.Fail) -> Ending:
        """Finds the root failure of a job that cannot continue, and ends the job with it, or starts it again."""
        failure = root_cause(self._context, command, self.cluster, self.executor.tails)
        nth = next_restart(self._context.recorder.journal.folder, self._job) if failure.is_loss else 0
        return self.end(Ending(failure.code, failure, restarts=nth))

    def end(self, ending: Ending, *, host: int | None = None) -> Ending:
        """Ends the whole job with ``ending`` once a quorum holds the end. Without a quorum the others may have another
        leader: then only this host's part ends, and that ending is returned. ``host`` is the host of a signal."""
        # A signal to this host ends at least this host, with the code of the signal.
        if host == self._job.own_host:
            self._alone_code = ending.code
        alone = self.replicate(anew=True)
        if alone is None:
            self._end = ending.to_message().SerializeToString()
            alone = self.replicate()
        if alone is not None:
            return alone
        # The job is started again; or its end was recorded by a leader that was lost before it had told all hosts.
        if ending.restarts or self._context.recorder.has_ended:
            return ending
        if (failure := ending.failure) is not None:
            self.record(FailedEvent(peer=failure.peer, error=failure.text, code=failure.code))
        else:
            reason = signal.Signals(ending.code - 128).name if ending.code else "training is over"
            self.record(EndedEvent(reason=reason, host=host, code=ending.code))
        return ending

    def _release(self, host: int) -> Ending | None:
        self.record(HostLeftEvent(host=host, name=self.names[host], why="its peers have left"), shown=True)
        # This is the leader's host: the others elect another leader.
        if host == self._job.own_host:
            return Ending(0, leaves=True)
        self.replicator.send(host, pb.ReplicateRequest(end=pb.JobEnd(code=0, peer=-1), leaves=True))
        self.replicator.remove_follower(host)
        return None

    # ---- the record --------------------------------------------------------------------------------------------------

    def record(self, event: LoggedEvent, *, shown: bool = False) -> None:
        """Adds an event to the record; with ``shown`` also shows it to people."""
        self._context.recorder.event(event, shown=shown)
        self.requests.on_record(event)


def root_cause(
    context: AgentContext, command: decided.Fail, cluster: Cluster, tails: Mapping[int, Sequence[str]]
) -> Failure:
    """Waits briefly for the ends of other peers, then returns the failure that caused all other failures.

    Args:
        context: The context of the agent; the awaited ends are read from the agent's queue.
        command: The failure that was noticed first.
        cluster: The state of the job when this failure was noticed.
        tails: The last lines that each ended peer printed, by peer.

    Returns:
        The root failure, with the exit code of the job and the last output of the failed peer.

    Cost:
        At most three seconds; none if a deadline has expired, since then no peer has ended.
    """
    ended, known = {command.peer: command.reason, **command.others}, dict(tails)
    exit_kinds = {peer: departure.exit.kind for peer, departure in cluster.losses.exiting.items()}
    losses, exiting = cluster.losses, dict(cluster.losses.exiting)
    # The process of the peer has not ended, but the peer has reported the error.
    if command.kind is not None:
        exit_kinds[command.peer] = command.kind
    awaited = cluster.wanted - set(command.others)
    # If the cause is known, only the end of that peer, with its last output, is awaited; else the ends of all others.
    awaited = awaited & {command.peer} if command.code is not None else awaited - {command.peer}
    deadline = time.monotonic() + _ROOT_CAUSE_S
    while awaited and not command.late and (left := deadline - time.monotonic()) > 0:
        event = context.next_event(left)
        # No other process has ended in time.
        if event is None:
            break
        # A program reports the reason of its exit before its process has ended.
        if isinstance(event, decided.ProgramExiting):
            exit_kinds[event.peer] = event.exit.kind
            exiting[event.peer] = Departure(event.exit, 0.0)
        elif isinstance(event, pb.HostEvent) and event.kind == pb.HOST_EVENT_KIND_ENDED:
            known[event.peer] = list(event.tail)
            if event.peer in exiting:
                exiting[event.peer] = replace(exiting[event.peer], code=event.code)
            awaited -= {event.peer}
            # This end may be the cause of the others.
            if _is_bad(event, cluster) and event.peer not in ended:
                ended[event.peer] = exit_in_words(event.code)
                losses = losses.with_killed(event.peer, event.code)
    last_words = {peer: known.get(peer) or context.supervisor.tail(peer) for peer in ended}
    ids = cluster.view.ids if cluster.view else ()
    ranks = {peer: rank for rank, peer in enumerate(ids) if peer in ended}
    # The cause is known, for example because a program chose its exit code.
    if command.code is not None:
        text, output = named(command.peer, command.reason, ranks.get(command.peer)), tuple(last_words[command.peer])
        return Failure(command.peer, text, command.code, output, command.chosen)
    failure = find_root_cause(
        ended, last_words, ranks=ranks, first=command.peer, late=command.late, exit_kinds=exit_kinds
    )
    # The process of a program that chose its exit code may end after the programs that have lost it.
    if (departure := exiting.get(failure.peer)) is not None and not command.late:
        cluster = replace(cluster, losses=replace(losses, exiting=exiting))
        chosen = chosen_failure(cluster, failure.peer, describe_departure(departure))
        if chosen is not None and chosen.chosen and chosen.code is not None:
            text = named(failure.peer, chosen.reason, ranks.get(failure.peer))
            return replace(failure, text=text, code=chosen.code, chosen=True)
    # A killed peer reports nothing, or the end of its program after SIGTERM; others report that they have lost it.
    kinds = {peer: exit_kinds.get(peer, "exit") for peer in ended}
    lost = all(kind == "loss" or (kind == "exit" and peer in losses.killed) for peer, kind in kinds.items())
    return replace(failure, is_loss=command.is_loss or (lost and not command.late))


def _is_bad(event: pb.HostEvent, cluster: Cluster) -> bool:
    """True if this end of a process may have caused the ends of others, as any end may before the first view."""
    return event.peer not in cluster.processes.released and (event.code != 0 or cluster.view is None)
