"""The processes that a job's record names: checks that they still exist and that this user may signal them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

from kungfu.event_log.job import Job
from kungfu.runtime.hosts import addresses_of, local_addresses

# The record has the time after a process began. A process that began this much later than recorded has reused its id.
_CLOCK_S = 2.0


def why_out_of_reach(pid: int | None, *, started_at: float | None) -> str:
    """The reason why a process cannot be signalled, in words; empty if it can.

    Args:
        pid: The id of the process; ``None`` if unknown.
        started_at: The time at which its start was recorded, in seconds since 1970; ``None`` if unknown.
    """
    if pid is None:
        return "the record does not name its process"
    try:
        process = psutil.Process(pid)
        began, owner, status = process.create_time(), process.uids().real, process.status()
    except psutil.NoSuchProcess:
        return f"process {pid} has ended"
    if status == psutil.STATUS_ZOMBIE:
        return f"process {pid} has ended"
    # Another process has reused the id.
    if started_at is not None and began > started_at + _CLOCK_S:
        return f"process {pid} has ended, and another one has its id now"
    if os.geteuid() not in (0, owner):
        return f"process {pid} is of another user (id {owner}), who alone may send it signals"
    return ""


def send_signal(pid: int, number: signal.Signals) -> None:
    """Sends a signal; does nothing if the process has just ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def local_hosts(job: Job) -> frozenset[int]:
    """The hosts of a job that are this machine: its only host, or the hosts whose names resolve to this machine."""
    own = local_addresses()
    names = {host: one.name for host, one in job.hosts.items() if one.name}
    here = {
        host for host, name in names.items() if any(one in own or one.startswith("127.") for one in addresses_of(name))
    }
    return frozenset(here if names else {0})
