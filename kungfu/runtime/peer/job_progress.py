"""The progress of the job, which a joiner requests from the peers that train: outcomes of phases, and a data position.

A joiner runs its program from the top, and so reaches every phase that the others have finished. It asks the agent
which phases are over, and requests their outcomes from a peer that took part in these phases or received the outcomes.
In the phase under way, the joiner may have to read data from the start. It requests the other peers' position in the
data, and reads up to that position. The joiner repeats both requests until it is ready, and meanwhile reports to its
agent that it is getting ready.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from kungfu.errors import DeadlineExceeded, KungfuError
from kungfu.event_log.events import CaughtUpEvent, TookOverEvent
from kungfu.runtime.core.sample_slices import Position
from kungfu.runtime.core.view import Peer
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import to_peer
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.peer.agent_client import AgentClient
from kungfu.runtime.settings import Settings

_CHUNK_BYTES = 1 << 20
_AGAIN_S = 0.2
_LOOK_S = 0.5
_REPORT_S = 5.0


class PhaseIsOver(Exception):  # noqa: N818 - nothing is wrong: it ends a wait
    """The phase for which this peer was getting ready is over; this peer's program continues with the next phase."""


class PastPhases:
    """The results of finished phases that are known to this peer. Thread-safe.

    Cost: the results stay in memory until the process ends, and are serialized again for each request of a peer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[int, Callable[[], bytes]] = {}

    def keep(self, number: int, content: Callable[[], bytes]) -> None:
        """Stores the result of phase ``number`` for other peers; ``content`` returns the serialized result."""
        with self._lock:
            self._contents[number] = content

    def content(self, number: int) -> bytes | None:
        """The serialized result of a phase; ``None`` if this peer does not know the result."""
        with self._lock:
            packed = self._contents.get(number)
        return None if packed is None else packed()

    def packed(self, number: int) -> bytes:
        """The serialized result of a phase whose number is in ``numbers()``."""
        content = self.content(number)
        assert content is not None
        return content

    def numbers(self) -> tuple[int, ...]:
        """The numbers of the phases whose results this peer knows, sorted."""
        with self._lock:
            return tuple(sorted(self._contents))

    def stream(self, number: int, context: Any) -> Iterator[pb.StateChunk]:
        """Yields the serialized result of a phase in messages of one megabyte, which are sent to another peer."""
        content = self.content(number)
        # This peer has just joined, or the phase is not over.
        if content is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this peer does not know what phase {number} came to")
            return
        for start in range(0, len(content), _CHUNK_BYTES):
            yield pb.StateChunk(data=content[start : start + _CHUNK_BYTES])


def phase_watch(agent_client: AgentClient, phase: int) -> Callable[[], None]:
    """A function to call while waiting for admission; raises `PhaseIsOver` once the agent reports the phase's end."""
    due = time.monotonic() + _LOOK_S

    def look() -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + _LOOK_S
        with suppress(KungfuError):  # no agent answers: a new leader is elected, or this process ends with its agent
            if agent_client.phase_progress().over >= phase:
                raise PhaseIsOver

    return look


def fetch_phase(number: int, settings: Settings, agent_client: AgentClient) -> bytes:
    """The result of a phase, from the first peer that knows it.

    Raises ``DeadlineExceeded`` if no peer sent the result within ``--deadline``."""
    deadline_s, why = settings.deadlines.wait_s, "no peer is there to ask"
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        for holder in map(to_peer, agent_client.phase_progress().holders):
            try:
                return _fetched(number, holder, settings, within_s=until - time.monotonic())
            # The holder was lost meanwhile, or joined too late itself: the next holder is asked.
            except KungfuError as error:
                why = str(error)
        time.sleep(_AGAIN_S)
    text = f"waited {deadline_s:.0f} s for what phase {number} of the job came to: {why}"
    raise DeadlineExceeded(text, waited_s=deadline_s)


