"""How a head decides: event by event, held by the other agents before anything follows from it, then performed."""

from __future__ import annotations

from typing import Any

from kungfu.runtime.agent.consensus.orders import Orders
from kungfu.runtime.agent.consensus.standby import Standby, from_standby
from kungfu.runtime.agent.consensus.succession import Taken, majority
from kungfu.runtime.agent.context import CUT_OFF, Ending, Station
from kungfu.runtime.agent.controller.executor import Executor
from kungfu.runtime.agent.controller.post_mortem import root_cause
from kungfu.runtime.core import cluster as decided
from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.desk import Desk, Reported
from kungfu.runtime.job_api.service import Question

__all__ = ["Course"]


class Course:
    """The course of a job: what is known of it, and what its head does about it.

    ``heard`` are the numbers of the last happening of each host, and ``incarnations`` the agents that were taken in,
    which the others hold too.
    """

    def __init__(self, station: Station, taken: Taken | None) -> None:
        self._station, self._job, self._clock = station, station.job, station.clock
        standby = taken.standby if taken else Standby(Cluster(station.job.rules, hosts=decided.Hosts(slots={})))
        self.cluster, self.heard = standby.cluster, dict(standby.heard)
        self.incarnations = dict(standby.incarnations)
        # The newest one that all hold, and those after it.
        self._open: tuple[Cluster, ...] = taken.open if taken else (self.cluster,)
        self.desk = Desk(
            station.settings, scaling=station.job.scaling, tell=self._tell, process_of=self._process_of,
            hosts=station.job.hosts, ledger=standby.ledger,
        )  # fmt: skip
        self.orders = Orders(
            station.settings, station.job.numbered, head=station.job.place, term=taken.term if taken else 1,
            clock=self._clock, put=station.put, version=taken.version if taken else 0,
        )  # fmt: skip
        self.executor = Executor(station, self.orders, standby, write=self.write, known=lambda: self.cluster)

    @property
    def began(self) -> bool:
        """Whether any peer was ever started."""
        return self.cluster.processes.next_id > 0

    def hears(self, event: Any) -> Ending | None:
        """Sees to what peers did, what people ask, or that time went by; how the job ended, if that is its end."""
        if not isinstance(event, Question | Reported):
            self._note(event)
            if (ending := self.decide(event)) is not None:
                return ending
        return self.steer(event)

    def decide(self, event: decided.Event) -> Ending | None:
        """What follows from an event, settled and performed."""
        return self.follow(decided.step(self.cluster, event, self._clock()))

    def steer(self, event: Any) -> Ending | None:
        """What people and schedulers ask for, and what came of it."""
        ledger = self.desk.ledger
        demands = self.desk.hears(event, self.cluster, self._clock())
        if self.desk.ledger is not ledger and (ending := self.settle()) is not None:
            return ending
        for demand in demands:
            assert self.cluster.view is not None
            self.executor.perform(decided.Tell(self.cluster.view, demand), self.cluster)
        return None

    def _note(self, event: Any) -> None:
        """Chronicles what the peers did of themselves; what the agent does is noted where it does it."""
        if isinstance(event, decided.ViewStarted):
            self.write({"event": "view", "version": event.view.version, "peers": list(event.view.ids)}, told=True)
        elif isinstance(event, decided.ProcessEnded):
            self.write({"event": "peer ended", "peer": event.peer, "how": decided.exit_in_words(event.code)})
        elif isinstance(event, decided.ProgramExiting):
            self._note_exit(event)
        elif isinstance(event, decided.PeerNoticed):
            self.write({"event": "noticed", "peer": event.peer}, told=True)
        elif isinstance(event, decided.PeerProgressed):
            self.executor.addresses[event.peer.id] = event.peer

    def _note_exit(self, event: decided.ProgramExiting) -> None:
        """A program that ends, or leaves its loop, while its peer trains: told once, when it begins."""
        peer, exit, cluster = event.peer, event.exit, self.cluster
        if cluster.view is None or peer not in cluster.members or peer in cluster.losses.exiting:
            return
        others = len(cluster.members) - 1
        fields = {"peer": peer, "rank": cluster.view.rank_of(peer), "step": exit.step, "others": others}
        self.write({"event": "program ended", **fields, "how": exit.kind, "error": exit.error}, told=True)

    def follow(self, outcome: decided.Transition) -> Ending | None:
        """The job is as ``outcome`` says: the others hold it, then its commands are performed."""
        before, (self.cluster, commands) = self.cluster, outcome
        if (commands or self.cluster is not before) and (ending := self.settle()) is not None:
            return ending
        for command in commands:
            ending = self._perform(command)
            if ending is not None:
                return ending
        return None

    def settle(self) -> Ending | None:
        """Has the other agents hold what is known now; what follows if too few of them can."""
        if len(self._job.hosts) == 1:
            return None
        self.executor.forget_all_but(self.cluster.alive)
        standby = Standby(
            self.cluster, self.desk.ledger, self.executor.addresses, self.executor.pids, self.heard, self.incarnations
        )
        self._open = (*self._open, self.cluster)
        if self.orders.settle(from_standby(standby), enough=self._is_quorum):
            self._open = (self.cluster,)
            return None
        return self.outvoted(self.orders.holding)

    def _is_quorum(self, hosts: frozenset[int]) -> bool:
        """Whether these hosts may go on alone; before the first view all do what the head says."""
        return self.cluster.view is None or majority(self._open, hosts)

    def outvoted(self, hosts: frozenset[int] | None = None) -> Ending | None:
        """The end of this host's part, if ``hosts`` have no majority of the peers: those who still take orders, or
        those who hold what is known now."""
        hosts = self.orders.present if hosts is None else hosts
        if self._is_quorum(hosts) or self.cluster.view is None:
            return None
        others = sorted(self.cluster.hosts.known - hosts)
        names = ", ".join(self._job.hosts[number].name for number in others)
        why = (
            f"lost {names}, without which this host has no majority of the peers of view {self.cluster.view.version}: "
            "the others may go on without it, so it stops"
        )
        self.write({"event": "failed", "peer": -1, "error": why, "code": CUT_OFF})
        return Ending(CUT_OFF, Failure(-1, why, CUT_OFF))

    def _perform(self, command: decided.Command) -> Ending | None:
        match command:
            case decided.Release(host):
                return self._release(host)
            case decided.Fail():
                return self.fail(command)
            case decided.Done():
                self.write({"event": "ended", "reason": "training is over"})
                return Ending(0)
            case _:
                self.executor.perform(command, self.cluster)
        return None

    def fail(self, command: decided.Fail) -> Ending:
        """The end of a job that cannot go on, with what is at the root of it."""
        failure = root_cause(self._station, command, self.cluster, self.executor.tails)
        self.write({"event": "failed", "peer": failure.peer, "error": failure.text, "code": failure.code})
        return Ending(failure.code, failure)

    def _process_of(self, peer: int) -> int:
        return self.executor.pids.get(peer, 0)

    def _tell(self, fields: dict[str, Any]) -> None:
        self.write(fields, told=True)

    def write(self, fields: dict[str, Any], *, told: bool = False) -> None:
        """One more event of the record; ``told``: a person shall see it."""
        self._station.recorder.event(fields, told=told)
        self.desk.noted(fields)

    def _release(self, host: int) -> Ending | None:
        self.write({"event": "host left", **self.named(host), "why": "its peers have left"}, told=True)
        if host == self._job.place:
            return Ending(0, leaves=True)
        self.orders.to(host, pb.Orders(over=pb.Over(code=0, peer=-1), leaves=True))
        self.orders.end(host)
        return None

    def named(self, host: int) -> dict[str, Any]:
        """A host, as events have it."""
        return {"host": host, "name": self._job.hosts[host].name}
