"""A preview of a fault schedule on the present job: the processes that each fault hits, and the obstacles."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Column, Table
from rich.text import Text

from kungfu.cli.report_console import ReportConsole
from kungfu.event_log.job import Job
from kungfu.event_log.values import counted, duration
from kungfu.runtime.core.request import Resize, SaveCheckpoint
from kungfu.runtime.job_api.status import JobStatus
from kungfu.testing.faults import Fault, SignalHosts, SignalPeers, SlowPeers
from kungfu.testing.faults.inject import seconds_held, why_elsewhere, why_gone, why_it_would_end
from kungfu.testing.faults.schedule import What


@dataclass(frozen=True)
class PrecheckedFault:
    """The effect of a fault if it were carried out now.

    Args:
        when: The moment, in the words of the schedule.
        what: The action, in the words of the schedule.
        hits: The processes that the fault hits, as text: peer, host and process id.
        obstacle: The reason why the fault cannot be carried out; empty if it can.
        ends_job: True if the obstacle is that the fault would certainly end the job.
    """

    when: str
    what: str
    hits: str
    obstacle: str = ""
    ends_job: bool = False
    remark: str = ""


def precheck(
    faults: Sequence[Fault],
    job: Job,
    status: JobStatus,
    *,
    local_hosts: Collection[int],
    own_agent: int,
    is_watched: bool,
    within_s: float,
) -> list[PrecheckedFault]:
    """Previews each fault on the present job, assuming the earlier resizes of the schedule, but not the earlier losses.

    Args:
        local_hosts: The hosts of the job that are this machine.
        own_agent: The process id of the kungfu-run whose record is read.
        is_watched: True if the record of another host is followed as well.
        within_s: The seconds for which a peer is frozen if the fault specifies no duration.
    """
    size, found = len(job.members), list[PrecheckedFault]()
    for fault in faults:
        what = fault.what
        if isinstance(what, SignalHosts):
            hit = [peer for peer in job.members if job.peer(peer).host in what.hosts]
            ends = why_it_would_end(what, job, hit, living=job.members)
        else:
            # Ranks stand for peers here: by the fault's moment, earlier resizes may have changed the peers.
            ends = why_it_would_end(what, job, getattr(what, "ranks", ()), living=range(size))
        obstacle = ends or next(
            _obstacles(what, job, status, local=local_hosts, own_agent=own_agent, is_watched=is_watched), ""
        )
        remark = _remark(what, within_s=within_s)
        found.append(PrecheckedFault(str(fault.when), fault.action, _hits(what, job), obstacle, bool(ends), remark))
        size = what.size if isinstance(what, Resize) else size
    return found


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
    """The peers that now have the ranks of a fault."""
    ranks = what.ranks if isinstance(what, SignalPeers | SlowPeers) else ()
    return [job.members[rank] for rank in ranks if rank < len(job.members)]


def _hits(what: What, job: Job) -> str:
    if isinstance(what, Resize | SaveCheckpoint):
        return "the job, by a request"
    if isinstance(what, SignalHosts):
        hosts = [job.hosts[host] for host in what.hosts if host in job.hosts]
        named = [f"kungfu-run on {one.name or 'this machine'}, process {one.pid}" for one in hosts]
        return "; ".join(named) or "kungfu-run"
    if not what.ranks:
        return "the newest joiner then"
    named = list[str]()
    for one in map(job.peer, _peers(what, job)):
        host = job.hosts.get(one.host)
        named.append(f"peer {one.id}{f' on {host.name}' if host and host.name else ''}, process {one.pid}")
    return "; ".join([*named, *(f"rank {rank}" for rank in what.ranks if rank >= len(job.members))])


def _remark(what: What, *, within_s: float) -> str:
    if isinstance(what, SlowPeers):
        return "frozen for a part of each tenth of a second"
    held_s = seconds_held(what, longest_s=within_s)
    return f"thawed after {duration(held_s)}, or killed by the job before" if held_s else ""


def print_precheck(faults: Sequence[PrecheckedFault], *, form: Literal["text", "json"], stderr: bool = False) -> None:
    """Prints each fault of a schedule with its moment, the processes that it would hit, and its obstacle."""
    if form == "json":
        print(json.dumps({"faults": [asdict(one) for one in faults]}, indent=2))
        return
    table = Table(*(Column(name, overflow="fold") for name in ("", "when", "what", "now that would be", "")))
    for number, one in enumerate(faults, start=1):
        last = Text(f"cannot be done: {one.obstacle}", style="bold red") if one.obstacle else Text(one.remark)
        table.add_row(str(number), Text(one.when), Text(one.what), Text(one.hits), last)
    ReportConsole(highlight=False, stderr=stderr).print(table)
