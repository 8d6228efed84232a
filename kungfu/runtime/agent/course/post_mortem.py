"""What a job failed of: looked for among all that ended with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kungfu.runtime.agent.station import Station, name_of
from kungfu.runtime.deciding import cluster as decided
from kungfu.runtime.deciding.cluster import Cluster
from kungfu.runtime.deciding.failure import Failure, find_root_cause
from kungfu.runtime.wire import messages_pb2 as pb

__all__ = ["root_cause"]

# How long the head waits for further ends after the first failure: whom the others lost is the root, not they.
_ROOT_CAUSE_S = 3.0


def root_cause(
    station: Station, command: decided.Fail, cluster: Cluster, tails: Mapping[int, Sequence[str]]
) -> Failure:
    """Waits a moment for the ends of others, then takes the one that came first in the chain of causes.

    ``tails`` are the last lines of those who have ended, by peer.
    """
    ended, known = {command.peer: command.reason, **command.others}, dict(tails)
    deadline = time.monotonic() + _ROOT_CAUSE_S
    while (left := deadline - time.monotonic()) > 0 and not command.late:
        event = station.take(left)
        if event is None:
            break
        if isinstance(event, pb.Happening) and event.what == "ended" and event.code != 0:
            known[event.peer] = list(event.tail)
            if event.peer not in cluster.processes.parting:
                ended[event.peer] = decided.ending(event.code)
        if set(ended) >= cluster.alive | {command.peer}:
            break
    last_words = {peer: known.get(peer) or station.household.tail(peer) for peer in ended}
    names = {peer: name_of(peer, cluster) for peer in ended}
    return find_root_cause(ended, last_words, names=names, first=command.peer, late=command.late)
