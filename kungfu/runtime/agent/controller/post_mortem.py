"""What a job failed of: looked for among all that ended with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kungfu.runtime.agent.context import Station, name_of
from kungfu.runtime.core import cluster as decided
from kungfu.runtime.core.cluster import Cluster
from kungfu.runtime.core.failure import Failure, find_root_cause, named
from kungfu.runtime.ipc import messages_pb2 as pb

__all__ = ["root_cause"]

# How long the head waits for further ends after the first failure: whom the others lost is the root, not they.
_ROOT_CAUSE_S = 3.0


def root_cause(
    station: Station, command: decided.Fail, cluster: Cluster, tails: Mapping[int, Sequence[str]]
) -> Failure:
    """Waits a moment for the ends of others, then takes the one that came first in the chain of causes.

    ``tails`` are the last lines of those who have ended, by peer. Where the cause is known, only its own end is waited
    for, with what it printed.
    """
    ended, known = {command.peer: command.reason, **command.others}, dict(tails)
    told = {peer: departure.exit.kind for peer, departure in cluster.losses.exiting.items()}
    if command.kind is not None:
        told[command.peer] = command.kind
    awaited = cluster.alive - set(command.others)
    awaited = awaited & {command.peer} if command.code is not None else awaited - {command.peer}
    deadline = time.monotonic() + _ROOT_CAUSE_S
    while awaited and not command.late and (left := deadline - time.monotonic()) > 0:
        event = station.take(left)
        if event is None:
            break
        if isinstance(event, decided.ProgramExiting):
            told[event.peer] = event.exit.kind
        elif isinstance(event, pb.Happening) and event.what == "ended":
            known[event.peer] = list(event.tail)
            awaited -= {event.peer}
            if _is_bad(event, cluster) and event.peer not in ended:
                ended[event.peer] = decided.exit_in_words(event.code)
    last_words = {peer: known.get(peer) or station.household.tail(peer) for peer in ended}
    names = {peer: name_of(peer, cluster) for peer in ended}
    if command.code is not None:
        text, output = named(command.peer, command.reason, names), tuple(last_words[command.peer])
        return Failure(command.peer, text, command.code, output, command.chosen)
    return find_root_cause(ended, last_words, names=names, first=command.peer, late=command.late, told=told)


def _is_bad(happening: pb.Happening, cluster: Cluster) -> bool:
    """Whether an end may be the cause of others': before the first view nobody may end at all."""
    return happening.peer not in cluster.processes.parting and (happening.code != 0 or cluster.view is None)
