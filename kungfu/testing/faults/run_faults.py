"""Carries a schedule of faults out on a job that runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.testing.faults.carry_out import carry_out, has_come, hit_peers, job_state, processes_of
from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.job_watcher import JobWatcher
from kungfu.testing.faults.schedule import (
    Fault,
    RequestCheckpoint,
    ResizeJob,
    SignalHosts,
    SignalPeers,
    SlowPeers,
    When,
)

__all__ = ["FaultDone", "run_faults"]

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
    pause: Callable[[float], None] = time.sleep,
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
        pause: Waits for so many seconds.

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
    await_moment = partial(_await, begun=begun, over=over, deadline_s=deadline_s, pause=pause)
    with Freezer() as freezer:
        for fault in faults:
            watch = _undisturbed(watches, hosts)
            coming = await_moment(fault.when, watch, size=size, doomed=doomed)
            job = watch.look()
            if isinstance(fault.what, ResizeJob):
                size = fault.what.size
                resize(size)
            peers = hit_peers(fault.what, job, coming)
            carry_out(fault.what, [pid for pid, _ in processes_of(fault.what, job, peers)], freezer)
            doomed = doomed - {*peers} if _spares(fault) else doomed | {*peers}
            if isinstance(fault.what, SignalHosts):
                hit = {*fault.what.hosts}
                # A host that was given up meanwhile writes no more of the record when it wakes.
                hosts = hosts - (hit & {*job.hosts_present}) if _spares(fault) else hosts | hit
            carried.append(FaultDone(fault, job.steps, peers))
        await_moment(When("settled"), _undisturbed(watches, hosts), size=size, doomed=doomed)
    return carried


def _undisturbed(watches: Sequence[JobWatcher], hit: set[int]) -> JobWatcher:
    """The record of a host that was hit may have ended, or stand still."""
    return next((watch for host, watch in enumerate(watches) if host not in hit), watches[0])


def _await(
    when: When, watch: JobWatcher, *, size: int, doomed: set[int], begun: int, over: Callable[[], bool],
    deadline_s: float, pause: Callable[[float], None],
) -> tuple[int, ...]:  # fmt: skip
    """Gives those who were on their way when the moment came, which may lie ``after_s`` seconds back.

    Those who are doomed were hit by a fault: as long as they live, the job has not settled.
    """
    deadline, before = time.monotonic() + deadline_s, watch.look().counts
    while True:
        job = watch.look()
        calm = job.is_settled(size) and doomed.isdisjoint(job.members)
        if has_come(when, job, calm=calm, begun=begun, before=before):
            break
        if over():
            raise UsageError(f"the job ended before the moment {when}; let it train longer")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"waited {deadline_s:g} s for {when}; {job_state(job)}")
        pause(_LOOK_S)
    coming = watch.look().joiners
    if when.after_s:
        pause(when.after_s)
    return coming


def _spares(fault: Fault) -> bool:
    """Whether those that it hits may live on."""
    match fault.what:
        case SlowPeers():
            return True
        case SignalPeers() | SignalHosts():
            return fault.what.verb == "thaw" or fault.what.for_s is not None
    return False
