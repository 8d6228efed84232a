"""The gRPC face of an agent to other agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.agent.consensus.orders import lost_after_s
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceServicer
from kungfu.runtime.settings import Settings

__all__ = ["Entering", "HeadLost", "HostService", "Ordered", "is_heard"]

_ANSWER_S = 4.0


@dataclass(frozen=True)
class Entering:
    """An agent wants to be in; ``reply`` takes the settings of the job's peers as text, or a refusal."""

    entrance: pb.Entrance
    reply: Future[pb.Welcome] = field(default_factory=Future)


@dataclass(frozen=True)
class Ordered:
    """The head says what to do."""

    orders: pb.Orders


@dataclass(frozen=True)
class HeadLost:
    """The head is lost, and how."""

    how: str


class HostService(HostServiceServicer):  # type: ignore[misc]  # generated without types
    """What agents may say to each other; ``put`` takes what the agent's main thread is to see to.

    ``started`` gives the peers that this host ever started. ``noted`` gives back control when all that was put before
    has been seen to, and whether it was.
    """

    def __init__(
        self,
        allegiance: Allegiance,
        hosts: Mapping[int, Host],
        settings: Settings,
        *,
        put: Callable[[object], None],
        started: Callable[[], list[int]],
        noted: Callable[[], bool],
    ) -> None:
        self._allegiance, self._hosts, self._settings = allegiance, hosts, settings
        self._put, self._started, self._noted = put, started, noted

    def Enter(self, request: pb.Entrance, context: Any) -> pb.Welcome:  # noqa: N802 - gRPC's name
        if not self._allegiance.leads:
            return pb.Welcome(later=bool(self._allegiance.job))  # there is a job: nobody may found another one
        entering = Entering(request)
        self._put(entering)
        try:
            return entering.reply.result(timeout=_ANSWER_S)
        except TimeoutError:
            # Either it is not taken in any more, or it was just now.
            return pb.Welcome(later=True) if entering.reply.cancel() else entering.reply.result(_ANSWER_S)

    def Follow(self, request: pb.Orders, context: Any) -> pb.Followed:  # noqa: N802 - gRPC's name
        if (why := self._allegiance.hear(request)) != "":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        if self._allegiance.is_new(request):
            self._put(Ordered(request))
        return pb.Followed(started=self._started())

    def Stand(self, request: pb.Ballot, context: Any) -> pb.Vote:  # noqa: N802 - gRPC's name
        allegiance = self._allegiance
        head = allegiance.head
        if head is not None and head != allegiance.place and not self._hears(head) and allegiance.lose():
            name = self._hosts[head].name
            self._put(HeadLost(f"host {name}, which led the job: neither this host nor another one hears its agent"))
        return allegiance.vote(request)

    def Happened(self, request: pb.Happening, context: Any) -> pb.Ack:  # noqa: N802 - gRPC's name
        if not self._allegiance.leads:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this host does not lead the job")
        self._put(request)
        if not self._noted():  # told again, to whoever leads then
            context.abort(grpc.StatusCode.UNAVAILABLE, "this host does not lead the job any more")
        return pb.Ack()

    def _hears(self, head: int) -> bool:
        silent = self._allegiance.silence_s() > lost_after_s(self._settings.deadlines)
        return not silent and is_heard(self._hosts[head])


def is_heard(host: Host) -> bool:
    """Whether an agent may live: only one whose port refuses does surely not."""
    return not rpc.is_refused(host.address)
