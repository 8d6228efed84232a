"""The position of training peers in data that are read from their start: a joiner requests it and reads up to there.

It asks again and again before it is ready, and says meanwhile to its agent that it is on its way.
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


class OwnPosition:
    """The position of this peer, for others; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase, self._read = 1, _unknown

    def begin_phase(self, number: int) -> None:
        """This peer gets ready for a phase of the job, and is nowhere in its data yet."""
        with self._lock:
            self._phase, self._read = number, _unknown

    def tell(self, read: Callable[[], Position | None]) -> None:
        """From now on others are told what ``read`` gives; ``None`` before the first step."""
        with self._lock:
            self._read = read

    def message(self) -> pb.DataPosition:
        """The answer to a joiner: of phase 0 if this peer does not know."""
        with self._lock:
            phase, position = self._phase, self._read()
        if position is None:
            return pb.DataPosition()
        return pb.DataPosition(phase=phase, epoch=position.epoch, offset=position.offset)


class DataPositionClient:
    """A joiner's side.

    Args:
        own: The position that this peer reports to others.
        agent_client: Knows which peers train.
        channels: To these.
        settings: Its deadlines bound each question, and what may be left to read.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        own: OwnPosition,
        agent_client: AgentClient,
        channels: rpc.ChannelPool,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own, self._agent_client, self._channels, self._settings = own, agent_client, channels, settings
        self._clock, self._reported = clock, clock()

    @property
    def allowed_s(self) -> float:
        """The seconds this peer may read once it is in the view, while a step waits: well within the deadline."""
        return self._settings.deadlines.longest_wait_s / 4

    def record(self, batches: int, seconds: float) -> None:
        """The record tells what this peer has read to come to where the others are."""
        event = CaughtUpEvent(peer=self._settings.peer, batches=batches, seconds=round(seconds, 3))
        self._agent_client.record("events", event)

    def record_taken_over(self, samples: int, seconds: float) -> None:
        """The record tells what this peer has read of a part of the data that it took over, while the others waited."""
        event = TookOverEvent(peer=self._settings.peer, samples=samples, seconds=round(seconds, 3))
        self._agent_client.record("events", event)

    def of_others(self, phase: int) -> Position | None:
        """The position of the peers that train this phase; ``None`` if none does, or knows."""
        try:
            members = [to_peer(one) for one in self._agent_client.phase_progress().holders]
        # No agent answers now: without the position this peer reads when it is in the view.
        except KungfuError:
            return None
        for peer in members:
            told = self._asked(peer)
            if told.phase == phase:
                return Position(told.epoch, told.offset)
        return None

    def report_reading(self) -> None:
        """This peer reads: it is on its way, however long that takes."""
        now = self._clock()
        if now - self._reported < _REPORT_S:
            return
        self._reported = now
        with suppress(KungfuError):  # an agent that does not answer hears it later
            self._agent_client.report_attached()

    def _asked(self, peer: Peer) -> pb.DataPosition:
        ask, what = PeerServiceStub(self._channels.to(peer.address)).GetPosition, f"peer {peer.id}, asked for its place"
        deadline_s = self._settings.deadlines.wait_s
        try:
            told: pb.DataPosition = rpc.call(ask, pb.Empty(), deadline_s=deadline_s, what=what, peer=peer.id)
        # It was lost meanwhile: another one is asked.
        except KungfuError:
            return pb.DataPosition()
        return told


def _unknown() -> Position | None:
    return None
