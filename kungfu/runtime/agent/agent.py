"""The agent of a host: starts, watches and ends its peers, and leads the job or follows the leader.

Calls of peers and of other agents, exits of processes, signals and clock ticks become events in one queue. The main
thread handles one event at a time, so that no decision interrupts another.
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kungfu.errors import DeadlineExceeded, KungfuError
from kungfu.event_log.events import DevicesEvent, EndedEvent, FailedEvent, PeerEndedEvent, StoreEvent
from kungfu.event_log.values import counted, duration
from kungfu.runtime.agent.agent_service import AgentService
from kungfu.runtime.agent.consensus.agreement import Agreement
from kungfu.runtime.agent.consensus.consensus_service import HostService, LeaderLost, may_be_up
from kungfu.runtime.agent.consensus.election import MajorityAgreement, NoQuorum, elect
from kungfu.runtime.agent.consensus.host_admission import request_admission
from kungfu.runtime.agent.consensus.leader_proxy import LeaderClient, LeaderProxy
from kungfu.runtime.agent.consensus.replication import lost_after_s
from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.agent.consensus.store_agreement import StoreAgreement
from kungfu.runtime.agent.context import AgentContext, Ending, JobSpec, SignalReceived, name_of
from kungfu.runtime.agent.follower import Follower
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.journal.recorder import Console, HostRecorder, RecordListener
from kungfu.runtime.agent.leader import Leader, QueueFlush
from kungfu.runtime.agent.restarts import UnreadableCheckpoints, former_job, plan_restart, restarted
from kungfu.runtime.agent.supervisor.process_supervisor import ProcessSupervisor
from kungfu.runtime.checkpoints.folder import FolderInUse, claim, release
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.core.cluster.cluster import exit_in_words
from kungfu.runtime.core.failure import NO_QUORUM_CODE, Failure
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.etcd import Etcd
from kungfu.runtime.ipc.messages_pb2_grpc import (
    AgentServiceStub,
    JobServiceStub,
    add_AgentServiceServicer_to_server,
    add_HostServiceServicer_to_server,
    add_JobServiceServicer_to_server,
)
from kungfu.runtime.job_api.job_file import NAME as JOB_FILE
from kungfu.runtime.job_api.job_file import JobFile, end_job_file, identify_process, write_job_file
from kungfu.runtime.job_api.job_service import JobService
from kungfu.runtime.settings import Settings

__all__ = ["Agent", "Ending", "JobSpec", "run_job"]

_TICK_S, _IDLE_TICK_S = 0.2, 1.0
_LOOK_S = 0.25
_STORE_S = 1.0  # for each answer of the store
_EXITS_WITHIN_S = 2.0  # the output of a peer that has ended is read for up to a second
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PEERS_END_WITHIN_S = 10.0
_LONGEST_PAUSE_S = 60.0


def run_job(job: JobSpec, *, journal: Journal, console: Console, listeners: Sequence[RecordListener] = ()) -> Ending:
    """Runs this host's part of a job, and again from the newest checkpoint as long as ``--restarts`` permits.

    Between two runs this host pauses for 1, 2, 4, ... seconds, at most a minute. A host without a majority asks the
    other hosts for admission again.
    """
    ending = Agent(job, journal=journal, console=console, listeners=listeners).run()
    while ending.restarts or (ending.code == NO_QUORUM_CODE and job.restarts):
        lost = ending.failure.text if ending.failure else ""
        pause_s = min(_LONGEST_PAUSE_S, 2.0 ** max(0, ending.restarts - 1))
        # A host without a majority does not know if the others continue.
        what = "the job starts again" if ending.restarts else "it asks the others for admission again"
        console.line("kungfu-run", f"{lost}; {what} in {duration(pause_s)}")
        if (number := _signal_within(pause_s)) is not None:
            # A host without a majority ends alone: the others may continue, and its record must not end the job.
            if ending.restarts:
                journal.write(EndedEvent(reason=signal.Signals(number).name, code=128 + number))
            end_job_file(journal.folder, code=128 + number, now=time.time())
            return Ending(128 + number)
        again = replace(job, lost=lost if ending.restarts else "")
        ending = Agent(again, journal=journal, console=console, listeners=listeners).run()
    return ending


def _signal_within(seconds: float) -> int | None:
    """Waits for a signal that ends the job; ``None`` if none comes in time."""
    received, until = list[int](), time.monotonic() + seconds
    previous = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in _SIGNALS}
    try:
        while not received and time.monotonic() < until:
            time.sleep(_TICK_S)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return received[0] if received else None


class Agent:
    """Runs one job on this host until the job ends; ``run`` must be called in the main thread."""

    def __init__(
        self, job: JobSpec, *, journal: Journal, console: Console, listeners: Sequence[RecordListener] = ()
    ) -> None:
        self._job, self._journal, self._console = job, journal, console
        self._several_hosts = job.is_networked
        # The number of this host in the recorded events; ``None`` if the job has only one host.
        self._recorded_host = job.own_host if self._several_hosts else None
        # A host that may join a job has no number yet; with --join it never founds one.
        consensus = ConsensusState(
            job.own_host if job.is_listed else -1, {} if job.join else dict(enumerate(job.hosts)),
            incarnation=secrets.token_hex(8), patience_s=job.deadlines.heartbeat_s,
        )  # fmt: skip
        self._here = job.hosts[job.own_host]
        slots = self._here.slots if self._several_hosts else job.settings.limits.maximum
        supervisor = ProcessSupervisor(
            job.command, environment=job.environment, slots=slots, journal=journal, listener=self,
            spares=job.spares.number if job.spares.level == "warm" else 0,
        )  # fmt: skip
        recorder, agreement = HostRecorder(journal, console, listeners=listeners), self._agreement(consensus)
        self._context = AgentContext(
            job, job.settings, consensus, supervisor, recorder, time.monotonic, queue.SimpleQueue(), agreement
        )
        self._leader_client = LeaderClient(consensus, job.settings)
        self._closing = threading.Event()
        self._exits, self._exited = dict[int, int](), threading.Condition()
        self._role: Leader | Follower | None = None
        self._last_tick = time.monotonic()
        self._deferred: deque[Any] = deque()  # messages of the leader that arrived before the admission

    def run(self) -> Ending:
        """Runs this host's part of the job, and returns the ending of this part; no process outlives the call."""
        server = self._server = self._serve(self._context)
        self._context = replace(self._context, settings=replace(self._context.settings, agent=server.address))
        ending: Ending | None = None
        previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            works = (self._report_host_events, self._watch_leader)
            for work in works if self._several_hosts else works[:1]:
                threading.Thread(target=work, daemon=True, name=f"kungfu{work.__name__}").start()
            ending = self._found_or_join()
            self._record_devices()
            while ending is None:
                ending = self._next()
            return replace(ending, raised=self._raised())
        except Exception as error:
            # This agent leads and has failed: its followers elect another leader.
            if isinstance(self._role, Leader) and len(self._context.consensus.hosts) > 1:
                error.add_note("The other hosts of this job go on without this one, if they run most of its peers.")
            raise
        finally:
            self._closing.set()  # first, so that unhandled events go to the next leader
            self._context.host_events.close()
            self._context.consensus.close()
            if isinstance(self._role, Leader):
                self._role.close(ending)
            is_over = isinstance(self._role, Leader) and ending is not None and not ending.leaves
            self._context.agreement.close(is_over=is_over)
            if ending is None:
                server.stop()  # this agent has failed: the others continue at once, as if it had been killed
            self._context.supervisor.close()
            if ending is not None and ending.failure is not None:
                self._record_exits()
            release(Path(self._context.settings.checkpoints.folder))  # no process of this host writes to it any more
            if ending is None or not ending.restarts:
                end_job_file(self._journal.folder, code=ending.code if ending else 1, now=time.time())
            for number, handler in previous.items():
                signal.signal(number, handler)
            server.stop()

    # ---- events of the processes of this host, in their threads ------------------------------------------------------

    def on_output(self, peer: int, text: str) -> None:
        """Shows a line that a peer of this host printed."""
        self._console.line(f"peer {peer}" if self._role is None else name_of(peer, self._role.cluster), text)

    def on_exit(self, peer: int, code: int, tail: Sequence[str]) -> None:
        """Queues a report to the leader: a peer of this host has ended."""
        with self._exited:
            self._exits[peer] = code
            self._exited.notify()
        here = self._job.own_host
        ended = pb.HostEvent(host=here, kind=pb.HOST_EVENT_KIND_ENDED, peer=peer, code=code, tail=tail)
        self._context.host_events.put(ended)

    def _report_host_events(self) -> None:
        """Reports the events of this host to the leader, in order; repeats each event until the leader confirms it."""
        outbox, consensus = self._context.host_events, self._context.consensus
        while (event := outbox.first()) is not None:
            # This agent leads.
            if consensus.is_leader:
                self._context.put(event)
                outbox.remove_first()
            # The leader is on another host. If the leader is lost before it confirms, the next leader gets the event.
            elif consensus.await_leader(_TICK_S) is not None and self._leader_client.report(event):
                outbox.remove_first()

    # ---- the main thread ---------------------------------------------------------------------------------------------

    def _found_or_join(self) -> Ending | None:
        """Founds the job, or requests the admission of this host; returns an ending if neither is possible."""
        context = self._context
        interrupts: list[SignalReceived] = []

        def interrupted() -> bool:
            while not interrupts and (event := context.next_event(0.0)) is not None:
                if isinstance(event, SignalReceived):
                    interrupts.append(event)
                # A message of the leader that arrived before the leader's reply: handled after the admission.
                else:
                    self._deferred.append(event)
            return bool(interrupts)

        settings, name = context.settings, secrets.token_hex(4)
        if self._several_hosts:
            former = former_job(self._journal.folder)
            try:
                supervisor = context.supervisor
                context.agreement.open()
                admitted = request_admission(
                    context.job, settings, found=partial(self._found, name), interrupted=interrupted,
                    leader=context.agreement.leader,
                    incarnation=context.consensus.incarnation, threads=supervisor.threads,
                    devices=len(supervisor.devices), former=former,
                    on_number=lambda number: setattr(context.consensus, "host", number),
                )  # fmt: skip
            # The job refuses this host, or no leader has admitted it in time.
            except KungfuError as error:
                code = 3 if isinstance(error, DeadlineExceeded) else 2
                # The record of a job that this host was in before does not end here.
                failure = Failure(-1, str(error), code)
                return Ending(code, failure) if former.names else self._failed(str(error), code)
            # A signal came during the request for admission.
            if interrupts:
                return Ending(128 + interrupts[0].number)
            settings = admitted.settings if admitted else settings
        founds = not self._several_hosts or admitted is None
        # A job that is started again gets another name, so that nothing of the run before is taken for its own.
        if founds and (self._several_hosts or context.job.restarts):
            settings = replace(settings, job=name)
        if self._several_hosts and admitted is not None:
            # The leader has given this host its number, and a job that was joined has settings of its own.
            self._job = replace(self._job, own_host=admitted.number, settings=settings)
            self._recorded_host = admitted.number
            context = replace(context, job=self._job)
            context.consensus.hosts = {**(context.consensus.hosts if self._job.is_listed else {}), **admitted.hosts}
        try:
            self._claim_checkpoints(settings)
            restart = plan_restart(self._journal.folder, context.job) if founds and context.job.restarts else None
        except (FolderInUse, UnreadableCheckpoints) as error:
            return self._failed(str(error), 2 if isinstance(error, FolderInUse) else 1)
        if restart is not None and restart.nth > restart.limit:
            count = counted(restart.limit, "restart")
            return self._failed(f"{restart.why}; {count} in a row brought no newer checkpoint (--restarts)", 1)
        settings = settings if restart is None else restarted(settings, restart)
        self._context = context = replace(context, settings=settings)
        content = JobFile(
            settings.job, settings.agent, settings.secret, os.getpid(), time.time(),
            process=identify_process(os.getpid()),
        )  # fmt: skip
        self._journal.keep(JOB_FILE, partial(write_job_file, self._journal.folder, content))
        # Another host leads the job.
        if self._several_hosts and admitted is not None:
            self._role = Follower(context)
            context.consensus.follow(settings.job, admitted.leader, admitted.term)
            return None
        if not self._several_hosts:
            context.consensus.become_leader(settings.job, 1)
        leader = self._role = Leader(context, restart=restart)
        return leader.begin()

    def _failed(self, why: str, code: int) -> Ending:
        """Records a failure of the job before its start, or of this host's part alone, and returns the ending."""
        self._context.recorder.event(FailedEvent(peer=-1, error=why, code=code))
        return Ending(code, Failure(-1, why, code))

    def _agreement(self, consensus: ConsensusState) -> Agreement:
        """The agreement with the agents of the other hosts."""
        job = self._job
        if job.store is None:
            return MajorityAgreement(consensus, job.settings)
        etcd = Etcd(job.store.address, f"kungfu/{job.store.job}/", deadline_s=_STORE_S)
        return StoreAgreement(etcd, consensus, job.deadlines, notify=self._on_store)

    def _on_store(self, error: str) -> None:
        """Records that the store is lost, or answers again."""
        host, state = self._context.consensus.host, "lost" if error else "back"
        # This host is in no job yet, and has no number for the record.
        if host < 0:
            self._console.line("kungfu-run", error or "the store answers again")
            return
        event = StoreEvent(host=host, name=self._here.name, state=state, why=error)
        self._context.recorder.event(event, shown=True)

    def _found(self, name: str, job_exists: bool, is_silent: bool) -> int:
        """Founds the job ``name``, unless there is one; returns the term of this agent, or 0."""
        term = self._context.agreement.found(name, job_exists, is_silent)
        if term:
            self._context.consensus.host = self._job.own_host  # 0 without a list of hosts
            self._context.consensus.become_leader(name, term)
        return term

    def _claim_checkpoints(self, settings: Settings) -> None:
        """Reserves an explicitly named checkpoint folder for this job; raises ``FolderInUse`` if another job uses it.

        The default folder, in the folder of the record, is created and claimed by the writer of the first checkpoint.
        The peers of a kungfu-run that was killed end a moment later, and write to the folder until then.
        """
        folder, until = Path(settings.checkpoints.folder), time.monotonic() + _PEERS_END_WITHIN_S
        if folder.parent == self._journal.folder.absolute() and not folder.exists():
            return
        while True:
            try:
                claim(folder, f"job {settings.job}")
            except FolderInUse:
                if not self._job.restarts or time.monotonic() > until:
                    raise
                time.sleep(_TICK_S)
            else:
                return

    def _record_devices(self) -> None:
        """Records how the slots share the devices of this host, unless each slot has exactly one."""
        supervisor = self._context.supervisor
        if supervisor.devices and len(supervisor.devices) != supervisor.slots:
            devices = DevicesEvent(host=self._recorded_host, devices=tuple(supervisor.devices), slots=supervisor.slots)
            self._context.recorder.event(devices, shown=True)

    def _record_exits(self) -> None:
        """Records, when the job fails, each still unrecorded end of a peer of this host: such an end may be closer to
        the root cause than the recorded failure."""
        recorder, started = self._context.recorder, set(self._context.supervisor.started)
        with self._exited:
            self._exited.wait_for(lambda: started <= self._exits.keys(), timeout=_EXITS_WITHIN_S)
        for peer, code in list(self._exits.items()):
            if peer not in recorder.ended:
                recorder.event(PeerEndedEvent(peer=peer, how=exit_in_words(code)))

    def _raised(self) -> dict[int, str]:
        """The known exceptions that caused the loss of peers, by peer."""
        losses = {} if self._role is None else self._role.cluster.losses.raised
        return {peer: f"{exit.error} ({exit.where})" for peer, exit in losses.items()}

    def _next(self) -> Ending | None:
        assert self._role is not None
        wait_s = self._last_tick + (_IDLE_TICK_S if self._role.is_idle else _TICK_S) - time.monotonic()
        event = self._deferred.popleft() if self._deferred else self._context.next_event(wait_s) if wait_s > 0 else None
        # No event came; or peers report constantly, and deadlines must be checked nevertheless.
        if event is None:
            event, self._last_tick = decided.Tick(), time.monotonic()
            self._report_loaded_spares()
            self._server.end_strangers()
        outcome = self._role.handle(event)
        return self._run_election(outcome.how) if isinstance(outcome, LeaderLost) else outcome

    def _report_loaded_spares(self) -> None:
        """Queues a report to the leader for each spare of this host that has loaded since the last call."""
        for peer, memory_bytes in self._context.supervisor.newly_loaded():
            loaded = pb.HostEvent(
                host=self._job.own_host, kind=pb.HOST_EVENT_KIND_LOADED, peer=peer, memory_bytes=memory_bytes
            )
            self._context.host_events.put(loaded)

    def _run_election(self, how: str) -> Ending | None:
        context = self._context
        outcome = elect(
            context.consensus, context.settings, agreement=context.agreement, how=how,
            is_over=context.interrupted.is_set,
        )  # fmt: skip
        if outcome is None:
            # Another agent leads; or this agent was interrupted and, without a leader, can end only this host's part.
            return None if context.consensus.leader is not None else Ending(128 + signal.SIGINT)
        # The others may continue without this host.
        if isinstance(outcome, NoQuorum):
            return self._failed(outcome.why, NO_QUORUM_CODE)
        self._context = replace(context, clock=context.consensus.leader_clock())
        leader = self._role = Leader(self._context, elected=outcome)
        return leader.begin()

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            self._context.interrupted.set()
        self._context.put(SignalReceived(number))

    # ---- service -----------------------------------------------------------------------------------------------------

    def _serve(self, context: AgentContext) -> rpc.Server:
        """Starts the agent's server for its peers, for people and schedulers, and for the other agents."""
        consensus, job = context.consensus, context.job

        def proxy(local: Any, stub: Callable[[Any], Any], deadline_s: float) -> LeaderProxy:
            return LeaderProxy(local, stub, self._leader_client, consensus, deadline_s=deadline_s)

        peers = AgentService(context.put, context.recorder, flushed=self._flushed)
        hosts = HostService(
            consensus, job.settings, put=context.put,
            started=lambda: context.supervisor.started, flushed=self._flushed,
        )  # fmt: skip
        return rpc.serve(
            (add_AgentServiceServicer_to_server, proxy(peers, AgentServiceStub, job.deadlines.wait_s)),
            (add_JobServiceServicer_to_server, proxy(JobService(context.put), JobServiceStub, 4.0)),
            (add_HostServiceServicer_to_server, hosts),
            host=job.settings.agent,
            secret=job.settings.secret,
            threads=8
            + 2 * (job.settings.limits.maximum + job.spares.number)
            + 4 * max(len(job.hosts), job.settings.limits.maximum),
            port=job.hosts[job.own_host].port,
        )

    def _flushed(self) -> bool:
        """Waits until all events queued so far are handled and, if there are followers, replicated; returns ``False``
        if the main thread no longer handles events."""
        # There is no follower that must know of an event before the event is confirmed.
        if not self._several_hosts:
            return True
        passed, until = threading.Event(), time.monotonic() + self._job.deadlines.wait_s
        self._context.put(QueueFlush(passed))
        while not passed.wait(_TICK_S):
            # This agent is ending, or is blocked.
            if self._closing.is_set() or time.monotonic() > until:
                return False
        return True

    def _watch_leader(self) -> None:
        """Watches for the loss of the leader while this agent is a follower."""
        consensus, job = self._context.consensus, self._job
        patience_s = lost_after_s(job.deadlines)
        while not self._closing.wait(_LOOK_S):
            leader, silence_s = consensus.leader, consensus.silence_s()
            # There is no leader to watch, or the leader was heard just now.
            if leader is None or consensus.is_leader or silence_s < min(1.0, patience_s):
                continue
            host, within_s = consensus.hosts.get(leader), max(_TICK_S, patience_s - silence_s)
            is_down = host is not None and silence_s <= patience_s and _is_down(host, within_s=within_s)
            silence_s = consensus.silence_s()
            # The leader is lost, and the main thread has not been notified yet.
            if (silence_s > patience_s or is_down) and consensus.lose_leader():
                how = "has ended or cannot be reached" if is_down else f"was not heard for {silence_s:.1f} s"
                self._context.put(LeaderLost(f"host {consensus.name_of(leader)}, which led the job: its agent {how}"))


def _is_down(host: Host, *, within_s: float) -> bool:
    """True if a host's agent has ended: the port must refuse twice, as a breaking connection may refuse once. Each
    attempt waits for ``within_s`` seconds: a silent machine does not refuse."""
    if may_be_up(host, within_s=within_s):
        return False
    time.sleep(_TICK_S)
    return not may_be_up(host, within_s=within_s)
