"""Replicates the leader's state to the followers: one message at a time to each, in order, with heartbeats in between.

A follower that does not reply is lost. A follower that has heard a leader of a later term refuses messages, and so
shows that this leader is stale.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from kungfu.errors import KungfuError
from kungfu.runtime.agent.consensus.commit import FollowerProgress, Outcome, commit_outcome
from kungfu.runtime.core.cluster.events import HostLost
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.ipc.persistent import Persistent
from kungfu.runtime.settings import Deadlines, Settings

# The seconds between two messages when there is nothing to send.
HEARTBEAT_EVERY_S = 0.25
# The seconds without a reply after which a message is sent again, over another connection.
_RETRY_AFTER_S = 0.5
_LOOK_S = 0.2
_NOTHING = pb.ReplicateRequest()
# Records that accumulate while a follower does not reply are sent in parts: gRPC messages are limited to 64 MiB.
_MOST_BYTES = 16 << 20


def retry_after_s(deadlines: Deadlines) -> float:
    """The seconds without a reply after which a message is sent again."""
    return min(_RETRY_AFTER_S, deadlines.heartbeat_s / 3)


def lost_after_s(deadlines: Deadlines) -> float:
    """The seconds of silence after which followers declare a leader lost: the longest pause between two messages, plus
    ``--heartbeat`` for a broken link, plus the longest wait for the leader's next attempt once the link works again."""
    return HEARTBEAT_EVERY_S + deadlines.heartbeat_s + retry_after_s(deadlines)


@dataclass(frozen=True)
class HostReported:
    """The agent of ``host``, with this process id, received this leader's first message; ``started`` lists all peers
    started by this agent."""

    host: int
    started: tuple[int, ...]
    pid: int


