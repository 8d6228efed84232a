"""A preview of a fault schedule on the present job: the processes it hits, and the faults that are not possible."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kungfu.event_log.job import Job
from kungfu.event_log.values import counted, duration
from kungfu.runtime.core.request import Resize, SaveCheckpoint
from kungfu.runtime.job_api.status import JobStatus
from kungfu.testing.faults import (
    Fault,
    SignalHosts,
    SignalPeers,
    SlowPeers,
)
from kungfu.testing.faults.inject import seconds_held, why_elsewhere, why_gone, why_it_would_end
from kungfu.testing.faults.schedule import What


@dataclass(frozen=True)
class ForeseenFault:
    """A fault as it would be carried out now.

    Args:
        when: Its moment, in the words of the schedule.
        what: The effect of the fault, in those words.
        hits: The processes, in words: peer, host and process id.
        obstacle: Why it cannot be carried out; empty if it can.
        ends_job: True if the reason is that it would certainly end the job.
        remark: A remark on it.
    """

    when: str
    what: str
    hits: str
    obstacle: str = ""
    ends_job: bool = False
    remark: str = ""


def foresee(
    faults: Sequence[Fault],
    job: Job,
    status: JobStatus,
    *,
    local_hosts: Collection[int],
    own_agent: int,
    is_watched: bool,
    within_s: float,
) -> list[ForeseenFault]:
    """Each fault as it would be carried out, were its moment now. Resizes before it count; losses do not.

    Args:
        faults: The schedule.
        job: The job as its record tells of it.
        status: The job as it is.
        local_hosts: The hosts of the job that are this machine.
        own_agent: The process id of the kungfu-run whose record is read.
        is_watched: True if the record of another host is followed as well.
        within_s: The longest time that a peer is frozen without saying for how long.
    """
    size, foreseen = len(job.members), list[ForeseenFault]()
    for fault in faults:
        what = fault.what
        ends = _why_it_would_end(what, job, size=size)
        obstacle = ends or next(
            _obstacles(what, job, status, local=local_hosts, own_agent=own_agent, is_watched=is_watched), ""
        )
        foreseen.append(
            ForeseenFault(
                str(fault.when), fault.action, _hits(what, job), obstacle, bool(ends), _remark(what, within_s=within_s)
            )
        )
        size = what.size if isinstance(what, Resize) else size
    return foreseen


def _why_it_would_end(what: What, job: Job, *, size: int) -> str:
    """Why a fault would end the job for sure, whose size is what the resizes before make of it; empty otherwise."""
    match what:
        case SignalPeers(verb="kill", ranks=ranks) if ranks and {*range(size)} <= {*ranks}:
            return f"the job would have {counted(size, 'peer')} then, and it ends with the last that holds its state"
        case SignalHosts(hosts=hosts):
            on_them = [peer for peer in job.members if job.peer(peer).host in hosts]
            return why_it_would_end(what, job, on_them, living=job.members)
    return ""


def _obstacles(
    what: What, job: Job, status: JobStatus, *, local: Collection[int], own_agent: int, is_watched: bool
) -> Iterator[str]:
    limits = status.membership
    match what:
        case Resize() if status.scaling == "inelastic":
            yield "the job takes no change of its peers from outside (kungfu-run --inelastic)"
        case Resize(size) if not limits.minimum <= size <= limits.maximum:
            yield f"the job takes {limits.minimum} to {limits.maximum} peers"
        case SignalPeers(ranks=ranks) | SlowPeers(ranks=ranks) if any(rank >= limits.maximum for rank in ranks):
            yield f"the job never has more than {counted(limits.maximum, 'peer')}: the ranks begin with 0"
        case SignalHosts(hosts=hosts) if strange := {*hosts} - {*job.hosts}:
            there = ", ".join(map(str, sorted(job.hosts))) or "this one only"
            yield f"the job has no host {min(strange)}: it has {there}"
            return
        case SignalHosts(hosts=hosts) if not is_watched and own_agent in (job.hosts[host].pid for host in hosts):
            yield "the record that is read ends with this kungfu-run: give --watch, the folder of another host's"
    yield why_elsewhere(what, job, _peers(what, job), local) or why_gone(what, job, _peers(what, job))


def _peers(what: What, job: Job) -> Sequence[int]:
    """The peers that have the ranks of a fault now."""
    ranks = what.ranks if isinstance(what, SignalPeers | SlowPeers) else ()
    return [job.members[rank] for rank in ranks if rank < len(job.members)]


def _hits(what: What, job: Job) -> str:
    if isinstance(what, Resize | SaveCheckpoint):
        return "the job, by a request"
    if isinstance(what, SignalHosts):
        known = [host for host in what.hosts if host in job.hosts]
        named = [f"kungfu-run on {_name(job, host)}, process {job.hosts[host].pid}" for host in known]
        return "; ".join(named) or "kungfu-run"
    if not what.ranks:
        return "the newest joiner then"
    named = [f"peer {peer}{_on(job, peer)}, process {job.peer(peer).pid}" for peer in _peers(what, job)]
    unknown = [f"rank {rank}" for rank in what.ranks if rank >= len(job.members)]
    return "; ".join([*named, *unknown])


def _on(job: Job, peer: int) -> str:
    host = job.hosts.get(job.peer(peer).host)
    return f" on {host.name}" if host and host.name else ""


def _name(job: Job, host: int) -> str:
    return (host in job.hosts and job.hosts[host].name) or "this machine"


def _remark(what: What, *, within_s: float) -> str:
    held_s = seconds_held(what, longest_s=within_s)
    if isinstance(what, SlowPeers):
        return "frozen for a part of each tenth of a second"
    return f"thawed after {duration(held_s)}, or killed by the job before" if held_s else ""
