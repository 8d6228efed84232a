"""The agent of a host: performs what ``cluster`` decides. Starts, watches and ends the peers.

Everything that happens (calls of peers, ends of processes, signals, time) becomes an event in one queue, which the main
thread works off; so a decision is never interrupted by another.
"""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.agent.console import Console
from kungfu.runtime.agent.journal import Journal
from kungfu.runtime.agent.launch import Process, bury, count_gpus, end, end_all, share_of_host, start
from kungfu.runtime.agent.relay import Relay, Unformed, Unheard
from kungfu.runtime.agent.service import AgentService
from kungfu.runtime.deciding import cluster as decided
from kungfu.runtime.deciding.cluster import Budgets, Cluster, Rules
from kungfu.runtime.deciding.failure import Failure, find_root_cause, headline
from kungfu.runtime.deciding.requests.situation import Scaling
from kungfu.runtime.deciding.view import Peer
from kungfu.runtime.hosts import Host
from kungfu.runtime.settings import Settings
from kungfu.runtime.steering.desk import Desk, Reported
from kungfu.runtime.steering.job_file import JobFile, end_job_file, write_job_file
from kungfu.runtime.steering.service import JobService, Question
from kungfu.runtime.wire import rpc
from kungfu.runtime.wire.messages_pb2_grpc import (
    add_AgentServiceServicer_to_server,
    add_JobServiceServicer_to_server,
)

__all__ = ["Agent", "Ending", "Job"]

# How long the agent waits for further ends after the first failure: whom the others lost is the root, not they.
_ROOT_CAUSE_S = 3.0
_GRACE_S = 2.0


@dataclass(frozen=True)
class Job:
    """What to run: the peers' settings are ``settings`` with their own id; ``budgets`` bound how many are replaced.

    The peers of a job that is inelastic are not changed from outside. ``hosts`` are those of the job, and this one is
    the one at ``place``; if none are named it is alone, with room for every peer.
    """

    command: tuple[str, ...]
    size: int
    settings: Settings
    environment: Mapping[str, str]
    budgets: Budgets = field(default_factory=Budgets)
    scaling: Scaling = "elastic"
    hosts: tuple[Host, ...] = (Host("127.0.0.1", 1 << 16, 0),)
    place: int = 0

    @property
    def rules(self) -> Rules:
        return Rules(self.settings.deadlines, self.budgets, self.settings.limits.minimum)


@dataclass(frozen=True)
class Ending:
    """How a job ended: its exit code, and the failure at the root if there was one."""

    code: int
    failure: Failure | None = None


@dataclass(frozen=True)
class _Signalled:
    number: int


