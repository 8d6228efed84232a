"""The position of training peers in data that are read from the start; a joiner requests it and reads up to it.

The joiner repeats the request until it is ready, and meanwhile reports to its agent that it is getting ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from kungfu.errors import KungfuError
from kungfu.event_log.events import CaughtUpEvent, TookOverEvent
from kungfu.runtime.core.sample_slices import Position
from kungfu.runtime.core.view import Peer
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import to_peer
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.peer.agent_client import AgentClient
from kungfu.runtime.settings import Settings

_REPORT_S = 5.0


class LocalPosition:
    """The position of this peer in its data, for other peers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.phase, self._read = 1, _unknown

    def begin_phase(self, number: int) -> None:
        """Starts a phase of the job, in which this peer has no position in its data yet."""
        with self._lock:
            self.phase, self._read = number, _unknown

    def publish(self, read: Callable[[], Position | None]) -> None:
        """Sets the function that gives the position of this peer; ``read`` returns ``None`` before the first step."""
        with self._lock:
            self._read = read

    def message(self) -> pb.DataPosition:
        """The answer to a joiner; its phase is 0 if the position of this peer is unknown."""
        with self._lock:
            phase, position = self.phase, self._read()
        if position is None:
            return pb.DataPosition()
        return pb.DataPosition(phase=phase, epoch=position.epoch, offset=position.offset)


class DataPositionClient:
    """Requests the position of training peers for a joiner, and reports the joiner's progress in reading.

    Args:
        local: The position that this peer reports to others.
        agent_client: Gives the peers that train.
        channels: Connections to other peers.
        settings: Gives the deadlines for each request and for the remaining reading.
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
        """Seconds for which this peer may read after entering the view, while a step waits: 1/4 of the longest wait."""
        return self._settings.deadlines.longest_wait_s / 4

    def log_caught_up(self, batches: int, seconds: float) -> None:
        """Logs the batches and seconds that this peer needed to read up to the position of the others."""
        event = CaughtUpEvent(peer=self._settings.peer, batches=batches, seconds=round(seconds, 3))
        self._agent_client.record("events", event)

    def log_took_over(self, samples: int, seconds: float) -> None:
        """Logs the samples that this peer read from a part of the data it took over, while the others waited."""
        event = TookOverEvent(peer=self._settings.peer, samples=samples, seconds=round(seconds, 3))
        self._agent_client.record("events", event)

    def of_others(self, phase: int) -> Position | None:
        """The position of the peers that train this phase; ``None`` if no such peer answers or knows its position."""
        deadline_s, what = self._settings.deadlines.wait_s, "peer {}, asked for its place"
        members = list[Peer]()
        with suppress(KungfuError):  # if no agent answers, this peer reads after it has entered the view
            members += map(to_peer, self._agent_client.phase_progress().holders)
        for peer in members:
            ask = PeerServiceStub(self._channels.to(peer.address)).GetPosition
            with suppress(KungfuError):  # the other peer was lost meanwhile: the next one is asked
                found = rpc.call(ask, pb.Empty(), deadline_s=deadline_s, what=what.format(peer.id), peer=peer.id)
                if found.phase == phase:
                    return Position(found.epoch, found.offset)
        return None

    def report_reading(self) -> None:
        """Reports, at most every five seconds, that this peer is still reading and so getting ready."""
        now = time.monotonic()
        if now - self._reported < _REPORT_S:
            return
        self._reported = now
        with suppress(KungfuError):  # if the agent does not answer, the next report may reach it
            self._report_attached()


def _unknown() -> Position | None:
    """The position before the first step."""
    return None
