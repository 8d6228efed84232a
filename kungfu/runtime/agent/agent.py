"""The agent of a host: starts, watches and ends its peers, and decides for the job or follows the agent that does.

Everything that happens (calls of peers and of other agents, ends of processes, signals, time) becomes an event in one
queue, which the main thread works off; so a decision is never interrupted by another.
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
from typing import Any

from kungfu.errors import DeadlineExceeded, KungfuError
from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.agent.consensus.entering import enter
from kungfu.runtime.agent.consensus.front import Away, Front
from kungfu.runtime.agent.consensus.orders import lost_after_s
from kungfu.runtime.agent.consensus.service import HeadLost, HostService, is_heard
from kungfu.runtime.agent.consensus.succession import CutOff, succeed
from kungfu.runtime.agent.context import CUT_OFF, Ending, Job, Signalled, Station, name_of
from kungfu.runtime.agent.follower import Follower
from kungfu.runtime.agent.leader import Fence, Head
from kungfu.runtime.agent.record.console import Console
from kungfu.runtime.agent.record.journal import Journal
from kungfu.runtime.agent.record.recorder import Recorder
from kungfu.runtime.agent.service import AgentService
from kungfu.runtime.agent.supervisor.household import Household
from kungfu.runtime.core import cluster as decided
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import (
    AgentServiceStub,
    JobServiceStub,
    add_AgentServiceServicer_to_server,
    add_HostServiceServicer_to_server,
    add_JobServiceServicer_to_server,
)
from kungfu.runtime.job_api.job_file import NAME as JOB_FILE
from kungfu.runtime.job_api.job_file import JobFile, end_job_file, identify_process, write_job_file
from kungfu.runtime.job_api.service import JobService

__all__ = ["Agent", "Ending", "Job"]

_TICK_S, _QUIET_TICK_S = 0.2, 1.0
_LOOK_S = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Agent:
    """Runs one job on this host to its end; ``run`` must be called in the main thread."""

    def __init__(
        self, job: Job, *, journal: Journal, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._journal, self._console = journal, console
        allegiance, several = Allegiance(job.place), len(job.hosts) > 1
        slots = job.hosts[job.place].slots if several else job.settings.limits.maximum
        household = Household(
            job.command, environment=job.environment, slots=slots, journal=journal, listener=self
        )  # fmt: skip
        self._station = Station(
            job, job.settings, allegiance, household, Recorder(journal, console), clock,
            queue.SimpleQueue(),
        )  # fmt: skip
        self._away = Away(allegiance, job.numbered, job.settings)
        self._closing = threading.Event()
        self._role: Head | Follower | None = None
        self._looked = time.monotonic()  # at the clock
        self._early: deque[Any] = deque()  # what the head said before its welcome was heard

    def run(self) -> Ending:
        """Runs this host's part of the job and returns how it ended; nothing of it is left when this returns."""
        server = self._served()
        self._station = replace(self._station, settings=replace(self._station.settings, agent=server.address))
        ending: Ending | None = None
        previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        alone = len(self._station.job.hosts) == 1
        try:
            for work in (self._tell_head,) if alone else (self._tell_head, self._watch_head):
                threading.Thread(target=work, daemon=True, name=f"kungfu{work.__name__}").start()
            ending = self._found_or_enter()
            self._tell_of_devices()
            while ending is None:
                ending = self._next()
            return replace(ending, raised=self._raised())
        except Exception as error:
            if isinstance(self._role, Head) and not alone:
                error.add_note("The other hosts of this job go on without this one, if they run most of its peers.")
            raise
        finally:
            self._closing.set()  # first: what was not seen to by now is told to the next head, if there is one
            self._station.happenings.close()
            self._station.allegiance.close()
            if isinstance(self._role, Head):
                self._role.close(ending)
            if ending is None:
                server.stop()  # this agent has failed: the others go on at once, as if it had been killed
            self._station.household.close()
            end_job_file(self._journal.folder, code=ending.code if ending else 1, now=time.time())
            for number, handler in previous.items():
                signal.signal(number, handler)
            server.stop()

    # ---- what the processes of this host do, in their threads --------------------------------------------------------

    def printed(self, peer: int, text: str) -> None:
        """A peer of this host printed a line."""
        self._console.line(f"peer {peer}" if self._role is None else name_of(peer, self._role.cluster), text)

    def ended(self, peer: int, code: int, tail: Sequence[str]) -> None:
        """A peer of this host ended."""
        here = self._station.job.place
        self._station.happenings.put(pb.Happening(host=here, what="ended", peer=peer, code=code, tail=tail))

    def _tell_head(self) -> None:
        """Tells the head what happens here, in order; it may be here itself, or be lost and another one come."""
        outbox, allegiance = self._station.happenings, self._station.allegiance
        while (happening := outbox.first()) is not None:
            if allegiance.leads:
                self._station.put(happening)
                outbox.taken()
            elif allegiance.await_head(_TICK_S) is not None and self._away.tell(happening):
                outbox.taken()

    # ---- the main thread ---------------------------------------------------------------------------------------------

    def _found_or_enter(self) -> Ending | None:
        station = self._station
        interrupts: list[Signalled] = []

        def interrupted() -> bool:
            while not interrupts and (event := station.take(0.0)) is not None:
                if isinstance(event, Signalled):
                    interrupts.append(event)
                else:
                    self._early.append(event)
            return bool(interrupts)

        settings = station.settings
        if len(station.job.hosts) > 1:
            try:
                entered = enter(station.job, settings, interrupted=interrupted, threads=station.household.threads)
            except KungfuError as error:
                code = 3 if isinstance(error, DeadlineExceeded) else 2
                return Ending(code, Failure(-1, str(error), code))
            if interrupts:
                return Ending(128 + interrupts[0].number)
            settings = entered.settings if entered else replace(settings, job=secrets.token_hex(4))
        self._station = station = replace(station, settings=settings)
        content = JobFile(
            settings.job, settings.agent, settings.secret, os.getpid(), time.time(),
            process=identify_process(os.getpid()),
        )  # fmt: skip
        self._journal.keep(JOB_FILE, partial(write_job_file, self._journal.folder, content))
        if len(station.job.hosts) > 1 and entered is not None:
            self._role = Follower(station)
            station.allegiance.enter(settings.job, entered.head, entered.term)
            return None
        head = self._role = Head(station)
        station.allegiance.lead(settings.job, 1)
        return head.begin()

    def _tell_of_devices(self) -> None:
        """How the devices of this host are divided, where they are not one for each slot."""
        household = self._station.household
        if household.devices and len(household.devices) != household.slots:
            where = {"host": self._station.job.place} if len(self._station.job.hosts) > 1 else {}
            devices = {"devices": list(household.devices), "slots": household.slots}
            self._station.recorder.event({"event": "devices", **where, **devices}, told=True)

    def _raised(self) -> dict[int, str]:
        """The exceptions that peers were lost to, as far as this agent knows."""
        raised = self._role.cluster.losses.raised if self._role is not None else {}
        return {peer: f"{exit.error} ({exit.where})" for peer, exit in raised.items()}

    def _next(self) -> Ending | None:
        assert self._role is not None
        wait_s = self._looked + (_QUIET_TICK_S if self._role.quiet else _TICK_S) - time.monotonic()
        event = self._early.popleft() if self._early else self._station.take(wait_s) if wait_s > 0 else None
        if event is None:  # or peers report all the time: somebody has to look at the clock, for deadlines
            event, self._looked = decided.Tick(), time.monotonic()
        outcome = self._role.hears(event)
        return self._succeed(outcome.how) if isinstance(outcome, HeadLost) else outcome

    def _succeed(self, how: str) -> Ending | None:
        station = self._station
        came = succeed(
            station.allegiance, station.job.numbered, station.settings, how=how, over=lambda: self._interrupted
        )
        if came is None:  # without a head there is nobody who could end the job, only this host's part of it
            return None if station.allegiance.head is not None else Ending(128 + signal.SIGINT)
        if isinstance(came, CutOff):
            return Ending(CUT_OFF, Failure(-1, came.why, CUT_OFF))
        self._station = replace(station, clock=station.allegiance.head_clock())
        head = self._role = Head(self._station, taken=came)
        return head.begin()

    _interrupted = False

    def _on_signal(self, number: int, frame: object) -> None:
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._station.put(Signalled(number))

    # ---- service -----------------------------------------------------------------------------------------------------

    def _served(self) -> rpc.Server:
        """The agent's server: for its peers, for those who steer the job, and for the other agents."""
        station, allegiance, job = self._station, self._station.allegiance, self._station.job

        def front(here: Any, stub: Callable[[Any], Any], deadline_s: float) -> Front:
            return Front(here, stub, self._away, allegiance, deadline_s=deadline_s)

        def register(grpc_server: Any) -> None:
            peers = AgentService(station.put, station.recorder, noted=self._noted)
            wait_s = job.settings.deadlines.wait_s
            add_AgentServiceServicer_to_server(front(peers, AgentServiceStub, wait_s), grpc_server)
            add_JobServiceServicer_to_server(front(JobService(station.put), JobServiceStub, 4.0), grpc_server)
            hosts = HostService(
                allegiance, job.numbered, job.settings, put=station.put, started=lambda: station.household.started,
                noted=self._noted,
            )  # fmt: skip
            add_HostServiceServicer_to_server(hosts, grpc_server)

        threads = 8 + 2 * job.settings.limits.maximum + 4 * len(job.hosts)
        own = job.hosts[job.place]
        return rpc.serve(register, host=job.settings.agent, secret=job.settings.secret, threads=threads, port=own.port)

    def _noted(self) -> bool:
        """Waits until the main thread has seen to all that was put before, if other agents are to hold it too.

        ``False`` if it does not do so any more.
        """
        if len(self._station.job.hosts) == 1:
            return True
        passed, until = threading.Event(), time.monotonic() + self._station.job.settings.deadlines.wait_s
        self._station.put(Fence(passed))
        while not passed.wait(_TICK_S):
            if self._closing.is_set() or time.monotonic() > until:
                return False
        return True

    def _watch_head(self) -> None:
        """Looks whether the head is there, as long as this agent follows one."""
        allegiance, job = self._station.allegiance, self._station.job
        patience_s = lost_after_s(job.settings.deadlines)
        while not self._closing.wait(_LOOK_S):
            head, silence_s = allegiance.head, allegiance.silence_s()
            if head is None or allegiance.leads or silence_s < min(1.0, patience_s):
                continue
            host = job.hosts[head]
            refuses = silence_s <= patience_s and _refuses(host)
            if (silence_s > patience_s or refuses) and allegiance.lose():
                how = "has ended or cannot be reached" if refuses else f"was not heard for {silence_s:.1f} s"
                self._station.put(HeadLost(f"host {host.name}, which led the job: its agent {how}"))


def _refuses(host: Host) -> bool:
    """Whether an agent has ended. A connection may break without anybody's end: so it looks twice."""
    if is_heard(host):
        return False
    time.sleep(_TICK_S)
    return not is_heard(host)