class Agent:
    """Runs one job on this host to its end; ``run`` must be called in the main thread."""

    def __init__(
        self, job: Job, *, journal: Journal, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._journal, self._console, self._clock = job, journal, console, clock
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._cluster = Cluster(job.rules)
        self._processes: dict[int, Process] = {}
        self._addresses: dict[int, Peer] = {}
        self._settings = job.settings
        self._relay = Relay(job.settings, self._events.put)
        self._desk = Desk(job.settings, scaling=job.scaling, tell=self._tell, process_of=self._process_of)

    def run(self) -> Ending:
        """Starts the job and returns how it ended; nothing of it is left when this returns."""
        server = self._served()
        self._settings = replace(self._settings, agent=server.address)
        ending: Ending | None = None
        previous = {n: signal.signal(n, self._on_signal) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self._announce_job()
            self._console.event(
                self._write(
                    {
                        "event": "started",
                        "job": self._settings.job,
                        "size": self._job.size,
                        "command": [*self._job.command],
                    }
                )
            )
            ending = self._perform_all(decided.first(self._job.size, rules=self._job.rules, now=self._clock()))
            while ending is None:
                ending = self._next()
            return ending
        finally:
            end_all(list(self._processes.values()), grace_s=_GRACE_S)
            end_job_file(self._journal.folder, code=1 if ending is None else ending.code, now=time.time())
            for number, handler in previous.items():
                signal.signal(number, handler)
            server.stop()

    def _served(self) -> rpc.Server:
        """The agent's server: for its peers, and for those who steer the job."""

        def register(grpc_server: Any) -> None:
            service = AgentService(self._events.put, self._journal, self._console)
            add_AgentServiceServicer_to_server(service, grpc_server)
            add_JobServiceServicer_to_server(JobService(self._events.put), grpc_server)

        threads = 8 + 2 * self._settings.limits.maximum
        return rpc.serve(register, host=self._settings.agent, secret=self._settings.secret, threads=threads)

    def _announce_job(self) -> None:
        settings = self._settings
        content = JobFile(settings.job, settings.agent, settings.secret, os.getpid(), time.time())
        write_job_file(self._journal.folder, content)

    def _on_signal(self, number: int, frame: object) -> None:
        self._events.put(_Signalled(number))

    def _next(self) -> Ending | None:
        try:
            event = self._events.get(timeout=0.2)
        except queue.Empty:
            event = decided.Tick()
        if isinstance(event, _Signalled):
            self._write({"event": "ended", "reason": signal.Signals(event.number).name})
            return Ending(128 + event.number)
        if isinstance(event, Unformed):
            return self._failed(decided.Fail(-1, str(event.error), late=isinstance(event.error, DeadlineExceeded)))
        if isinstance(event, Unheard):
            if event.peer in self._cluster.alive:
                self._write({"event": "unheard", "peer": event.peer, "error": event.error})
            return None
        if not isinstance(event, Question | Reported):
            self._note(event)
            ending = self._perform_all(decided.step(self._cluster, event, self._clock()))
            if ending is not None:
                return ending
        self._steer(event)
        return None

    def _steer(self, event: Any) -> None:
        """What people and schedulers ask for, and what came of it."""
        for demand in self._desk.hears(event, self._cluster, self._clock()):
            assert self._cluster.view is not None
            self._perform(decided.Tell(self._cluster.view, demand))

    def _note(self, event: Any) -> None:
        """Chronicles what the peers did of themselves; what the agent does is noted where it does it."""
        if isinstance(event, decided.InForce):
            self._console.event(
                self._write({"event": "view", "version": event.view.version, "peers": list(event.view.ids)})
            )
        elif isinstance(event, decided.Ended):
            self._write({"event": "peer ended", "peer": event.peer, "how": decided.ending(event.code)})
            if event.code != 0:
                bury(self._processes[event.peer])
        elif isinstance(event, decided.Noticed):
            self._console.event(self._write({"event": "noticed", "peer": event.peer}))
        elif isinstance(event, decided.Seen):
            self._addresses[event.peer.id] = event.peer

    def _perform_all(self, outcome: decided.Outcome) -> Ending | None:
        self._cluster, commands = outcome
        for command in commands:
            ending = self._perform(command)
            if ending is not None:
                return ending
        return None

    def _perform(self, command: decided.Command) -> Ending | None:
        match command:
            case decided.Spawn(peer):
                self._spawn(peer)
            case decided.Kill(peer, reason):
                self._console.event(self._write({"event": "dismissed", "peer": peer, "reason": reason}))
                end(self._processes[peer], signal.SIGKILL)
            case decided.Form():
                self._relay.form(command)
            case decided.Lead():
                self._lead(command)
            case decided.Announce():
                self._announce(command)
            case decided.Tell():
                self._relay.to_leader(command)
            case decided.Offer(_, prepared):
                if prepared.ready:
                    self._write({"event": "offered", "peers": [peer.id for peer in prepared.ready]})
                if prepared.missing:
                    self._console.event(
                        self._write({"event": "missing", "peers": list(prepared.missing), "reason": prepared.reason})
                    )
                self._relay.to_leader(command)
            case decided.Fail():
                return self._failed(command)
            case decided.Done():
                self._write({"event": "ended", "reason": "training is over"})
                return Ending(0)
        return None

    # ---- performing ------------------------------------------------------------------------------------------------

    def _spawn(self, peer: int) -> None:
        keeping = self._settings.keeping
        if self._cluster.view is not None:
            keeping = replace(keeping, founders=0, resume="")  # it joins: its state is that of the others
        settings = replace(self._settings, peer=peer, keeping=keeping)
        share = share_of_host(
            self._job.environment, place=sorted(self._cluster.alive).index(peer),
            peers=self._settings.limits.maximum, gpus=count_gpus(),
        )  # fmt: skip
        process = start(
            list(self._job.command),
            environment={**share, **settings.to_environment()},
            log=self._journal.log_of(peer),
        )
        self._processes[peer] = process
        self._write({"event": "spawned", "peer": peer, "pid": process.child.pid})
        process.listen(
            lambda text: self._console.line(self._name(peer), text),
            lambda code: self._events.put(decided.Ended(peer, code)),
        )

    def _name(self, peer: int) -> str:
        rank = self._cluster.view.rank_of(peer) if self._cluster.view else None
        return f"peer {peer}" if rank is None else f"rank {rank}"

    def _lead(self, command: decided.Lead) -> None:
        survivors, lost = list(command.view.ids), {str(peer): how for peer, how in command.lost.items()}
        told = {"event": "regrouping", "version": command.view.version, "peers": survivors, "lost": lost}
        self._console.event(self._write({**told, "target": command.target}))
        self._relay.lead(command, unled=decided.Unled)

    def _announce(self, command: decided.Announce) -> None:
        if command.peer < 0:
            self._console.event(self._write({"event": "broken", "version": command.version, "why": command.how}))
        elif command.version:
            view, said = self._cluster.view, headline(self._processes[command.peer].tail)
            rank = None if view is None else view.rank_of(command.peer)
            lost = {"event": "lost", "peer": command.peer, "rank": rank, "how": command.how, "error": said}
            self._console.event(self._write(lost))
        alive = [peer for id_, peer in self._addresses.items() if id_ in self._cluster.alive]
        self._relay.announce(command, alive)

    def _failed(self, command: decided.Fail) -> Ending:
        """Waits a moment for the ends of others, then looks for the one that came first in the chain of causes."""
        ended = {command.peer: command.reason, **command.others}
        deadline = self._clock() + _ROOT_CAUSE_S
        while (left := deadline - self._clock()) > 0 and not command.late:
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                break
            if (
                isinstance(event, decided.Ended)
                and event.code != 0
                and event.peer not in self._cluster.processes.parting
            ):
                ended[event.peer] = decided.ending(event.code)
            if set(ended) >= self._cluster.alive | {command.peer}:
                break
        tails = {peer: list(self._processes[peer].tail) for peer in ended if peer in self._processes}
        names = {peer: self._name(peer) for peer in ended}
        failure = find_root_cause(ended, tails, names=names, first=command.peer, late=command.late)
        self._write({"event": "failed", "peer": failure.peer, "error": failure.text, "code": failure.code})
        return Ending(failure.code, failure)

    def _process_of(self, peer: int) -> int:
        return self._processes[peer].child.pid

    def _tell(self, fields: dict[str, Any]) -> None:
        self._console.event(self._write(fields))

    def _write(self, fields: dict[str, Any]) -> dict[str, Any]:
        self._journal.write("events", fields)
        self._desk.noted(fields)
        return fields
