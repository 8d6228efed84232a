"""The agent that decides: performs what ``cluster`` decides, on this host and through the agents of the others.

Before anything is performed that follows from what it has learned, every other agent holds it too; so whoever takes
over never knows less than a peer was told.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, replace
from typing import Any

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.agent.executor import Executor
from kungfu.runtime.agent.hosts.entering import mismatch, welcome
from kungfu.runtime.agent.hosts.orders import Deposed, HostGone, HostIs, Orders
from kungfu.runtime.agent.hosts.service import Entering, HeadLost, Ordered
from kungfu.runtime.agent.hosts.standby import Standby, from_standby
from kungfu.runtime.agent.hosts.succession import Taken, majority
from kungfu.runtime.agent.post_mortem import root_cause
from kungfu.runtime.agent.relay import Unformed, Unheard
from kungfu.runtime.agent.station import CUT_OFF, Ending, Signalled, Station
from kungfu.runtime.deciding import cluster as decided
from kungfu.runtime.deciding.cluster import Cluster
from kungfu.runtime.deciding.cluster.state import UNBOUNDED
from kungfu.runtime.deciding.failure import Failure
from kungfu.runtime.steering.desk import Desk, Reported
from kungfu.runtime.steering.service import Question
from kungfu.runtime.wire import messages_pb2 as pb

__all__ = ["Fence", "Head"]


@dataclass(frozen=True)
class Fence:
    """Set once everything that was put into the queue before it has been seen to."""

    passed: threading.Event


class Head:
    """Decides for the whole job, from its start or from where the head before was lost."""

    def __init__(self, station: Station, *, taken: Taken | None = None) -> None:
        self._station, self._job, self._clock = station, station.job, station.clock
        standby = taken.standby if taken else Standby(Cluster(station.job.rules, hosts=decided.Hosts(slots={})))
        self._cluster = standby.cluster
        self._inherited = standby.cluster.alive if taken else frozenset[int]()
        # The newest one that all hold, and those after it.
        self._open: tuple[Cluster, ...] = taken.open if taken else (self._cluster,)
        self._taken, self._began = taken, self._clock()
        self._arrivals: list[pb.Records] = []
        self._heard = dict(standby.heard)
        self._desk = Desk(
            station.settings, scaling=station.job.scaling, tell=self._tell, process_of=self._process_of,
            hosts=station.job.hosts, ledger=standby.ledger,
        )  # fmt: skip
        self._orders = Orders(
            station.settings, station.job.numbered, head=station.job.place, term=taken.term if taken else 1,
            clock=self._clock, put=station.put, version=taken.version if taken else 0,
        )  # fmt: skip
        self._executor = Executor(station, self._orders, standby, write=self._write)
        station.recorder.spread = lambda records: self._orders.to_all(pb.Orders(reports=[records]))

    @property
    def cluster(self) -> Cluster:
        """What is known of the job."""
        return self._cluster

    def begin(self) -> Ending | None:
        """Starts the job, once the agents of all its hosts are in; or goes on with it."""
        if self._taken is not None:
            return self._take_over(self._taken)
        self._came(self._job.place, os.getpid())
        return self._entered(self._job.place)

    def hears(self, event: Any) -> Ending | None:
        """Sees to an event; how the job ended, if that is its end."""
        match event:
            case Fence(passed):
                passed.set()
                return None
            case Ordered() | HeadLost():
                return None  # by the head before, or of it, and put into the queue while this one took over
            case Signalled(number):
                return self._signalled(self._job.place, number)
            case Entering():
                return self._welcomed(event)
            case HostIs():
                self._reconcile(event)
                return None
            case HostGone(host, how):
                return self._lost_host(host, how)
            case Deposed(host, said):
                return self._lost_host(host, f"its agent takes no orders from here: {said}")
            case Unformed(error):
                return self._failed(decided.Fail(-1, str(error), late=isinstance(error, DeadlineExceeded)))
            case Unheard(peer, error):
                if peer in self._cluster.alive:
                    self._write({"event": "unheard", "peer": peer, "error": error})
                return None
            case pb.Happening():
                return self._happened(event)
            case decided.Tick() if not self._started:
                return self._missing_hosts()
        return self._stepped(event)

    def close(self, ending: Ending) -> None:
        """Tells the other agents how the job ended, or that this one goes."""
        over = None
        if not ending.leaves:
            said = ending.failure or Failure(-1, "", ending.code)
            over = pb.Over(
                code=ending.code, failed=ending.failure is not None, why=said.text, peer=said.peer, output=said.output
            )
        self._station.recorder.spread = lambda records: None
        self._orders.to_all(pb.Orders(over=over, leaves=ending.leaves))
        self._orders.close()

    # ---- deciding ----------------------------------------------------------------------------------------------------

    def _stepped(self, event: Any) -> Ending | None:
        if not isinstance(event, Question | Reported):
            self._note(event)
            ending = self._perform_all(decided.step(self._cluster, event, self._clock()))
            if ending is not None:
                return ending
        return self._steer(event)

    def _steer(self, event: Any) -> Ending | None:
        """What people and schedulers ask for, and what came of it."""
        ledger = self._desk.ledger
        demands = self._desk.hears(event, self._cluster, self._clock())
        if self._desk.ledger is not ledger and (ending := self._settled()) is not None:
            return ending
        for demand in demands:
            assert self._cluster.view is not None
            self._executor.perform(decided.Tell(self._cluster.view, demand), self._cluster)
        return None

    def _note(self, event: Any) -> None:
        """Chronicles what the peers did of themselves; what the agent does is noted where it does it."""
        if isinstance(event, decided.InForce):
            self._write({"event": "view", "version": event.view.version, "peers": list(event.view.ids)}, told=True)
        elif isinstance(event, decided.Ended):
            self._write({"event": "peer ended", "peer": event.peer, "how": decided.ending(event.code)})
        elif isinstance(event, decided.Noticed):
            self._write({"event": "noticed", "peer": event.peer}, told=True)
        elif isinstance(event, decided.Seen):
            self._executor.addresses[event.peer.id] = event.peer

    def _perform_all(self, outcome: decided.Outcome) -> Ending | None:
        before, (self._cluster, commands) = self._cluster, outcome
        if (commands or self._cluster is not before) and (ending := self._settled()) is not None:
            return ending
        for command in commands:
            ending = self._perform(command)
            if ending is not None:
                return ending
        return None

    def _settled(self) -> Ending | None:
        """Has the other agents hold what is known now; what follows if too few of them can."""
        if not self._several:
            return None
        self._executor.forget_all_but(self._cluster.alive)
        standby = Standby(self._cluster, self._desk.ledger, self._executor.addresses, self._executor.pids, self._heard)
        if self._orders.settle(from_standby(standby)):
            self._open = (self._cluster,)
            return None
        self._open = (*self._open, self._cluster)
        return self._outvoted()

    def _outvoted(self) -> Ending | None:
        if self._cluster.view is None or majority(self._open, self._orders.present):
            return None
        others = sorted({*self._cluster.hosts.slots, *self._cluster.hosts.leaving} - self._orders.present)
        names = ", ".join(self._job.hosts[number].name for number in others)
        why = (
            f"lost {names}, without which this host has no majority of the peers of view {self._cluster.view.version}: "
            "the others may go on without it, so it stops"
        )
        self._write({"event": "failed", "peer": -1, "error": why, "code": CUT_OFF})
        return Ending(CUT_OFF, Failure(-1, why, CUT_OFF))

    # ---- performing --------------------------------------------------------------------------------------------------

    def _perform(self, command: decided.Command) -> Ending | None:
        match command:
            case decided.Release(host):
                return self._release(host)
            case decided.Fail():
                return self._failed(command)
            case decided.Done():
                self._write({"event": "ended", "reason": "training is over"})
                return Ending(0)
            case _:
                self._executor.perform(command, self._cluster)
        return None

    def _failed(self, command: decided.Fail) -> Ending:
        failure = root_cause(self._station, command, self._cluster, self._executor.tails)
        self._write({"event": "failed", "peer": failure.peer, "error": failure.text, "code": failure.code})
        return Ending(failure.code, failure)

    def _process_of(self, peer: int) -> int:
        return self._executor.pids.get(peer, 0)

    def _tell(self, fields: dict[str, Any]) -> None:
        self._write(fields, told=True)

    def _write(self, fields: dict[str, Any], *, told: bool = False) -> None:
        self._station.recorder.event(fields, told=told)
        self._desk.noted(fields)

    # ---- hosts -------------------------------------------------------------------------------------------------------

    @property
    def _several(self) -> bool:
        return len(self._job.hosts) > 1

    @property
    def _started(self) -> bool:
        return self._cluster.processes.next_id > 0

    def _host(self, number: int) -> dict[str, Any]:
        return {"host": number, "name": self._job.hosts[number].name}

    def _came(self, number: int, pid: int) -> None:
        event = {"event": "host", **self._host(number), "pid": pid}
        self._arrivals.append(self._station.recorder.event(event, told=self._several))
        self._desk.noted(event)

    def _welcomed(self, entering: Entering) -> Ending | None:
        """An agent wants to be in: at the start, or because its host is back."""
        if not entering.reply.set_running_or_notify_cancel():
            return None  # it was told to ask again
        number, hosts = entering.entrance.host.number, self._cluster.hosts
        refusal = mismatch(dict(entering.entrance.line), self._job)
        if refusal or number in hosts.slots or number in hosts.leaving:  # the one before it is not known to be gone
            entering.reply.set_result(pb.Welcome(refusal=refusal, later=not refusal))
            return None
        entering.reply.set_result(welcome(self._station.settings))
        self._heard.pop(number, None)  # an agent counts from its own start
        self._orders.begin(number)
        if not self._started:  # its record begins with those who came before
            self._orders.to(number, pb.Orders(reports=self._arrivals))
        self._came(number, entering.entrance.host.pid)
        return self._entered(number)

    def _entered(self, number: int) -> Ending | None:
        slots = self._job.hosts[number].slots if self._several else UNBOUNDED
        if self._started:
            return self._perform_all(decided.step(self._cluster, decided.HostIn(number, slots), self._clock()))
        hosts = decided.Hosts({**self._cluster.hosts.slots, number: slots})
        self._cluster = replace(self._cluster, hosts=hosts)
        if len(hosts.slots) < len(self._job.hosts):
            return None
        started = {"event": "started", "job": self._station.settings.job, "size": self._job.size}
        self._write({**started, "command": [*self._job.command]}, told=True)
        return self._perform_all(decided.first(self._job.size, rules=self._job.rules, now=self._clock(), hosts=hosts))

    def _missing_hosts(self) -> Ending | None:
        limit_s = self._job.settings.deadlines.ready_s
        if self._clock() - self._began <= limit_s:
            return None
        missing = [host.name for number, host in enumerate(self._job.hosts) if number not in self._cluster.hosts.slots]
        who = ", ".join(missing)
        return self._failed(
            decided.Fail(-1, f"waited {limit_s:.0f} s for the agents of {who}: start the same line there", late=True)
        )

    def _happened(self, happening: pb.Happening) -> Ending | None:
        if 0 < happening.number <= self._heard.get(happening.host, 0):
            return None  # told again, for its answer was lost
        if happening.number:
            self._heard[happening.host] = happening.number
        if happening.what == "spawned":
            self._executor.spawned(happening.peer, happening.pid, host=happening.host)
            if happening.peer not in self._cluster.alive:  # the head before had it started, and said it to nobody else
                self._executor.kill(happening.peer, host=happening.host)
            return None
        if happening.what == "signalled":
            return self._signalled(happening.host, happening.code)
        self._executor.tails[happening.peer] = list(happening.tail)
        if happening.peer not in self._cluster.alive:
            return None  # of a host that was given up, or told twice
        return self._stepped(decided.Ended(happening.peer, happening.code))

    def _signalled(self, host: int, number: int) -> Ending | None:
        """A first SIGTERM to one agent of several is a notice: its host will be taken away. All else ends the job."""
        hosts, named = self._cluster.hosts, signal.Signals(number).name
        if self._started and host not in hosts.slots and host not in hosts.leaving:
            return None  # it was let go, and ends
        notice = number in (signal.SIGTERM, signal.SIGHUP) and host not in hosts.leaving
        if notice and set(hosts.slots) - {host} and self._cluster.view is not None:
            self._write({"event": "host noticed", **self._host(host), "signal": named}, told=True)
            return self._perform_all(decided.step(self._cluster, decided.HostNoticed(host), self._clock()))
        where = {"host": host} if self._several else {}
        self._write({"event": "ended", "reason": named, **where})
        return Ending(128 + number)

    def _release(self, host: int) -> Ending | None:
        self._write({"event": "host left", **self._host(host), "why": "its peers have left"}, told=True)
        if host == self._job.place:
            return Ending(0, leaves=True)
        self._orders.to(host, pb.Orders(over=pb.Over(code=0, peer=-1), leaves=True))
        self._orders.end(host)
        return None

    def _lost_host(self, host: int, how: str) -> Ending | None:
        self._orders.end(host)
        hosts = self._cluster.hosts
        if host not in hosts.slots and host not in hosts.leaving:
            return None  # it was let go
        if (ending := self._outvoted()) is not None:
            return ending
        self._write({"event": "host lost", **self._host(host), "why": how}, told=True)
        if self._started:
            lost = decided.HostLost(host, f"host {self._job.hosts[host].name} is lost: {how}")
            return self._perform_all(decided.step(self._cluster, lost, self._clock()))
        slots = {number: count for number, count in hosts.slots.items() if number != host}
        self._cluster = replace(self._cluster, hosts=decided.Hosts(slots))
        return None

    def _take_over(self, taken: Taken) -> Ending | None:
        """Goes on where the head before was lost."""
        for number in sorted(taken.present - {self._job.place}):
            self._orders.begin(number)
        self._write({"event": "head", **self._host(self._job.place), "term": taken.term}, told=True)
        if (ending := self._settled()) is not None:
            return ending
        self._reconcile(HostIs(self._job.place, tuple(self._station.household.started)))
        ending = self._perform_all(decided.step(self._cluster, decided.TakenOver(), self._clock()))
        hosts = self._cluster.hosts
        for number in sorted({*hosts.slots, *hosts.leaving} - taken.present):
            how = "its agent has ended or cannot be reached"
            ending = ending or self._lost_host(number, how)
        if ending is not None or self._cluster.view is None:
            return ending
        return self._steer(decided.InForce(self._cluster.view))

    def _reconcile(self, event: HostIs) -> None:
        """What the head before decided last may not have come about: who was never started, and who was never ended."""
        if self._taken is None:
            return
        here = {peer for peer in self._inherited if self._cluster.hosts.of.get(peer, 0) == event.host}
        for peer in sorted(here - set(event.started)):
            self._station.put(pb.Happening(host=event.host, what="ended", peer=peer, code=-signal.SIGKILL))
        for peer in sorted(set(event.started) - self._cluster.alive):
            self._executor.kill(peer, host=event.host)