def _fetched(number: int, holder: Peer, settings: Settings, *, within_s: float) -> bytes:
    with rpc.connect(holder.address, secret=settings.secret) as channel:
        try:
            chunks = PeerServiceStub(channel).FetchPhase(pb.PhaseRequest(number=number), timeout=max(0.1, within_s))
            return b"".join(chunk.data for chunk in chunks)
        except grpc.RpcError as error:
            what = f"peer {holder.id}, asked for what phase {number} came to"
            raise rpc.named(error, what=what, deadline_s=within_s, peer=holder.id) from error


class LocalPosition:
    """The position of this peer in its data, for other peers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.phase = 1
        self._read: Callable[[], Position | None] = lambda: None

    def begin_phase(self, number: int) -> None:
        """Starts a phase of the job, in which this peer has no position in its data yet."""
        with self._lock:
            self.phase, self._read = number, lambda: None

    def publish(self, read: Callable[[], Position | None]) -> None:
        """Sets the function that returns this peer's position in its data (``None`` before the first step)."""
        with self._lock:
            self._read = read

    def message(self) -> pb.DataPosition:
        """This peer's position as the reply to a joiner; the phase in the reply is 0 if the position is unknown."""
        with self._lock:
            phase, position = self.phase, self._read()
        if position is None:
            return pb.DataPosition()
        return pb.DataPosition(phase=phase, epoch=position.epoch, offset=position.offset)


class DataPositionClient:
    """Requests the training peers' position in the data for a joiner, and reports the joiner's progress in reading.

    Args:
        local: The position that this peer reports to others.
        settings: Contain the deadlines for each request and for the remaining reading.
        report_attached: Reports to the agent that this peer is getting ready.
    """

    def __init__(
        self,
        local: LocalPosition,
        agent_client: AgentClient,
        channels: rpc.ChannelPool,
        settings: Settings,
        *,
        report_attached: Callable[[], None],
    ) -> None:
        self.local, self._agent_client, self._channels, self._settings = local, agent_client, channels, settings
        self._report_attached, self._reported = report_attached, time.monotonic()

    @property
    def allowed_s(self) -> float:
        """Seconds for which a step may wait for this peer to read data in a new view: 1/4 of the longest wait."""
        return self._settings.deadlines.longest_wait_s / 4

    def log_caught_up(self, batches: int, seconds: float) -> None:
        """Logs the batches and seconds that this peer needed to read up to the position of the others."""
        event = CaughtUpEvent(peer=self._settings.peer, batches=batches, seconds=round(seconds, 3))
        self._agent_client.record("events", event)

    def log_took_over(self, samples: int, seconds: float) -> None:
        """Logs that this peer took over a part of the data and read samples from it, while the other peers waited."""
        event = TookOverEvent(peer=self._settings.peer, samples=samples, seconds=round(seconds, 3))
        self._agent_client.record("events", event)

    def of_others(self, phase: int, *, within_s: float = math.inf) -> Position | None:
        """The position of the peers that train this phase; ``None`` if no such peer answers or knows its position.

        Each peer has ``within_s`` seconds to answer, and at most ``--deadline``.
        """
        try:
            holders = self._agent_client.phase_progress().holders
        # No agent answers: this peer reads after it has entered the view.
        except KungfuError:
            return None
        deadline_s = min(within_s, self._settings.deadlines.wait_s)
        for peer in map(to_peer, holders):
            what, channel = f"peer {peer.id}, asked for its place", self._channels.to(peer.address)
            ask = PeerServiceStub(channel).GetPosition
            with suppress(KungfuError):  # the other peer was lost meanwhile: the next peer is asked
                found = rpc.call(ask, pb.Empty(), deadline_s=deadline_s, what=what, peer=peer.id)
                if found.phase == phase:
                    return Position(found.epoch, found.offset)
        return None

    def report_reading(self) -> None:
        """Reports, at most every five seconds, that this peer still reads data, and so is still getting ready."""
        now = time.monotonic()
        if now - self._reported < _REPORT_S:
            return
        self._reported = now
        with suppress(KungfuError):  # if the agent does not answer, the next report may reach it
            self._report_attached()
