"""Peers, views and runs of events that the tests of the cluster share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, JobLimits
from kungfu.runtime.core.cluster.events import Command, Event, PeerProgressed, ViewStarted
from kungfu.runtime.core.cluster.transitions import react, start_job
from kungfu.runtime.core.next_membership import Decision
from kungfu.runtime.core.program_identity import Identity
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Deadlines

JOB_LIMITS = JobLimits(Deadlines(ready_s=100.0, wait_s=10.0))
USUAL = "2 threads, one processor"
Kind = TypeVar("Kind", bound=Command)


def peer(id_: int) -> Peer:
    return Peer(id_, f"host:{id_}")


def view_of(*ids: int, version: int = 1) -> View:
    return View(version, tuple(peer(id_) for id_ in ids))


def wants(size: int, host: int | None = None, leaving: tuple[int, ...] = ()) -> Decision:
    """The decision of a barrier for a number of processes."""
    return Decision(View(0, ()), Terms(leaving=leaving), size, host)


def after(cluster: Cluster, *events: Event, now: float = 1.0) -> tuple[Cluster, list[Command]]:
    """The cluster after the events, and all their commands."""
    commands: list[Command] = []
    for event in events:
        cluster, more = react(cluster, event, now)
        commands.extend(more)
    return cluster, commands


def sole(kind: type[Kind], commands: Iterable[Command]) -> Kind:
    """The only command, which is of this kind."""
    (found,) = commands
    assert isinstance(found, kind)
    return found


def all_of(kind: type[Kind], commands: Iterable[Command]) -> list[Kind]:
    """The commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]


def one_of(kind: type[Kind], commands: Iterable[Command]) -> Kind:
    """The command of a kind, of which there is one."""
    return sole(kind, all_of(kind, commands))


def formed(cluster: Cluster) -> View:
    """The view of survivors that was formed."""
    assert cluster.regrouping is not None
    assert cluster.regrouping.formed is not None
    return cluster.regrouping.formed


def ready(id_: int, phase: int = 1, program: str = "p", machine: str = USUAL) -> PeerProgressed:
    """A peer is ready."""
    return PeerProgressed(peer(id_), ready=True, identity=Identity(program, machine), phase=phase)


def started(size: int) -> Cluster:
    """A cluster whose first peers start."""
    return start_job(size, limits=JOB_LIMITS, now=0.0)[0]


def training(*ids: int, limits: JobLimits = JOB_LIMITS, hosts: Hosts | None = None) -> Cluster:
    """A cluster of these peers, in its first view."""
    first, _ = start_job(len(ids), limits=limits, now=0.0, hosts=hosts)
    return after(first, *map(ready, ids), ViewStarted(view_of(*ids)))[0]
