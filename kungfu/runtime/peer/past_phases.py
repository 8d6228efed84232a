"""Phases of the job that are over: what each came to is kept by every peer, and given to those that join later.

A joiner runs its program from the top, so it comes by every phase that the others have done. It asks the agent which
are over, and one of the peers that were in them, or have passed through them, what they came to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from kungfu.errors import DeadlineExceeded, KungfuError
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


class PhaseIsOver(Exception):  # noqa: N818 - nothing is wrong: it ends a wait
    """The phase that this peer got ready for is over: it continues in its program, to the next one."""


class PastPhases:
    """The results of finished phases, as this peer knows them; any thread may ask.

    Cost:
        What ``keep`` is given is held until the process ends, and packed again for each peer that asks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[int, Callable[[], bytes]] = {}

    def keep(self, number: int, content: Callable[[], bytes]) -> None:
        """Keeps the result of phase ``number`` for others; ``content`` packs it."""
        with self._lock:
            self._contents[number] = content

    def content(self, number: int) -> bytes | None:
        """The result of a phase; ``None`` if this peer does not know it."""
        with self._lock:
            packed = self._contents.get(number)
        return None if packed is None else packed()

    def packed(self, number: int) -> bytes:
        """The packed result of a phase that is in ``numbers``."""
        content = self.content(number)
        assert content is not None
        return content

    def numbers(self) -> tuple[int, ...]:
        """The phases that this peer knows, in their order."""
        with self._lock:
            return tuple(sorted(self._contents))

    def stream(self, number: int, context: Any) -> Iterator[pb.StateChunk]:
        """The answer to another peer, in messages of one megabyte."""
        content = self.content(number)
        # It has just come itself, or asks for a phase that is not over.
        if content is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this peer does not know what phase {number} came to")
            return
        for start in range(0, len(content), _CHUNK_BYTES):
            yield pb.StateChunk(data=content[start : start + _CHUNK_BYTES])


class PhaseWatch:
    """Notices, while a peer waits to be admitted, that the phase is over which it got ready for."""

    def __init__(self, agent_client: AgentClient, phase: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent_client, self._phase, self._clock = agent_client, phase, clock
        self._next = clock() + _LOOK_S

    def look(self) -> None:
        """Asks the agent now and then; raises `PhaseIsOver`."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + _LOOK_S
        try:
            over = self._agent_client.phase_progress().over
        # No agent answers now: another one is elected, or this process ends with its own.
        except KungfuError:
            return
        if over >= self._phase:
            raise PhaseIsOver


def fetch_phase(number: int, settings: Settings, agent_client: AgentClient) -> bytes:
    """The result of a phase, from the first peer that knows it.

    Raises:
        DeadlineExceeded: No peer knew it within ``--wait``.
    """
    deadline_s, why = settings.deadlines.wait_s, "no peer is there to ask"
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        holders: Sequence[Peer] = [to_peer(one) for one in agent_client.phase_progress().holders]
        for holder in holders:
            try:
                return _fetched(number, holder, settings, within_s=until - time.monotonic())
            # It was lost meanwhile, or has come too late itself: another one is asked.
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
