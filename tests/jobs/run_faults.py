"""Carries a schedule of faults out on a job of a test: unlike ``inject``, a fault that cannot be had is an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.runtime.core.request import Resize
from kungfu.testing.faults import Fault, Freezer, JobWatcher, SignalHosts, SignalPeers, SlowPeers, When
from kungfu.testing.faults.inject import carry_out, has_come, hit_peers, job_state, processes_of
from kungfu.testing.faults.schedule import What

_LOOK_S = 0.01


def run_faults(
    faults: Sequence[Fault],
    folders: Sequence[Path],
    *,
    size: int,
    resize: Callable[[int], None],
    over: Callable[[], bool],
    deadline_s: float = 120.0,
) -> list[tuple[int, ...]]:
    """Carries out faults, one after the other, on a job that runs on this machine, and waits until it has settled.

    It has settled when it has the size that it is to have, and no joiner is on its way. What is frozen for a time, or
    slowed, runs again by then; what is frozen without a time stays frozen. Of the records the first one whose host was
    not hit counts. The moment of a fault must come within the deadline after the one before. Gives for each fault the
    ids of the peers that it hit; of one on hosts, all peers that these had started.
    """
    watches = [JobWatcher(one) for one in folders]
    carried, doomed, hosts, begun = list[tuple[int, ...]](), set[int](), set[int](), watches[0].look().steps
    await_moment = partial(_await, begun=begun, over=over, deadline_s=deadline_s)
    with Freezer() as freezer:
        for fault in faults:
            watch = _undisturbed(watches, hosts)
            coming = await_moment(fault.when, watch, size=size, doomed=doomed)
            job = watch.look()
            if isinstance(fault.what, Resize):
                size = fault.what.size
                resize(size)
            peers = hit_peers(fault.what, job, coming)
            pids = [one.pid for one in processes_of(fault.what, job, peers)]
            assert None not in pids, f"the record does not name a process of {fault}"
            _perform(fault.what, [pid for pid in pids if pid is not None], freezer)
            doomed = doomed - {*peers} if _spares(fault) else doomed | {*peers}
            if isinstance(fault.what, SignalHosts):
                hit = {*fault.what.hosts}
                # A host that was given up meanwhile writes no more of the record when it wakes.
                hosts = hosts - (hit & {*job.hosts_present}) if _spares(fault) else hosts | hit
            carried.append(peers)
        await_moment(When("settled"), _undisturbed(watches, hosts), size=size, doomed=doomed)
    return carried


def _perform(what: What, pids: Sequence[int], freezer: Freezer) -> None:
    if isinstance(what, SignalPeers | SignalHosts) and what.verb == "freeze" and what.for_s is None:
        # It stays frozen when this is over: the job gives it up, or another fault thaws it.
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    else:
        carry_out(what, pids, freezer, longest_s=0.0)


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
    deadline, before = time.monotonic() + deadline_s, watch.look().tally.counts
    while True:
        job = watch.look()
        calm = job.is_settled(size) and doomed.isdisjoint(job.members)
        if has_come(when, job, calm=calm, begun=begun, before=before):
            break
        if over():
            raise UsageError(f"the job ended before the moment {when}; let it train longer")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"waited {deadline_s:g} s for {when}; {job_state(job)}")
        time.sleep(_LOOK_S)
    coming = watch.look().joiners
    if when.after_s:
        time.sleep(when.after_s)
    return coming


def _spares(fault: Fault) -> bool:
    """Whether those that it hits may live on."""
    match fault.what:
        case SlowPeers():
            return True
        case SignalPeers() | SignalHosts():
            return fault.what.verb == "thaw" or fault.what.for_s is not None
    return False
