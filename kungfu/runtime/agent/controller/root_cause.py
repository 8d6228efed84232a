"""Finds the failure at the root of a job's end, among all the peers that ended with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kungfu.runtime.agent.context import AgentContext
from kungfu.runtime.core.cluster import events as decided
from kungfu.runtime.core.cluster.cluster import Cluster, exit_in_words
from kungfu.runtime.core.failure import Failure, find_root_cause, named
from kungfu.runtime.ipc import messages_pb2 as pb

# How long the leader waits for further ends after the first failure: the peer that the others lost is the root.
_ROOT_CAUSE_S = 3.0


def root_cause(
    context: AgentContext, command: decided.Fail, cluster: Cluster, tails: Mapping[int, Sequence[str]]
) -> Failure:
    """Waits a moment for the ends of other peers, then takes the one that comes first in the chain of causes.

    Args:
        context: The agent's; ends that are waited for come from its queue.
        command: The failure that was seen first.
        cluster: The job when it was seen.
        tails: The last lines that each ended peer printed, by peer.

    Returns:
        The failure at the root, with the exit code of the job and the last output of that peer.

    Cost:
        At most three seconds; none where a deadline has expired, for then nobody has ended.
    """
    ended, known = {command.peer: command.reason, **command.others}, dict(tails)
    exit_kinds = {peer: departure.exit.kind for peer, departure in cluster.losses.exiting.items()}
    # Its process has not ended, but it has said what is wrong.
    if command.kind is not None:
        exit_kinds[command.peer] = command.kind
    awaited = cluster.alive - set(command.others)
    # Where the cause is known, only its own end is waited for, with its last output; else the ends of all others.
    awaited = awaited & {command.peer} if command.code is not None else awaited - {command.peer}
    deadline = time.monotonic() + _ROOT_CAUSE_S
    while awaited and not command.late and (left := deadline - time.monotonic()) > 0:
        event = context.take(left)
        # No other process has ended in time.
        if event is None:
            break
        # A program says why it ends before its process has ended.
        if isinstance(event, decided.ProgramExiting):
            exit_kinds[event.peer] = event.exit.kind
        elif isinstance(event, pb.HostEvent) and event.kind == pb.HOST_EVENT_KIND_ENDED:
            known[event.peer] = list(event.tail)
            awaited -= {event.peer}
            # This end may be the reason for the others.
            if _is_bad(event, cluster) and event.peer not in ended:
                ended[event.peer] = exit_in_words(event.code)
    last_words = {peer: known.get(peer) or context.supervisor.tail(peer) for peer in ended}
    ids = cluster.view.ids if cluster.view else ()
    ranks = {peer: rank for rank, peer in enumerate(ids) if peer in ended}
    # The cause is known: a program chose its exit code, say.
    if command.code is not None:
        text, output = named(command.peer, command.reason, ranks.get(command.peer)), tuple(last_words[command.peer])
        return Failure(command.peer, text, command.code, output, command.chosen)
    return find_root_cause(ended, last_words, ranks=ranks, first=command.peer, late=command.late, exit_kinds=exit_kinds)


def _is_bad(event: pb.HostEvent, cluster: Cluster) -> bool:
    """True if this end may be the cause of others; before the first view any end may."""
    return event.peer not in cluster.processes.released and (event.code != 0 or cluster.view is None)