class FollowerLink:
    """Sends messages to one follower from a dedicated thread, one at a time.

    Args:
        number: The number of the follower's host.
        host: The host, with the address of its agent.
        settings: The settings of the job; their deadlines define when the follower is lost.
        stamp: Sets the fields that every message has; called when a message is sent.
        put: Queues ``HostReported``, and ``HostLost`` with a description of the loss.
        clock: The leader's clock, in seconds.
        hangs: Returns True while the leader's main thread hangs: nothing is sent meanwhile.
        on_reply: Called after each reply, and when the follower is lost.
        incarnation: The random number of the follower.
        count: The number of messages that were already sent to the follower in this term.
    """

    def __init__(
        self,
        number: int,
        host: Host,
        settings: Settings,
        *,
        stamp: Callable[[pb.ReplicateRequest], None],
        put: Callable[[object], None],
        clock: Callable[[], float],
        hangs: Callable[[], bool],
        on_reply: Callable[[], None],
        incarnation: str = "",
        count: int = 0,
    ) -> None:
        self.number, self.host, self._incarnation = number, host, incarnation
        self.is_lost = False
        self.acknowledged = 0  # the newest version of the state that the follower has acknowledged
        self.heard_at = -math.inf  # the time of sending of the last message that the follower has answered
        self._late: deque[tuple[int, float]] = deque()  # the unacknowledged versions, each with its time of sending
        self._settings, self._stamp, self._put = settings, stamp, put
        self._clock, self._hangs, self._on_reply = clock, hangs, on_reply
        self._changed = threading.Condition()
        self._pending, self.count, self._closing = pb.ReplicateRequest(), count, False
        self._heartbeat_due = False  # True if the next heartbeat must be sent at once
        self._connection = Persistent(
            host.address, secret=settings.secret, method=lambda channel: HostServiceStub(channel).Replicate,
            again_s=retry_after_s(settings.deadlines),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._send_all, name=f"kungfu-replication-{number}", daemon=True)
        self._thread.start()

    def send(self, request: pb.ReplicateRequest) -> None:
        """Adds ``request`` to the next message; of two unsent states, only the newer is sent."""
        with self._changed:
            self._pending.MergeFrom(request)
            if request.version:
                self._late.append((request.version, self._clock()))
            self._changed.notify_all()

    def send_heartbeat(self) -> None:
        """Makes the thread of this link send the follower a heartbeat at once."""
        with self._changed:
            self._heartbeat_due = True
            self._changed.notify_all()

    @property
    def progress(self) -> FollowerProgress:
        """The acknowledgements of the follower."""
        with self._changed:
            late_since = self._late[0][1] if self._late else math.inf
            return FollowerProgress(self.acknowledged, late_since, self.is_lost)

    def close(self, *, within_s: float) -> None:
        """Sends the pending messages, for at most ``within_s`` seconds, and closes the link."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=within_s)
        self._connection.close()

    def _send_all(self) -> None:
        is_first = True
        while (message := self._next_message()) is not None:
            sent_at, reply = self._clock(), self._send(message)
            with self._changed:
                self.heard_at = self.heard_at if reply is None else sent_at
                self.is_lost = reply is None
                self.acknowledged = max(self.acknowledged, 0 if reply is None else message.version)
                while self._late and self._late[0][0] <= self.acknowledged:
                    self._late.popleft()
            self._on_reply()
            # The follower is lost, or follows another leader: this link is no longer needed.
            if reply is None:
                return
            # The reply lists the started peers: a new leader compares them with the decisions so far.
            if is_first:
                self._put(HostReported(self.number, tuple(reply.started), reply.pid))
                is_first = False

    def _next_message(self) -> pb.ReplicateRequest | None:
        """Waits for a message to send, or until a heartbeat is due; ``None`` when the link is closed."""
        with self._changed:
            # There is nothing to send: after this wait an empty message is sent, a heartbeat.
            if not self._closing and not self._heartbeat_due and self._pending == _NOTHING:
                self._changed.wait(HEARTBEAT_EVERY_S)
            # Followers must not hear a leader that decides nothing any more, so that they elect another leader.
            while not self._closing and self._hangs():
                self._changed.wait(_LOOK_S)
            # All messages are sent.
            if self._closing and self._pending == _NOTHING:
                return None
            message, self._heartbeat_due = self._pending, False
            self._pending = split_off(message, most_bytes=_MOST_BYTES)
            self.count += 1
            message.number, message.incarnation, message.host = self.count, self._incarnation, self.number
            return message

    def _send(self, message: pb.ReplicateRequest) -> pb.ReplicateReply | None:
        """Sends a message and returns the reply; if no reply comes, queues ``HostLost`` and returns ``None``."""
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
            # The follower has a later leader, and is lost for this leader, which stops if the others are no quorum.
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self._lose(f"its agent takes no orders from here: {error.details()}")
                return None
            # The agent's port refuses connections.
            how = "its agent has ended or cannot be reached"
        self._lose(f"{how} (for {time.monotonic() - began:.1f} s)")
        return None

    def _lose(self, how: str) -> None:
        # Another link may have replaced one that is closing, after the host has joined again.
        if not self._closing:
            self._put(HostLost(self.number, how))


def split_off(message: pb.ReplicateRequest, *, most_bytes: int) -> pb.ReplicateRequest:
    """Cuts a message after the record that reaches ``most_bytes``, and returns a new message with the later records.
    The end of the job moves to the new message, since a follower that knows the end accepts no more records."""
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
    """Replicates the state of a leader to its followers, and tracks their acknowledgements.

    Args:
        settings: The settings of the job.
        leader: The number of this host.
        term: The term of this leader.
        clock: The leader's clock, in seconds; the time is sent with every message.
        put: Queues the events of the links.
        hangs: Returns True while the leader's main thread hangs.
        version: The version of the state that this leader starts from; new states continue this count.
    """

    def __init__(
        self, settings: Settings, *, leader: int, term: int, clock: Callable[[], float],
        put: Callable[[object], None], hangs: Callable[[], bool] = lambda: False, version: int = 0,
    ) -> None:  # fmt: skip
        self._settings, self._leader, self.term, self._clock = settings, leader, term, clock
        self._put, self._hangs = put, hangs
        self._replied = threading.Condition()
        self._links: dict[int, FollowerLink] = {}
        self._counts: dict[int, int] = {}  # the numbers of messages to removed followers
        self._version, self._committed, self._state, self._requests = version, 0, b"", b""

    @property
    def reachable(self) -> frozenset[int]:
        """This host, and the hosts whose agents are not lost."""
        return frozenset({self._leader, *(number for number, link in self._links.items() if not link.is_lost)})

    def has_heard(self, number: int, *, since: float) -> bool:
        """True if the agent of a host has answered a message sent after ``since``; always true of this host."""
        link = self._links.get(number)
        return number == self._leader or (link is not None and link.heard_at > since)

    @property
    def acknowledged_by(self) -> frozenset[int]:
        """This host, and the hosts whose agents have acknowledged the newest state."""
        acknowledged = (number for number, link in self._links.items() if link.acknowledged >= self._version)
        return frozenset({self._leader, *acknowledged})

    def add_follower(self, number: int, host: Host, *, incarnation: str = "", anew: bool = True) -> None:
        """Starts sending all messages to an agent of ``host`` with this number, beginning with the newest state. The
        count of messages starts at 0 if ``anew`` (this leader has not sent the agent any message yet); else it
        continues."""
        count = 0 if anew else self._counts.get(number, 0)
        self._links[number] = link = FollowerLink(
            number, host, self._settings, stamp=self._stamp, put=self._put, clock=self._clock,
            hangs=self._hangs, on_reply=self._on_reply, incarnation=incarnation, count=count,
        )  # fmt: skip
        if self._state:
            link.send(pb.ReplicateRequest(state=self._state, requests=self._requests, version=self._version))

    def remove_follower(self, number: int) -> None:
        """Removes a follower that is lost or was released."""
        link = self._links.pop(number, None)
        # The follower was not removed before.
        if link is not None:
            link.close(within_s=1.0)
            self._counts[number] = link.count

    def send(self, number: int, request: pb.ReplicateRequest) -> None:
        """Sends a request to one follower; does nothing if the follower was removed."""
        if number in self._links:
            self._links[number].send(request)

    def broadcast(self, request: pb.ReplicateRequest) -> None:
        """Sends a request to all followers."""
        for link in list(self._links.values()):
            link.send(request)

    def commit(
        self, state: bytes, requests: bytes = b"", *, is_quorum: Callable[[frozenset[int]], bool] = lambda hosts: True,
        anew: bool = False,
    ) -> Outcome:  # fmt: skip
        """Replicates ``state`` and waits until it is safe to act on it, or no quorum can acknowledge it.

        Args:
            state: The serialized snapshot.
            requests: The encoded request log.
            is_quorum: Returns True if the hosts that have acknowledged the state are a quorum. A follower that replies,
                but holds an older state, does not count.
            anew: True if the state must be acknowledged anew although it has not changed.

        Returns:
            "committed" if every follower has acknowledged the state, "quorum" if enough of them have, else "no quorum".

        Cost:
            Followers that are late delay the return by at most ``--heartbeat`` if the others are a quorum.
        """
        # A new state is sent to all followers, with the request log only if the log has changed.
        if anew or (state, requests) != (self._state, self._requests):
            news = b"" if requests == self._requests else requests
            self._state, self._requests, self._version = state, requests, self._version + 1
            self.broadcast(pb.ReplicateRequest(state=state, requests=news, version=self._version))
        # Nothing has changed since all followers acknowledged the state.
        elif self._committed == self._version:
            return "committed"
        links = dict(self._links)

        def outcome() -> Outcome:
            return commit_outcome(
                self._version, {number: link.progress for number, link in links.items()}, leader=self._leader,
                is_quorum=is_quorum, now=self._clock(), patience_s=self._settings.deadlines.heartbeat_s,
            )  # fmt: skip

        with self._replied:
            while (result := outcome()) == "wait":
                self._replied.wait(_LOOK_S)
        # Every follower holds the state: no earlier state counts any more.
        if result == "committed":
            self._committed = self._version
            # Until they know of the commit, followers require a quorum under the older state too.
            for link in links.values():
                link.send_heartbeat()
        return result

    def _on_reply(self) -> None:
        with self._replied:
            self._replied.notify_all()

    def close(self) -> None:
        """Sends the pending messages to all followers, for at most two seconds."""
        links, self._links = list(self._links.values()), {}
        with ThreadPoolExecutor(len(links) or 1) as pool:
            list(pool.map(lambda link: link.close(within_s=2.0), links))

    def _stamp(self, message: pb.ReplicateRequest) -> None:
        message.job, message.term, message.leader = self._settings.job, self.term, self._leader
        message.now, message.committed = self._clock(), self._committed
