"""The outcomes of the job's finished phases: every peer keeps them, and gives them to later joiners.

A joiner runs its program from the top, and so reaches every phase that the others have finished. It asks the agent
which phases are over, and requests their outcomes from a peer that took part in these phases or received the outcomes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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
    """The phase that this peer got ready for is over; the program of this peer continues with the next phase."""


class PastPhases:
    """The results of finished phases, as far as this peer knows them. Thread-safe.

    Cost:
        The argument of ``keep`` is held until the process ends, and packed again for each peer that asks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[int, Callable[[], bytes]] = {}

    def keep(self, number: int, content: Callable[[], bytes]) -> None:
        """Keeps the result of phase ``number`` for others; ``content`` returns it packed."""
        with self._lock:
            self._contents[number] = content

    def content(self, number: int) -> bytes | None:
        """The packed result of a phase; ``None`` if this peer does not know it."""
        with self._lock:
            packed = self._contents.get(number)
        return None if packed is None else packed()

    def packed(self, number: int) -> bytes:
        """The packed result of a phase that is in ``numbers``."""
        content = self.content(number)
        assert content is not None
        return content

    def numbers(self) -> tuple[int, ...]:
        """The numbers of the phases whose results this peer knows, sorted."""
        with self._lock:
            return tuple(sorted(self._contents))

    def stream(self, number: int, context: Any) -> Iterator[pb.StateChunk]:
        """Yields the packed result of a phase to another peer, in messages of one megabyte."""
        content = self.content(number)
        # This peer has just joined, or the phase is not over.
        if content is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"this peer does not know what phase {number} came to")
            return
        for start in range(0, len(content), _CHUNK_BYTES):
            yield pb.StateChunk(data=content[start : start + _CHUNK_BYTES])


def phase_watch(agent_client: AgentClient, phase: int) -> Callable[[], None]:
    """A function to call while waiting for admission; asks the agent twice a second, and may raise `PhaseIsOver`."""
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

    Raises:
        DeadlineExceeded: No peer sent the result within ``--wait``.
    """
    deadline_s, why = settings.deadlines.wait_s, "no peer is there to ask"
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        for holder in map(to_peer, agent_client.phase_progress().holders):
            try:
                return _fetched(number, holder, settings, within_s=until - time.monotonic())
            # The holder was lost meanwhile, or joined too late itself: the next one is asked.
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
