"""The state of a job that every agent holds: a new leader goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from cattrs.preconf.json import make_converter
from cattrs.strategies import configure_tagged_union

from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.core.requests import RequestLog
from kungfu.runtime.core.requests.job_request import Action
from kungfu.runtime.core.view import Peer

__all__ = ["JobSnapshot", "parse_snapshot", "serialize_snapshot"]


@dataclass(frozen=True)
class JobSnapshot:
    """The state of a job between two events.

    Args:
        cluster: The view, the processes and the hosts.
        request_log: What people and schedulers asked for, and what came of it.
        addresses: Where each peer listens, by its id.
        pids: The process id of each peer, by its id.
        last_events: The number of the last event that each host has reported.
        incarnations: Of the agent of each host, the one that was admitted last.
    """

    cluster: Cluster
    request_log: RequestLog = field(default_factory=RequestLog)
    addresses: Mapping[int, Peer] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    last_events: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, str] = field(default_factory=dict)


_converter = make_converter()
configure_tagged_union(Action, _converter)


def serialize_snapshot(snapshot: JobSnapshot) -> bytes:
    """The state as MessagePack: opaque to the wire, as a snapshot of Raft is.

    >>> from kungfu.runtime.core.cluster import Rules
    >>> from kungfu.runtime.settings import Deadlines
    >>> snapshot = JobSnapshot(Cluster(Rules(Deadlines())), pids={3: 4711})
    >>> parse_snapshot(serialize_snapshot(snapshot)) == snapshot
    True
    """
    return msgspec.msgpack.encode(_converter.unstructure(snapshot))


def parse_snapshot(encoded: bytes) -> JobSnapshot:
    """The state that ``serialize_snapshot`` wrote."""
    return _converter.structure(msgspec.msgpack.decode(encoded), JobSnapshot)
