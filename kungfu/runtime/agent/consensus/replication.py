"""Replicates the leader's state to the followers: one message at a time to each, in order, heartbeats in between.

A follower that does not reply is lost. One that has heard a leader of a later term refuses, and then this leader is
stale.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import grpc

from kungfu.errors import KungfuError
from kungfu.runtime.core.cluster.events import HostLost
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.ipc.persistent import Persistent
from kungfu.runtime.settings import Deadlines, Settings

# Between two messages when there is nothing to say.
HEARTBEAT_EVERY_S = 0.5
# A reply that takes longer is asked for once more, over another connection.
_RETRY_AFTER_S = 1.0
_LOOK_S = 0.2
_NOTHING = pb.ReplicateRequest()
# What was recorded while a follower did not reply goes out in several messages: gRPC takes none beyond 64 MiB.
_MOST_BYTES = 16 << 20


def retry_after_s(deadlines: Deadlines) -> float:
    """The seconds after which a reply is requested again."""
    return min(_RETRY_AFTER_S, deadlines.heartbeat_s / 3)


def lost_after_s(deadlines: Deadlines) -> float:
    """The seconds of silence after which followers declare a leader lost.

    Its last message may have come a moment before its link went down; and a message that it sends when the link is
    back after less than ``--heartbeat`` arrives only with its next attempt.

    Args:
        deadlines: The job's.
    """
    return HEARTBEAT_EVERY_S + deadlines.heartbeat_s + retry_after_s(deadlines)


@dataclass(frozen=True)
class HostReported:
    """The agent of ``host`` took the first message of this leader; it has ever started the peers ``started``."""

    host: int
    started: tuple[int, ...]


class FollowerLink:
    """The messages to one follower, sent from a thread of its own; at most one is under way.

    Args:
        number: The number of the follower's host.
        host: The address of its agent.
        settings: The job's; their deadlines say when the follower is lost.
        stamp: Fills in the fields that every message has, at the moment at which it is sent.
        put: Takes ``HostReported``, and a ``HostLost`` that says how.
        count: The number of messages of this term that the follower was sent before.
    """

    def __init__(
        self,
        number: int,
        host: Host,
        settings: Settings,
        *,
        stamp: Callable[[pb.ReplicateRequest], None],
        put: Callable[[object], None],
        count: int = 0,
    ) -> None:
        self.number, self.host = number, host
        self.is_lost = False
        self.acknowledged = 0  # the newest version of the state that the follower has acknowledged
        self._settings, self._stamp, self._put = settings, stamp, put
        self._changed = threading.Condition()
        self._pending, self.count, self._closing = pb.ReplicateRequest(), count, False
        self._heartbeat_due = False  # the next heartbeat goes out at once
        self._connection = Persistent(
            host.address, secret=settings.secret, method=lambda channel: HostServiceStub(channel).Replicate,
            again_s=retry_after_s(settings.deadlines),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._send_all, name=f"kungfu-replication-{number}", daemon=True)
        self._thread.start()

    def send(self, request: pb.ReplicateRequest) -> None:
        """Sends this with the next message; of two states only the later one goes out."""
        with self._changed:
            self._pending.MergeFrom(request)
            self._changed.notify_all()

    def send_heartbeat(self) -> None:
        """Sends the next heartbeat now."""
        with self._changed:
            self._heartbeat_due = True
            self._changed.notify_all()

    def await_acknowledged(self, version: int, *, deadline: float) -> bool:
        """Waits until the follower has acknowledged ``version`` or is lost; returns whether it has.

        Args:
            version: The version of the state.
            deadline: On the monotonic clock, in seconds.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.acknowledged >= version or self.is_lost, timeout=max(0.0, deadline - time.monotonic())
            )
            return self.acknowledged >= version

    def close(self, *, within_s: float) -> None:
        """Sends what is left, for at most ``within_s`` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=within_s)
        self._connection.close()

    def _send_all(self) -> None:
        is_first = True
        while (message := self._next_message()) is not None:
            reply = self._send(message)
            # The follower is lost, or follows another leader: this link is of no more use.
            if reply is None:
                with self._changed:
                    self.is_lost = True
                    self._changed.notify_all()
                return
            with self._changed:
                self.acknowledged = max(self.acknowledged, message.version)
                self._changed.notify_all()
            # Its agent says what it has started: a new leader compares that with what was decided.
            if is_first:
                self._put(HostReported(self.number, tuple(reply.started)))
                is_first = False

    def _next_message(self) -> pb.ReplicateRequest | None:
        """Waits for something to send, or until a heartbeat is due; ``None`` at the end."""
        with self._changed:
            # There is nothing to say: after this wait an empty message goes out, a heartbeat.
            if not self._closing and not self._heartbeat_due and self._pending == _NOTHING:
                self._changed.wait(HEARTBEAT_EVERY_S)
            # All is said.
            if self._closing and self._pending == _NOTHING:
                return None
            message, self._heartbeat_due = self._pending, False
            self._pending = split_off(message, most_bytes=_MOST_BYTES)
            self.count += 1
            message.number = self.count
            return message

    def _send(self, message: pb.ReplicateRequest) -> pb.ReplicateReply | None:
        """The follower's reply; ``None`` if it is lost or refuses, of which the event is put."""
        began = time.monotonic()

        def stamped() -> pb.ReplicateRequest:
            self._stamp(message)
            return message

        try:
            reply: pb.ReplicateReply = self._connection.ask(stamped, patience_s=self._settings.deadlines.heartbeat_s)
            return reply
        except KungfuError:
            # The host is stopped, or the network loses all packets.
            how = "its agent does not answer"
        except grpc.RpcError as error:
            # The follower has a later leader: it is lost for this one, which stops if it loses its quorum with it.
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self._put(HostLost(self.number, f"its agent takes no orders from here: {error.details()}"))
                return None
            # The agent's port refuses connections.
            how = "its agent has ended or cannot be reached"
        self._put(HostLost(self.number, f"{how} (for {time.monotonic() - began:.1f} s)"))
        return None


