"""Carries a schedule of faults out on a job that runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.job_view import JobView, JobWatcher
from kungfu.testing.faults.processes import send_signal
from kungfu.testing.faults.schedule import (
    Fault,
    RequestCheckpoint,
    ResizeJob,
    SignalHosts,
    SignalPeers,
    SlowPeers,
    Verb,
    What,
    When,
)

__all__ = ["FaultDone", "carry_out", "has_come", "hit_peers", "job_state", "pids_of", "run_faults"]

_SIGNALS: dict[Verb, signal.Signals] = {
    "kill": signal.SIGKILL,
    "freeze": signal.SIGSTOP,
    "thaw": signal.SIGCONT,
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
    job has settled from the last fault: it has the size that it shall have, and no joiner is on its way. What is frozen
    for some seconds, or slowed, runs again by then; what is frozen without them stays frozen.

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
        UsageError: The job ended before, or has no peer that a fault could hit; or it is to write a checkpoint, which
            only ``kungfu chaos`` asks a job for.
    """
    if any(isinstance(fault.what, RequestCheckpoint) for fault in faults):
        raise UsageError(
            "run_faults asks for no checkpoint: leave `checkpoint` out, or give the schedule to kungfu chaos"
        )
    watches = [JobWatcher(one) for one in ([folder] if isinstance(folder, Path) else folder)]
    carried, doomed, hosts, begun = list[FaultDone](), set[int](), set[int](), watches[0].look().steps
    with Freezer() as freezer:
        for fault in faults:
            watch = _undisturbed(watches, hosts)
            coming = _await(fault.when, watch, size=size, doomed=doomed, begun=begun, over=over, deadline_s=deadline_s)
            view = watch.look()
            if isinstance(fault.what, ResizeJob):
                size = fault.what.size
                resize(size)
            peers = hit_peers(fault.what, view, coming)
            carry_out(fault.what, pids_of(fault.what, view, peers), freezer)
            doomed = doomed - {*peers} if _spares(fault) else doomed | {*peers}
            if isinstance(fault.what, SignalHosts):
                hit = {
                    *fault.what.hosts
                }  # a host that was given up meanwhile writes no more of the record when it wakes
                hosts = hosts - (hit & view.hosts) if _spares(fault) else hosts | hit
            carried.append(FaultDone(fault, view.steps, peers))
        watch = _undisturbed(watches, hosts)
        _await(When("settled"), watch, size=size, doomed=doomed, begun=begun, over=over, deadline_s=deadline_s)
    return carried


def _undisturbed(watches: Sequence[JobWatcher], hit: set[int]) -> JobWatcher:
    """The record of a host that was hit may have ended, or stand still."""
    return next((watch for host, watch in enumerate(watches) if host not in hit), watches[0])


def _await(
    when: When, watch: JobWatcher, *, size: int, doomed: set[int], begun: int, over: Callable[[], bool],
    deadline_s: float,
) -> tuple[int, ...]:  # fmt: skip
    """Gives those who were on their way when the moment came, which may lie ``after_s`` seconds back.

    Those who are doomed were hit by a fault: as long as they live, the job has not settled.
    """
    deadline, before = time.monotonic() + deadline_s, len(watch.look().kinds)
    while True:
        view = watch.look()
        calm = view.settled(size) and doomed.isdisjoint(view.members)
        if has_come(when, view, calm=calm, begun=begun, before=before):
            break
        if over():
            raise UsageError(f"the job ended before the moment {when}; let it train longer")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"waited {deadline_s:g} s for {when}; {job_state(view)}")
        time.sleep(_LOOK_S)
    coming = watch.look().joiners
    time.sleep(when.after_s)
    return coming


def has_come(when: When, view: JobView, *, calm: bool, begun: int, before: int) -> bool:
    """Whether the moment of a fault has come, but for the seconds after it.

    Args:
        when: The moment.
        view: The job as its record tells of it.
        calm: Whether it has settled from the faults before.
        begun: The steps of the record when the schedule began.
        before: How many events the record had after the fault before.
    """
    match when.moment:
        case "step":
            return view.steps >= when.number + begun * when.relative and (calm or not when.calm)
        case "barrier":
            return len(view.barriers) >= when.number and (calm or not when.calm)
        case "next":
            return when.event in view.kinds[before:]
        case "settled":
            return calm
        case "now":
            return True


def hit_peers(what: What, view: JobView, coming: Sequence[int]) -> tuple[int, ...]:
    """The ids of the peers that a fault hits; of one on hosts, all that they have started.

    Args:
        what: The fault.
        view: The job as its record tells of it.
        coming: The joiners that were on their way when the moment came: one of them is hit even when it has joined.

    Raises:
        UsageError: There is no such peer or host.
    """
    if isinstance(what, ResizeJob | RequestCheckpoint):
        return ()
    if isinstance(what, SignalHosts):
        known = {*view.agents} if what.verb == "thaw" else view.hosts  # a host that stood still for long was given up
        if not known >= {*what.hosts}:
            raise UsageError(f"there is nobody to {what}: the hosts {sorted(known)} are in")
        return tuple(peer for host in what.hosts for peer in view.peers_of(host))
    members = view.members
    missing = [rank for rank in what.ranks if rank >= len(members)]
    joiner = view.joiners[-1:] or tuple(peer for peer in coming if peer in members)[-1:]
    if missing or not (what.ranks or joiner):
        raise UsageError(f"there is nobody to {what}; {job_state(view)}")
    return tuple(members[rank] for rank in what.ranks) or joiner


def pids_of(what: What, view: JobView, peers: Collection[int]) -> tuple[int, ...]:
    """The ids of the processes that get the signals of a fault: those of its peers, or of kungfu-run on its hosts."""
    if isinstance(what, SignalHosts):
        return tuple(view.agents[host] for host in what.hosts)
    return tuple(view.pids[peer] for peer in peers)


def carry_out(what: What, pids: Iterable[int], freezer: Freezer, *, longest_s: float | None = None) -> None:
    """Does to processes what a fault says; nothing where it asks the job for something.

    Args:
        what: The fault.
        pids: The processes.
        freezer: Thaws what is frozen for a time.
        longest_s: After so many seconds, what is frozen without saying for how long is thawed; ``None`` for never.
    """
    for pid in pids:
        match what:
            case SlowPeers(percent=percent, for_s=for_s):
                freezer.slow(pid, share=percent / 100, for_s=for_s)
            case SignalPeers(verb="freeze") | SignalHosts(verb="freeze"):
                frozen_s = longest_s if what.for_s is None else what.for_s
                if frozen_s is None:
                    send_signal(pid, signal.SIGSTOP)
                else:
                    freezer.freeze(pid, for_s=frozen_s)
            case SignalPeers(verb="thaw") | SignalHosts(verb="thaw"):
                freezer.thaw(pid)
            case SignalPeers() | SignalHosts():
                send_signal(pid, _SIGNALS[what.verb])


def _spares(fault: Fault) -> bool:
    """Whether those that it hits may live on."""
    match fault.what:
        case SlowPeers():
            return True
        case SignalPeers() | SignalHosts():
            return fault.what.verb == "thaw" or fault.what.for_s is not None
    return False


def job_state(view: JobView) -> str:
    """Who trains and who is on the way, in words."""
    return f"by step {view.steps} peers {list(view.members)} train and {list(view.joiners)} are on their way"
