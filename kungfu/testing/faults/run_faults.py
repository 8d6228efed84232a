"""Carries a schedule of faults out on a job that runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.testing.faults.job_view import JobView, JobWatcher
from kungfu.testing.faults.schedule import Fault, ResizeJob, SignalHosts, SignalPeers, Verb, When

__all__ = ["FaultDone", "run_faults"]

_SIGNALS: dict[Verb, signal.Signals] = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "continue": signal.SIGCONT,
    "notice": signal.SIGTERM,
}
_LOOK_S = 0.01


@dataclass(frozen=True)
class FaultDone:
    """A fault that was carried out.

    Args:
        fault: The fault.
        step: The steps of the record at that time.
        peers: The ids of the peers that it hit; of a fault on hosts, all peers that these had started.
    """

    fault: Fault
    step: int
    peers: tuple[int, ...] = ()


def run_faults(
    faults: Sequence[Fault],
    folder: Path | Sequence[Path],
    *,
    size: int,
    resize: Callable[[int], None],
    over: Callable[[], bool] = lambda: False,
    deadline_s: float = 120.0,
) -> list[FaultDone]:
    """Carries out faults, one after the other, on a job that runs on this machine.

    The peers that are hit follow from the job's record, and signals go to processes by the ids in it. Returns when the
    job has settled from the last fault: it has the size that it shall have, and no joiner is on its way.

    Args:
        faults: The faults, in their order.
        folder: The folder of the job's record. A job of several hosts has one for each, in the order of the hosts; the
            first one whose host was not hit counts.
        size: The peers of the job.
        resize: Asks the job for a size.
        over: Whether the job has ended.
        deadline_s: Seconds within which the moment of a fault must come after the one before.

    Raises:
        DeadlineExceeded: The moment of a fault did not come in time.
        UsageError: The job ended before, or has no peer that a fault could hit.
    """
    watches = [JobWatcher(one) for one in ([folder] if isinstance(folder, Path) else folder)]
    carried, doomed, hosts = list[FaultDone](), set[int](), set[int]()
    for fault in faults:
        watch = _undisturbed(watches, hosts)
        coming = _await(fault.when, watch, size=size, doomed=doomed, over=over, deadline_s=deadline_s)
        view = watch.look()
        if isinstance(fault.what, ResizeJob):
            size = fault.what.size
            resize(size)
        peers = _hit(fault.what, view, coming)
        doomed = doomed - {*peers} if _spares(fault) else doomed | {*peers}
        if isinstance(fault.what, SignalHosts):
            hit = {*fault.what.hosts}  # who was given up meanwhile writes no more of the record when it may go on
            hosts = hosts - (hit & view.hosts) if _spares(fault) else hosts | hit
        carried.append(FaultDone(fault, view.steps, peers))
    watch = _undisturbed(watches, hosts)
    _await(When("settled"), watch, size=size, doomed=doomed, over=over, deadline_s=deadline_s)
    return carried


def _undisturbed(watches: Sequence[JobWatcher], hit: set[int]) -> JobWatcher:
    """The record of a host that was hit may have ended, or stand still."""
    return next((watch for host, watch in enumerate(watches) if host not in hit), watches[0])


def _await(
    when: When, watch: JobWatcher, *, size: int, doomed: set[int], over: Callable[[], bool], deadline_s: float
) -> tuple[int, ...]:
    """Gives those who were on their way when the moment came, which may lie ``after_s`` seconds back."""
    deadline, before = time.monotonic() + deadline_s, len(watch.look().kinds)
    while not _has_come(when, watch.look(), size=size, doomed=doomed, before=before):
        if over():
            raise UsageError(f"the job ended before the moment {when}; let it train longer")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"waited {deadline_s:g} s for {when}; {_state(watch.look())}")
        time.sleep(_LOOK_S)
    coming = watch.look().joiners
    time.sleep(when.after_s)
    return coming


def _has_come(when: When, view: JobView, *, size: int, doomed: set[int], before: int) -> bool:
    """Those who are doomed were hit by a fault: as long as they live, the job has not settled."""
    if when.moment == "step":
        return view.steps >= when.number
    if when.moment == "barrier":
        return len(view.barriers) >= when.number
    if when.moment == "next":
        return when.event in view.kinds[before:]
    return view.settled(size) and doomed.isdisjoint(view.members)


def _hit(what: SignalPeers | SignalHosts | ResizeJob, view: JobView, coming: Sequence[int]) -> tuple[int, ...]:
    if isinstance(what, ResizeJob):
        return ()
    return _hit_peers(what, view, coming) if isinstance(what, SignalPeers) else _hit_hosts(what, view)


def _hit_hosts(what: SignalHosts, view: JobView) -> tuple[int, ...]:
    known = {*view.agents} if what.verb == "continue" else view.hosts  # who stood still for long was given up
    if not known >= {*what.hosts}:
        raise UsageError(f"there is nobody to {what}: the hosts {sorted(known)} are in")
    for host in what.hosts:
        _send(view.agents[host], _SIGNALS[what.verb])
    return tuple(peer for host in what.hosts for peer in view.peers_of(host))


def _hit_peers(what: SignalPeers, view: JobView, coming: Sequence[int]) -> tuple[int, ...]:
    members = view.members
    missing = [rank for rank in what.ranks if rank >= len(members)]
    joiner = view.joiners[-1:] or tuple(peer for peer in coming if peer in members)[-1:]
    if missing or not (what.ranks or joiner):
        raise UsageError(f"there is nobody to {what}; {_state(view)}")
    peers = tuple(members[rank] for rank in what.ranks) or joiner
    for peer in peers:
        _send(view.pids[peer], _SIGNALS[what.verb])
    return peers


def _spares(fault: Fault) -> bool:
    return isinstance(fault.what, SignalPeers | SignalHosts) and fault.what.verb == "continue"


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has just ended by itself: no fault is lost by that


def _state(view: JobView) -> str:
    return f"by step {view.steps} peers {list(view.members)} train and {list(view.joiners)} are on their way"