def split_off(message: pb.ReplicateRequest, *, most_bytes: int) -> pb.ReplicateRequest:
    """Takes the records that have no room out of a message, and gives them as the next one.

    The end of the job moves with them: a follower that has heard of it takes no more records.

    Args:
        message: Loses the records after those with which it comes to ``most_bytes``.
        most_bytes: The limit of records in one message; the ones that pass this limit still go with it.
    """
    rest, size, kept = pb.ReplicateRequest(), 0, 0
    while size < most_bytes and kept < len(message.reports):
        size, kept = size + message.reports[kept].ByteSize(), kept + 1
    if kept < len(message.reports):
        rest.reports.extend(message.reports[kept:])
        del message.reports[kept:]
        rest.leaves, message.leaves = message.leaves, False
        if message.HasField("end"):
            rest.end.CopyFrom(message.end)
            message.ClearField("end")
    return rest


class Replicator:
    """The links of a leader to its followers, and how far each has acknowledged the leader's state.

    Args:
        settings: The job's.
        hosts: All hosts of the job, by number.
        leader: The number of this host.
        term: The term of this leader.
        clock: The leader's; its seconds are sent with every message.
        put: Takes the events of the links.
        version: The version of the first state of this leader; later ones count on from it.
    """

    def __init__(
        self, settings: Settings, hosts: Mapping[int, Host], *, leader: int, term: int, clock: Callable[[], float],
        put: Callable[[object], None], version: int = 0,
    ) -> None:  # fmt: skip
        self._settings, self._hosts, self._leader, self.term, self._clock = settings, hosts, leader, term, clock
        self._put = put
        self._links: dict[int, FollowerLink] = {}
        self._counts: dict[int, int] = {}  # of the messages to followers that were removed
        self._version, self._committed, self._state, self._requests = version, 0, b"", b""

    @property
    def reachable(self) -> frozenset[int]:
        """This host, and those whose agents are not lost."""
        return frozenset({self._leader, *(number for number, link in self._links.items() if not link.is_lost)})

    @property
    def acknowledged_by(self) -> frozenset[int]:
        """This host, and those whose agents have acknowledged the newest state."""
        acknowledged = (number for number, link in self._links.items() if link.acknowledged >= self._version)
        return frozenset({self._leader, *acknowledged})

    def add_follower(self, number: int, *, anew: bool = True) -> None:
        """From now on sends everything to the agent of host ``number``, the newest state first.

        Args:
            number: The number of the host.
            anew: True if its agent has not received from this leader before; else the count of its messages continues.
        """
        count = 0 if anew else self._counts.get(number, 0)
        self._links[number] = link = FollowerLink(
            number, self._hosts[number], self._settings, stamp=self._stamp, put=self._put, count=count
        )  # fmt: skip
        if self._state:
            link.send(pb.ReplicateRequest(state=self._state, requests=self._requests, version=self._version))

    def remove_follower(self, number: int) -> None:
        """Forgets a follower that is lost, or was let go."""
        link = self._links.pop(number, None)
        # It was not removed before.
        if link is not None:
            link.close(within_s=1.0)
            self._counts[number] = link.count

    def send(self, number: int, request: pb.ReplicateRequest) -> None:
        """Sends this to one follower; does nothing if it was removed."""
        if number in self._links:
            self._links[number].send(request)

    def broadcast(self, request: pb.ReplicateRequest) -> None:
        """Sends this to all followers."""
        for link in list(self._links.values()):
            link.send(request)

    def commit(
        self, state: bytes, requests: bytes = b"", *,
        is_enough: Callable[[frozenset[int]], bool] = lambda hosts: False, within_s: float | None = None,
    ) -> bool:  # fmt: skip
        """Replicates ``state`` and waits until it is safe to act on it.

        Args:
            state: The serialized snapshot.
            requests: The encoded request log.
            is_enough: Returns True if the hosts that have acknowledged it are a quorum. A follower that replies, but
                holds an older state, does not count.
            within_s: Seconds to wait for every follower that is not lost, also if a quorum has acknowledged
                already; twice ``--heartbeat`` if not given.

        Returns:
            Whether every follower has acknowledged the state, which is then committed. ``False`` if only those of
            ``is_enough`` have, or some are lost: the caller then asks whether they are a quorum.
        """
        # A new state goes out to everybody, with the request log only where that has changed.
        if (state, requests) != (self._state, self._requests):
            news = b"" if requests == self._requests else requests
            self._state, self._requests, self._version = state, requests, self._version + 1
            self.broadcast(pb.ReplicateRequest(state=state, requests=news, version=self._version))
        # Nothing has changed since all acknowledged it.
        elif self._committed == self._version:
            return True
        limit_s = 2 * self._settings.deadlines.heartbeat_s if within_s is None else within_s
        deadline, links = time.monotonic() + limit_s, list(self._links.values())
        for link in links:
            link.await_acknowledged(self._version, deadline=deadline)
        # Some are late: each of them acknowledges in the end or is lost, but a quorum need not wait for them.
        while (late := [link for link in links if self._is_late(link)]) and not is_enough(self.acknowledged_by):
            late[0].await_acknowledged(self._version, deadline=time.monotonic() + _LOOK_S)
        # Every follower holds it: no earlier state counts any more.
        if all(link.acknowledged >= self._version for link in links):
            self._committed = self._version
            # Until they know of the commit, followers require a quorum under the older state too.
            for link in links:
                link.send_heartbeat()
        return self._committed == self._version

    def _is_late(self, link: FollowerLink) -> bool:
        return not link.is_lost and link.acknowledged < self._version

    def close(self) -> None:
        """Sends what is left to all followers, for at most two seconds."""
        links, self._links = list(self._links.values()), {}
        closers = [threading.Thread(target=link.close, kwargs={"within_s": 2.0}) for link in links]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    def _stamp(self, message: pb.ReplicateRequest) -> None:
        message.job, message.term, message.leader = self._settings.job, self.term, self._leader
        message.now, message.committed = self._clock(), self._committed
