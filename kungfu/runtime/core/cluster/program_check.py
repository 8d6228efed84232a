"""The check that a starting peer runs the program of the job, by digest, once it is ready and before a view admits it.

The first peers must all run the same program, else the job ends: nobody can say which of them is right. A later joiner
must run the program of the peers that train. Where digests differ, the descriptions are fetched
(``ComparePrograms``); the answer (``ProgramDiffers``) decides nothing any more, it says what differs.
"""

from __future__ import annotations

from dataclasses import replace

from kungfu.runtime.core.cluster.cluster import Cluster, Starting, Transition, mark_to_kill
from kungfu.runtime.core.cluster.events import AdmitFirstView, Command, ComparePrograms, Fail, Kill, ReportMachines
from kungfu.runtime.core.view import View

UNLIKE_CODE = 2
_ANOTHER = "its program is not that of the job"


def form_first_view(cluster: Cluster) -> Transition:
    """All first peers are ready: their view, if they are alike."""
    entries = [entry for _, entry in sorted(cluster.starting.items())]
    peers = tuple(entry.peer for entry in entries if entry.peer is not None)
    identity = entries[0].identity
    for peer, entry in zip(peers, entries, strict=True):
        if entry.identity.program != identity.program:
            # The answer will end the job, and tell what differs.
            return cluster, [ComparePrograms(peers[:1], peer)]
    # A resumed job may begin with a later phase.
    phases = replace(cluster.phases, number=entries[0].phase)
    cluster = replace(cluster, identity=identity, phases=phases)
    # Machines may differ, though they may round in another way: people are told.
    others = {
        peer.id: entry.identity.machine
        for peer, entry in zip(peers, entries, strict=True)
        if entry.identity.machine != identity.machine
    }
    remarks: list[Command] = [ReportMachines(identity.machine, others)] if others else []
    return cluster, [*remarks, AdmitFirstView(View(1, peers))]


def runs_same_program(cluster: Cluster, entry: Starting) -> bool:
    """Whether this peer, which is ready, may come into the view: before the first one that is decided together."""
    return cluster.view is None or entry.identity.program == cluster.identity.program


def compare_waiting(cluster: Cluster) -> list[Command]:
    """The comparisons that are under way: of joiners that are ready, and not known to run the same program."""
    if cluster.view is None:
        # Before the first view all are compared together.
        return []
    members = tuple(peer for peer in cluster.view.peers if peer.id in cluster.members)
    if not members:
        # No member is left that could describe the job's program.
        return []
    waiting = [
        entry.peer for _, entry in sorted(cluster.starting.items()) if entry.peer is not None and not entry.ready
    ]
    return [ComparePrograms(members, peer) for peer in waiting]


def fail_as_different(how: str) -> Fail:
    """The end of a job whose first peers differ."""
    return Fail(-1, f"the peers of this job must run the same program: {how}", code=UNLIKE_CODE)


def dismiss_as_different(cluster: Cluster, peer: int, how: str) -> Transition:
    """Dismisses a joiner that differs; no other one comes in its place, since it would run the same program."""
    starting = {other: entry for other, entry in cluster.starting.items() if other != peer}
    cluster = replace(cluster, starting=starting, missing={**cluster.missing, peer: _ANOTHER})
    return mark_to_kill(cluster, [peer]), [Kill(peer, f"{_ANOTHER}: {how}")]
