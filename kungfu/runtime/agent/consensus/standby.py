"""What the head knows of its job, as every other agent holds it: whoever takes over goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cattrs.preconf.json import make_converter
from cattrs.strategies import configure_tagged_union

from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.core.requests import RequestLog
from kungfu.runtime.core.requests.job_request import Action
from kungfu.runtime.core.view import Peer

__all__ = ["Standby", "from_standby", "to_standby"]


@dataclass(frozen=True)
class Standby:
    """The state of a job between two events: the cluster, the requests, where peers listen and their process ids.

    ``heard`` is the number of the last happening that each host has told, ``incarnations`` is the agent of each that
    was taken in last.
    """

    cluster: Cluster
    ledger: RequestLog = field(default_factory=RequestLog)
    addresses: Mapping[int, Peer] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    heard: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, str] = field(default_factory=dict)


_converter = make_converter()
configure_tagged_union(Action, _converter)


def from_standby(standby: Standby) -> bytes:
    """The state as JSON.

    >>> from kungfu.runtime.core.cluster import Rules
    >>> from kungfu.runtime.settings import Deadlines
    >>> standby = Standby(Cluster(Rules(Deadlines())), pids={3: 4711})
    >>> to_standby(from_standby(standby)) == standby
    True
    """
    return bytes(_converter.dumps(standby), "utf-8")


def to_standby(text: bytes) -> Standby:
    """The state of a JSON text that ``from_standby`` made."""
    return _converter.loads(text, Standby)
