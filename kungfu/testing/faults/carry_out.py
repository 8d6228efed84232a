"""Carries out one fault: checks its moment, selects its peers, and sends signals to their processes."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence

from kungfu.errors import UsageError
from kungfu.event_log.job import Job, JobHost, JobPeer
from kungfu.runtime.core.request import Resize, SaveCheckpoint
from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.processes import send_signal
from kungfu.testing.faults.schedule import SignalHosts, SignalPeers, SlowPeers, Verb, What, When

# The signals of the verbs other than freeze and thaw.
_SIGNALS: Mapping[Verb, signal.Signals] = {"kill": signal.SIGKILL, "notice": signal.SIGTERM}


def has_come(when: When, job: Job, *, calm: bool, begun: int, before: Mapping[str, int]) -> bool:
    """True if the moment of a fault has come, not counting the seconds after it. The job is ``calm`` if it has
    recovered from the previous faults; ``begun``: the recorded steps when the schedule began; ``before``: the numbers
    of events by kind in the record after the previous fault."""
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
    """The ids of the peers that a fault hits; for a fault on hosts, all peers that these hosts have started.

    Args:
        what: The fault.
        job: The job according to its record.
        coming: The joiners that were on their way when the moment came; such a peer counts even after it has joined.

    Raises:
        UsageError: There is no such peer or host.
    """
    if isinstance(what, Resize | SaveCheckpoint):
        return ()
    if isinstance(what, SignalHosts):
        # A host that was frozen for long was removed from the job, and may still be thawed.
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
    """The processes that receive the signals of a fault: its peers, or kungfu-run on its hosts."""
    return [job.hosts[host] for host in what.hosts] if isinstance(what, SignalHosts) else [*map(job.peer, peers)]


def carry_out(what: What, pids: Iterable[int], freezer: Freezer, *, longest_s: float) -> None:
    """Applies a fault to processes; does nothing for a fault that is a request to the job. A process is thawed after
    ``longest_s`` seconds if its fault names no time. ``UsageError`` if one that was to be slowed or frozen has ended,
    or may not be signalled."""
    for pid in pids:
        is_held = True
        match what:
            case SlowPeers(percent=percent, for_s=for_s):
                is_held = freezer.slow(pid, share=percent / 100, for_s=for_s)
            case SignalPeers(verb="freeze") | SignalHosts(verb="freeze"):
                is_held = freezer.freeze(pid, for_s=longest_s if what.for_s is None else what.for_s)
            case SignalPeers(verb="thaw") | SignalHosts(verb="thaw"):
                freezer.thaw(pid)
            case SignalPeers() | SignalHosts():
                send_signal(pid, _SIGNALS[what.verb])
        if not is_held:
            raise UsageError(f"process {pid} cannot be held: it has ended, or belongs to another user")


def job_state(job: Job) -> str:
    """The peers in training and the joiners, in words."""
    return f"by step {job.steps} peers {list(job.members)} train and {list(job.joiners)} are on their way"
