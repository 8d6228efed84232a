"""Carries one fault out: its moment, the peers that it hits, and the signals to their processes."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence

from kungfu.errors import UsageError
from kungfu.event_log.job import Job, JobHost, JobPeer
from kungfu.runtime.core.request import Resize, SaveCheckpoint
from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.processes import send_signal
from kungfu.testing.faults.schedule import (
    SignalHosts,
    SignalPeers,
    SlowPeers,
    Verb,
    What,
    When,
)

# Of those that are neither frozen nor thawed.
_SIGNALS: Mapping[Verb, signal.Signals] = {"kill": signal.SIGKILL, "notice": signal.SIGTERM}


def has_come(when: When, job: Job, *, calm: bool, begun: int, before: Mapping[str, int]) -> bool:
    """True if the moment of a fault has come, not counting the seconds after it.

    Args:
        when: The moment.
        job: The job according to its record.
        calm: True if it has settled from the previous faults.
        begun: The steps of the record when the schedule began.
        before: The numbers of events by kind that the record had after the fault before.
    """
    match when.moment:
        case "step":
            return job.steps >= when.number + begun * when.relative and (calm or not when.calm)
        case "barrier":
            return job.barriers >= when.number and (calm or not when.calm)
        case "next":
            return job.tally.counts.get(when.event, 0) > before.get(when.event, 0)
        case "settled":
            return calm
        case "now":
            return True


def hit_peers(what: What, job: Job, coming: Sequence[int]) -> tuple[int, ...]:
    """The ids of the peers that a fault hits; of one on hosts, all that they have started.

    Args:
        what: The fault.
        job: The job according to its record.
        coming: The joiners that were on their way when the moment came: one of them is hit even when it has joined.

    Raises:
        UsageError: There is no such peer or host.
    """
    if isinstance(what, Resize | SaveCheckpoint):
        return ()
    if isinstance(what, SignalHosts):
        # A host that stood still for long was given up, and may be thawed.
        known = {*(job.hosts if what.verb == "thaw" else job.hosts_present)}
        if not known >= {*what.hosts}:
            raise UsageError(f"there is no host to {what}: the hosts {sorted(known)} are in")
        return tuple(peer for host in what.hosts for peer in job.peers_of(host))
    members = job.members
    missing = [rank for rank in what.ranks if rank >= len(members)]
    joiner = job.joiners[-1:] or tuple(peer for peer in coming if peer in members)[-1:]
    if missing or not (what.ranks or joiner):
        raise UsageError(f"there is no peer to {what}; {job_state(job)}")
    return tuple(members[rank] for rank in what.ranks) or joiner


def processes_of(what: What, job: Job, peers: Collection[int]) -> list[JobHost | JobPeer]:
    """The processes that get the signals of a fault: its peers, or kungfu-run on its hosts."""
    return [job.hosts[host] for host in what.hosts] if isinstance(what, SignalHosts) else [*map(job.peer, peers)]


def carry_out(what: What, pids: Iterable[int], freezer: Freezer, *, longest_s: float) -> None:
    """Does to processes what a fault says; nothing where it asks the job for something.

    Args:
        what: The fault.
        pids: The processes.
        freezer: Thaws what is frozen for a time.
        longest_s: After this many seconds, what is frozen without saying for how long is thawed.
    """
    for pid in pids:
        match what:
            case SlowPeers(percent=percent, for_s=for_s):
                freezer.slow(pid, share=percent / 100, for_s=for_s)
            case SignalPeers(verb="freeze") | SignalHosts(verb="freeze"):
                freezer.freeze(pid, for_s=longest_s if what.for_s is None else what.for_s)
            case SignalPeers(verb="thaw") | SignalHosts(verb="thaw"):
                freezer.thaw(pid)
            case SignalPeers() | SignalHosts():
                send_signal(pid, _SIGNALS[what.verb])


def job_state(job: Job) -> str:
    """The training and the joining peers, in words."""
    return f"by step {job.steps} peers {list(job.members)} train and {list(job.joiners)} are on their way"
