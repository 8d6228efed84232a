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
from kungfu.runtime.agent.consensus.entering import mismatch, welcome
from kungfu.runtime.agent.consensus.orders import Deposed, HostGone, HostIs
from kungfu.runtime.agent.consensus.service import Entering, HeadLost, Ordered
from kungfu.runtime.agent.consensus.succession import Taken
from kungfu.runtime.agent.context import Ending, Signalled, Station
from kungfu.runtime.agent.controller.course import Course
from kungfu.runtime.agent.controller.relay import Unformed, Unheard
from kungfu.runtime.agent.record.recorder import nowhere
from kungfu.runtime.core import cluster as decided
from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.core.cluster.state import UNBOUNDED
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.core.requests import current
from kungfu.runtime.ipc import messages_pb2 as pb

__all__ = ["Fence", "Head"]


@dataclass(frozen=True)
class Fence:
    """Set once everything that was put into the queue before it has been seen to."""

    passed: threading.Event


class Head:
    """Decides for the whole job, from its start or from where the head before was lost."""

    def __init__(self, station: Station, *, taken: Taken | None = None) -> None:
        self._station, self._job, self._clock = station, station.job, station.clock
        self._course = Course(station, taken)
        self._inherited = self._course.cluster.alive if taken else frozenset[int]()
        self._taken, self._began = taken, self._clock()
        self._arrivals: list[pb.Records] = []
        if self._several:
            station.recorder.spread = lambda records: self._course.orders.to_all(pb.Orders(reports=[records]))

    @property
    def cluster(self) -> Cluster:
        """What is known of the job."""
        return self._course.cluster

    @property
    def quiet(self) -> bool:
        """Whether nothing is awaited that may come too late."""
        cluster, ledger = self._course.cluster, self._course.desk.ledger
        awaited = cluster.starting or cluster.regrouping is not None or current(ledger) is not None
        return self._course.began and not awaited

    def begin(self) -> Ending | None:
        """Starts the job, once the agents of all its hosts are in; or goes on with it."""
        if self._taken is not None:
            return self._take_over(self._taken)
        self._came(self._job.place, os.getpid())
        return self._entered(self._job.place, self._station.household.threads)

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
                return self._course.fail(decided.Fail(-1, str(error), late=isinstance(error, DeadlineExceeded)))
            case Unheard(peer, error):
                if peer in self._course.cluster.alive:
                    self._course.write({"event": "unheard", "peer": peer, "error": error})
                return None
            case pb.Happening():
                return self._happened(event)
            case decided.Tick() if not self._course.began:
                return self._missing_hosts()
        return self._course.hears(event)

    def close(self, ending: Ending | None) -> None:
        """Tells the other agents how the job ended, or that this one goes; ``None``: that it has failed, and nothing
        more. What it has not come to do, one of them does."""
        over = None
        if ending is not None and not ending.leaves:
            said = ending.failure or Failure(-1, "", ending.code)
            over = pb.Over(
                code=ending.code, failed=ending.failure is not None, why=said.text, peer=said.peer, output=said.output,
                chosen=said.chosen,
            )  # fmt: skip
        self._station.recorder.spread = nowhere
        self._course.orders.to_all(pb.Orders(over=over, leaves=over is None))
        self._course.orders.close()

    # ---- hosts -------------------------------------------------------------------------------------------------------

    @property
    def _several(self) -> bool:
        return len(self._job.hosts) > 1

    def _came(self, number: int, pid: int) -> None:
        event = {"event": "host", **self._course.named(number), "pid": pid}
        self._arrivals.append(self._station.recorder.event(event, told=self._several))
        self._course.desk.noted(event)

    def _welcomed(self, entering: Entering) -> Ending | None:
        """An agent wants to be in: at the start, or because its host is back."""
        if not entering.reply.set_running_or_notify_cancel():
            return None  # it was told to ask again
        host, known = entering.entrance.host, self._course.cluster.hosts.known
        refusal = mismatch(dict(entering.entrance.line), self._job)
        same = self._course.incarnations.get(host.number) == host.incarnation
        ending: Ending | None = None
        if not refusal and host.number not in known:
            ending = self._taken_in(host, anew=not same)
        # One that is in already has not heard of it. Of another one the one before it is not known to be gone.
        elif refusal or not same:
            entering.reply.set_result(pb.Welcome(refusal=refusal, later=not refusal))
            return None
        if ending is None:  # else whoever leads the job by now may take it in
            entering.reply.set_result(welcome(self._station.settings, term=self._course.orders.term))
        return ending

    def _taken_in(self, host: pb.HostInfo, *, anew: bool) -> Ending | None:
        self._course.incarnations[host.number] = host.incarnation
        if anew:
            self._course.heard.pop(host.number, None)  # an agent counts from its own start
        self._course.orders.begin(host.number, anew=anew)
        if not self._course.began:  # its record begins with those who came before
            self._course.orders.to(host.number, pb.Orders(reports=self._arrivals))
        self._came(host.number, host.pid)
        return self._entered(host.number, host.threads)

    def _entered(self, number: int, threads: int) -> Ending | None:
        slots = self._job.hosts[number].slots if self._several else UNBOUNDED
        if self._course.began:
            return self._course.decide(decided.HostJoined(number, slots))
        before = self._course.cluster.hosts
        hosts = decided.Hosts({**before.slots, number: slots}, shares={**before.shares, number: threads})
        self._course.cluster = replace(self._course.cluster, hosts=hosts)
        if len(hosts.slots) < len(self._job.hosts):
            return None
        started = {"event": "started", "job": self._station.settings.job, "size": self._job.size}
        self._course.write({**started, "command": [*self._job.command]}, told=True)
        return self._course.follow(
            decided.start_job(self._job.size, rules=self._job.rules, now=self._clock(), hosts=hosts)
        )

    def _missing_hosts(self) -> Ending | None:
        limit_s = self._job.settings.deadlines.ready_s
        if self._clock() - self._began <= limit_s:
            return None
        missing = [
            host.name for number, host in enumerate(self._job.hosts) if number not in self._course.cluster.hosts.slots
        ]
        who = ", ".join(missing)
        return self._course.fail(
            decided.Fail(-1, f"waited {limit_s:.0f} s for the agents of {who}: start the same line there", late=True)
        )

    def _happened(self, happening: pb.Happening) -> Ending | None:
        if 0 < happening.number <= self._course.heard.get(happening.host, 0):
            return None  # told again, for its answer was lost
        if happening.number:
            self._course.heard[happening.host] = happening.number
        if happening.what == "spawned":
            self._course.executor.spawned(happening.peer, happening.pid, host=happening.host)
            if happening.peer not in self._course.cluster.alive:  # the head before had it started
                self._course.executor.kill(happening.peer, host=happening.host)
            return None
        if happening.what == "signalled":
            return self._signalled(happening.host, happening.code)
        self._course.executor.tails[happening.peer] = list(happening.tail)
        if happening.peer not in self._course.cluster.alive:
            return None  # of a host that was given up, or told twice
        return self._course.hears(decided.ProcessEnded(happening.peer, happening.code))

    def _signalled(self, host: int, number: int) -> Ending | None:
        """A first SIGTERM to one agent of several is a notice: its host will be taken away. All else ends the job."""
        hosts, named = self._course.cluster.hosts, signal.Signals(number).name
        if self._course.began and host not in hosts.known:
            return None  # it was let go, and ends
        notice = number in (signal.SIGTERM, signal.SIGHUP) and host not in hosts.leaving
        if notice and set(hosts.slots) - {host} and self._course.cluster.view is not None:
            self._course.write({"event": "host noticed", **self._course.named(host), "signal": named}, told=True)
            return self._course.decide(decided.HostNoticed(host))
        where = {"host": host} if self._several else {}
        self._course.write({"event": "ended", "reason": named, **where})
        return Ending(128 + number)

    def _lost_host(self, host: int, how: str) -> Ending | None:
        self._course.orders.end(host)
        hosts = self._course.cluster.hosts
        if host not in hosts.known:
            return None  # it was let go
        if (ending := self._course.outvoted()) is not None:
            return ending
        self._course.write({"event": "host lost", **self._course.named(host), "why": how}, told=True)
        if self._course.began:
            lost = decided.HostLost(host, f"host {self._job.hosts[host].name} is lost: {how}")
            return self._course.decide(lost)
        slots = {number: count for number, count in hosts.slots.items() if number != host}
        shares = {number: share for number, share in hosts.shares.items() if number != host}
        self._course.cluster = replace(self._course.cluster, hosts=decided.Hosts(slots, shares=shares))
        return None

    def _take_over(self, taken: Taken) -> Ending | None:
        """Goes on where the head before was lost."""
        for number in sorted(taken.present - {self._job.place}):
            self._course.orders.begin(number)
        self._course.write({"event": "head", **self._course.named(self._job.place), "term": taken.term}, told=True)
        if (ending := self._course.settle()) is not None:
            return ending
        self._reconcile(HostIs(self._job.place, tuple(self._station.household.started)))
        ending = self._course.decide(decided.LeaderTookOver())
        hosts = self._course.cluster.hosts
        for number in sorted(hosts.known - taken.present):
            how = "its agent has ended or cannot be reached"
            ending = ending or self._lost_host(number, how)
        if ending is not None or self._course.cluster.view is None:
            return ending
        return self._course.steer(decided.ViewStarted(self._course.cluster.view))

    def _reconcile(self, event: HostIs) -> None:
        """What the head before decided last may not have come about: who was never started, and who was never ended."""
        if self._taken is None:
            return
        here = {peer for peer in self._inherited if self._course.cluster.hosts.of.get(peer, 0) == event.host}
        for peer in sorted(here - set(event.started)):
            self._station.put(pb.Happening(host=event.host, what="ended", peer=peer, code=-signal.SIGKILL))
        for peer in sorted(set(event.started) - self._course.cluster.alive):
            self._course.executor.kill(peer, host=event.host)
