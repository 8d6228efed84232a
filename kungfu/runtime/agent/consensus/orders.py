"""What the head sends to the other agents: one message at a time to each, in order, and a heartbeat between.

An agent that does not take its orders is lost. One that follows somebody else says so, and then this head is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

from kungfu.errors import KungfuError
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.ipc.persistent import Persistent
from kungfu.runtime.settings import Deadlines, Settings

__all__ = ["BEAT_S", "Deposed", "HostGone", "HostIs", "Orders", "Sender", "again_s", "lost_after_s"]

# Between two messages when there is nothing to say.
BEAT_S = 0.5
# An answer that takes longer is asked for once more, over another connection.
_AGAIN_S = 1.0
_LOOK_S = 0.2
_NOTHING = pb.Orders()


def again_s(deadlines: Deadlines) -> float:
    """How long an answer may take before it is asked for once more."""
    return min(_AGAIN_S, deadlines.heartbeat_s / 3)


def lost_after_s(deadlines: Deadlines) -> float:
    """How long a head may be silent for those who follow it.

    It may have said something last a moment before its link went down; and what it says when the link is back after
    less than ``--heartbeat`` is heard only with its next try.
    """
    return BEAT_S + deadlines.heartbeat_s + again_s(deadlines)


@dataclass(frozen=True)
class HostGone:
    """An agent takes no orders any more."""

    host: int
    how: str


@dataclass(frozen=True)
class HostIs:
    """An agent took its first orders of this head: ``started`` are the peers that it ever started."""

    host: int
    started: tuple[int, ...]


@dataclass(frozen=True)
class Deposed:
    """An agent follows the head of a later term."""

    host: int
    said: str


class Sender:
    """Orders to one agent, from a thread of its own. ``put`` takes what came of them."""

    def __init__(
        self,
        number: int,
        host: Host,
        settings: Settings,
        *,
        stamp: Callable[[pb.Orders], None],
        put: Callable[[object], None],
        count: int = 0,
    ) -> None:
        self.number, self.host = number, host
        self.lost = False
        self.held = 0  # the newest version of the state that this agent is known to hold
        self._settings, self._stamp, self._put = settings, stamp, put
        self._changed = threading.Condition()
        self._pending, self.count, self._closing = pb.Orders(), count, False
        self._beats = False  # the next heartbeat goes out at once
        self._line = Persistent(
            host.address, secret=settings.secret, method=lambda channel: HostServiceStub(channel).Follow,
            again_s=again_s(settings.deadlines),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._send_all, name=f"kungfu-orders-{number}", daemon=True)
        self._thread.start()

    def add(self, more: pb.Orders) -> None:
        """Sends this too; of two states only the later one goes out."""
        with self._changed:
            self._pending.MergeFrom(more)
            self._changed.notify_all()

    def beat(self) -> None:
        """Sends what every message says of the head now, and not with the next heartbeat."""
        with self._changed:
            self._beats = True
            self._changed.notify_all()

    def wait(self, version: int, *, deadline: float) -> bool:
        """Whether this agent holds the state of ``version``, once it does or is lost; ``deadline`` is monotonic."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.held >= version or self.lost, timeout=max(0.0, deadline - time.monotonic())
            )
            return self.held >= version

    def close(self, *, within_s: float) -> None:
        """Sends what is left, if that can be had in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=within_s)
        self._line.close()

    def _send_all(self) -> None:
        first = True
        while True:
            with self._changed:
                if not self._closing and not self._beats and self._pending == _NOTHING:
                    self._changed.wait(BEAT_S)
                if self._closing and self._pending == _NOTHING:
                    return
                message, self._pending, self._beats = self._pending, pb.Orders(), False
                self.count += 1
                message.number = self.count
            answer = self._sent(message)
            if answer is None:
                with self._changed:
                    self.lost = True
                    self._changed.notify_all()
                return
            with self._changed:
                self.held = max(self.held, message.version)
                self._changed.notify_all()
            if first:
                self._put(HostIs(self.number, tuple(answer.started)))
                first = False

    def _sent(self, message: pb.Orders) -> pb.Followed | None:
        """The answer; ``None`` once the agent is lost, which is put."""
        began = time.monotonic()

        def stamped() -> pb.Orders:
            self._stamp(message)
            return message

        try:
            answer: pb.Followed = self._line.ask(stamped, patience_s=self._settings.deadlines.heartbeat_s)
            return answer
        except KungfuError:
            how = "its agent does not answer"
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self._put(Deposed(self.number, error.details() or ""))
                return None
            how = "its agent has ended or cannot be reached"
        self._put(HostGone(self.number, f"{how} (for {time.monotonic() - began:.1f} s)"))
        return None


class Orders:
    """All senders of a head, and the state that the others hold of what it knows, counted on from ``version``."""

    def __init__(
        self, settings: Settings, hosts: Mapping[int, Host], *, head: int, term: int, clock: Callable[[], float],
        put: Callable[[object], None], version: int = 0,
    ) -> None:  # fmt: skip
        self._settings, self._hosts, self._head, self._term, self._clock = settings, hosts, head, term, clock
        self._put = put
        self._senders: dict[int, Sender] = {}
        self._counts: dict[int, int] = {}  # of the orders for agents that were lost
        self._version, self._settled, self._state = version, 0, b""

    @property
    def term(self) -> int:
        """That of this head."""
        return self._term

    @property
    def present(self) -> frozenset[int]:
        """This host, and those whose agents take orders."""
        return frozenset({self._head, *(number for number, sender in self._senders.items() if not sender.lost)})

    @property
    def holding(self) -> frozenset[int]:
        """This host, and those whose agents are known to hold the newest state."""
        holding = (number for number, sender in self._senders.items() if sender.held >= self._version)
        return frozenset({self._head, *holding})

    def begin(self, number: int, *, anew: bool = True) -> None:
        """From now on this agent is told everything; first of all the state. Unless it begins ``anew``, it has heard
        this head before, and its orders are counted on."""
        count = 0 if anew else self._counts.get(number, 0)
        self._senders[number] = sender = Sender(
            number, self._hosts[number], self._settings, stamp=self._stamp, put=self._put, count=count
        )  # fmt: skip
        if self._state:
            sender.add(pb.Orders(state=self._state, version=self._version))

    def end(self, number: int) -> None:
        """Forgets an agent that is lost, or was let go."""
        sender = self._senders.pop(number, None)
        if sender is not None:
            sender.close(within_s=1.0)
            self._counts[number] = sender.count

    def to(self, number: int, orders: pb.Orders) -> None:
        """Orders for one agent; nothing if it is lost."""
        if number in self._senders:
            self._senders[number].add(orders)

    def to_all(self, orders: pb.Orders) -> None:
        """Orders for all of them."""
        for sender in list(self._senders.values()):
            sender.add(orders)

    def settle(
        self, state: bytes, *, enough: Callable[[frozenset[int]], bool] = lambda holding: False,
        within_s: float | None = None,
    ) -> bool:  # fmt: skip
        """Has every agent hold this state. ``False`` if some do not.

        For ``within_s``, twice ``--heartbeat`` if not said, every one is waited for that is not lost. Then those who
        hold it may be ``enough``: who answers, but holds an older state, counts for nothing.
        """
        if state != self._state:
            self._state, self._version = state, self._version + 1
            self.to_all(pb.Orders(state=state, version=self._version))
        elif self._settled == self._version:
            return True
        limit_s = 2 * self._settings.deadlines.heartbeat_s if within_s is None else within_s
        deadline, senders = time.monotonic() + limit_s, list(self._senders.values())
        for sender in senders:
            sender.wait(self._version, deadline=deadline)
        while (late := [one for one in senders if self._is_late(one)]) and not enough(self.holding):
            late[0].wait(self._version, deadline=time.monotonic() + _LOOK_S)  # in the end it holds it or is lost
        if all(sender.held >= self._version for sender in senders):
            self._settled = self._version
            # Until they know of it, they go on without this head only where the older state allows.
            for sender in senders:
                sender.beat()
        return self._settled == self._version

    def _is_late(self, sender: Sender) -> bool:
        return not sender.lost and sender.held < self._version

    def close(self) -> None:
        """Lets everything go out, as far as the agents take it."""
        senders, self._senders = list(self._senders.values()), {}
        closers = [threading.Thread(target=sender.close, kwargs={"within_s": 2.0}) for sender in senders]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    def _stamp(self, message: pb.Orders) -> None:
        message.job, message.term, message.head = self._settings.job, self._term, self._head
        message.now, message.settled = self._clock(), self._settled
