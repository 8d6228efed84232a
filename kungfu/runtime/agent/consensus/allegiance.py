"""Whom this agent follows, and what it holds of the job in case it has to lead.

A head has a *term*; an agent follows the head of the latest term that it knows, and promises each term to one host at
most. It takes a head that has not been heard for as long as ``--heartbeat`` and a moment (``lost_after_s``), or whose
port refuses, for lost.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kungfu.runtime.agent.consensus.standby import Standby, to_standby
from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.ipc import messages_pb2 as pb

__all__ = ["Allegiance", "Held"]


@dataclass(frozen=True)
class Held:
    """A state of the job by term and version, which every head counts on from the one before.

    ``open`` are the newest one that every agent is known to hold, and those after it, by version: as long as it is not
    clear which of them holds, all of them do.
    """

    term: int = 0
    version: int = 0
    standby: Standby | None = None
    text: bytes = b""
    open: tuple[tuple[int, Cluster], ...] = ()

    def with_state(self, term: int, version: int, text: bytes) -> Held:
        """After a newer state has come."""
        standby = to_standby(text)
        return Held(term, version, standby, text, (*self.open, (version, standby.cluster)))

    def settled(self, version: int) -> Held:
        """After it became known that every agent holds ``version``."""
        last = max((one for one, _ in self.open if one <= version), default=0)
        return replace(self, open=tuple(entry for entry in self.open if entry[0] >= last))

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """What is known of the job, in every way in which it may hold."""
        return tuple(cluster for _, cluster in self.open)


class Allegiance:
    """Read and written to by all threads of an agent."""

    def __init__(self, place: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.place, self._clock = place, clock
        self._changed = threading.Condition()
        self._job, self._term, self._number = "", 0, 0
        self._head: int | None = None
        self._closed = False
        self._promised, self._promised_at = (0, -1), -math.inf
        self._held = Held()
        self._heard, self._now = clock(), 0.0

    @property
    def job(self) -> str:
        """The job that this agent is in; empty as long as it is in none."""
        return self._job

    @property
    def term(self) -> int:
        """That of the head that this agent follows."""
        return self._term

    @property
    def head(self) -> int | None:
        """The host of the head; ``None`` while it is lost, or there is none yet."""
        return self._head

    @property
    def leads(self) -> bool:
        """Whether the head is here."""
        return self._head == self.place

    @property
    def held(self) -> Held:
        """What this agent knows of the job."""
        return self._held

    def head_clock(self) -> Callable[[], float]:
        """The clock of the head, as far as it was heard: who takes over reckons on in its seconds."""
        shift = self._now - self._heard
        return lambda: self._clock() + shift

    def enter(self, job: str, head: int, term: int = 0) -> None:
        """The head on this host has taken this agent in; its first orders may have been heard already, or those of a
        head of a later term."""
        with self._changed:
            if not self._job and term >= max(self._term, self._promised[0]):
                self._job, self._head, self._heard = job, head, self._clock()
                self._term = term
                self._changed.notify_all()

    def lead(self, job: str, term: int) -> bool:
        """This agent is the head from now on; not if it has promised a later term, or follows one, by now."""
        with self._changed:
            if term <= self._term or term < self._promised[0]:
                return False
            self._job, self._term, self._head = job, term, self.place
            self._changed.notify_all()
            return True

    def hear(self, orders: pb.Orders) -> str:
        """Takes orders in; why they are none, if they are not."""
        with self._changed:
            if self._job and orders.job != self._job:
                return f"this host is in another job, {self._job}"
            if not self._job and orders.number > 1:  # they are for the agent that was here before
                return "the agent of this host has begun anew"
            if orders.term < max(self._term, self._promised[0]):
                return f"this host follows another head: of term {max(self._term, self._promised[0])}"
            if self.leads:
                return "this host leads the job"
            if orders.term == self._term and orders.number < self._number:
                return ""  # from a connection on which it was on its way for long: later ones were heard meanwhile
            if orders.term > self._term:
                self._number = 0
            self._job, self._term, self._head = orders.job, orders.term, orders.head
            self._heard, self._now = self._clock(), orders.now
            if orders.state and (orders.term, orders.version) > (self._held.term, self._held.version):
                self._held = self._held.with_state(orders.term, orders.version, orders.state)
            self._held = self._held.settled(orders.settled)
            self._changed.notify_all()
            return ""

    def is_new(self, orders: pb.Orders) -> bool:
        """Whether these orders were not taken in before: an answer may have been lost. Numbers are those of a term:
        what a head before has sent is not new any more, and says nothing of the numbers of the one that leads."""
        with self._changed:
            if orders.term != self._term or orders.number <= self._number:
                return False
            self._number = orders.number
            return True

    def lose(self) -> bool:
        """The head is lost; whether this is news."""
        with self._changed:
            news = self._head is not None and not self.leads
            if news:
                self._head = None
            self._changed.notify_all()
            return news

    def silence_s(self) -> float:
        """Seconds since the head was heard."""
        return self._clock() - self._heard

    @property
    def promised_at(self) -> float:
        """When this agent has last promised to follow another one, on its clock."""
        return self._promised_at

    def await_head(self, timeout_s: float) -> int | None:
        """The host of the head, waited for; ``None`` if none is known by then, or when this agent ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._head is not None or self._closed, timeout=timeout_s)
            return self._head

    def close(self) -> None:
        """This agent ends: nobody waits here for another head any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def promise(self, term: int, host: int) -> bool:
        """Whether this agent will follow ``host`` in ``term``, and nobody of an earlier one."""
        with self._changed:
            last, to = self._promised
            if term <= self._term or term < last or (term == last and host != to):
                return False
            if (term, host) != self._promised and host != self.place:
                self._promised_at = self._clock()
            self._promised = (term, host)
            return True

    def vote(self, ballot: pb.Ballot) -> pb.Vote:
        """The answer to an agent that has lost the head. What it says of this one's state still holds when the promise
        is given: nothing that the head sends is taken in between."""
        with self._changed:
            return self._vote(ballot)

    def _vote(self, ballot: pb.Ballot) -> pb.Vote:
        held = self._held
        hosts = held.standby.cluster.hosts if held.standby else None
        vote = pb.Vote(
            term=held.term, version=held.version, state=held.text, promised=max(self._term, self._promised[0])
        )
        if ballot.job != self._job or hosts is None:
            return pb.Vote()
        if ballot.host not in hosts.known:
            vote.fenced = True
        elif self._head is not None:
            vote.hears = True
        elif ballot.promise:
            vote.granted = self.promise(ballot.term, ballot.host)
        return vote
