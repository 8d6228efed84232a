"""Injects a schedule of faults into a user's job; impossible or forbidden faults are skipped with a reason.

An injection observes the job only through the job's record: policies change the size, peers may run on other machines,
and the job may end at any time. A fault that fails raises no error: each fault results in an `Injection`, which
describes the outcome.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from kungfu.errors import KungfuError, UsageError
from kungfu.event_log.job import Job, JobHost, JobPeer
from kungfu.event_log.record_follower import JobWatcher
from kungfu.runtime.core.request import Resize, SaveCheckpoint
from kungfu.runtime.hosts import addresses_of, local_addresses
from kungfu.testing.faults.freezer import Freezer
from kungfu.testing.faults.schedule import Fault, SignalHosts, SignalPeers, SlowPeers, Verb, What, When

_LOOK_S = 0.02
# A process starts before its start is recorded. A process that started this many seconds after the recorded time is
# another process with the same id.
_CLOCK_S = 2.0
# The signals of the verbs other than freeze and thaw.
_SIGNALS: Mapping[Verb, signal.Signals] = {"kill": signal.SIGKILL, "notice": signal.SIGTERM}


class InjectedJob(Protocol):
    """The job that receives the faults: it accepts requests, and tells if it has ended."""

    def request(self, what: Resize | SaveCheckpoint, *, id: str) -> None:
        """Submits a request to the job; raises ``KungfuError`` if it is refused or cannot be submitted."""

    def is_over(self) -> bool:
        """True if the job has ended."""


@dataclass(frozen=True)
class InjectionLimits:
    """The limits of an injection.

    Args:
        within_s: Seconds in which the job must recover from a fault, and for which a freeze lasts if the fault names no
            time.
        patience_s: The longest wait for the moment of a fault, in seconds.
        local_hosts: The ids of the job's hosts that are this machine.
        may_end_job: True to carry out faults that certainly end the job.
        request_prefix: The prefix of the ids of requests.
    """

    within_s: float
    patience_s: float
    local_hosts: Collection[int] = (0,)
    may_end_job: bool = False
    request_prefix: str = "chaos"


@dataclass(frozen=True)
class Injection:
    """The outcome of a fault.

    Args:
        fault: The fault, as scheduled.
        at: The time at which the fault was carried out, in seconds since 1970; ``None`` if it was not carried out.
        step: The number of recorded steps at that time.
        peers: The ids of the peers that the fault hit.
        until: The time at which frozen or slowed processes run at full speed again; ``at`` if there are none.
        request: The id of the request, if the fault is a request to the job.
        why: The reason why the fault was not carried out.
    """

    fault: Fault
    at: float | None
    step: int
    peers: tuple[int, ...] = ()
    until: float = 0.0
    request: str = ""
    why: str = ""


def inject(
    faults: Sequence[Fault],
    watcher: JobWatcher,
    job: InjectedJob,
    *,
    limits: InjectionLimits,
    freezer: Freezer,
    clock: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Injection]:
    """Injects faults one after the other and yields the outcome of each; ends when the job has recovered.

    No further fault is carried out once the job fails to recover in time or has ended.

    Args:
        clock: Returns the time in seconds since 1970.
        pause: Sleeps for a number of seconds.
    """
    injector = _Injector(watcher, job, limits, freezer, clock, pause)
    begun, last, stopped = watcher.look().steps, clock(), ""
    for number, fault in enumerate(faults, start=1):
        coming: tuple[int, ...] = ()
        if not stopped:
            stopped, coming = injector.await_moment(fault.when, begun=begun, since=last)
        if stopped:
            yield Injection(fault, None, watcher.look().steps, why=stopped)
            continue
        one = injector.carry_out(fault, number=number, coming=coming)
        if one.at is not None:
            last = max(one.until, one.at)
        yield one
    injector.await_calm(until=last + limits.within_s)


@dataclass
class _Injector:
    """The parts of an injection (see `inject`), and the effects of the faults so far."""

    watcher: JobWatcher
    job: InjectedJob
    limits: InjectionLimits
    freezer: Freezer
    clock: Callable[[], float]
    pause: Callable[[float], None]
    hit_until: dict[int, float] = field(default_factory=dict)  # by peer id; infinity for a killed or notified peer
    over_at: float = 0.0  # the time at which the last fault ends

    def _is_hit(self, peer: int, now: float) -> bool:
        return self.hit_until.get(peer, 0.0) > now

    def _is_calm(self, job: Job, now: float) -> bool:
        """True if the job is whole (see `Job`), no fault still affects a member, and a step ended after all faults."""
        # Steps reach the record late: a step recorded after a fault may have ended before the fault.
        is_hit = any(self._is_hit(peer, now) for peer in job.members)
        return job.is_whole and job.stepped_at > self.over_at and not is_hit

    def await_moment(self, when: When, *, begun: int, since: float) -> tuple[str, tuple[int, ...]]:
        """Waits for the moment of a fault; returns the obstacle to it, empty if none, and the joiners under way. The
        schedule began after ``begun`` recorded steps, and the previous fault ended at time ``since``."""
        limits = self.limits
        before, patient_until = self.watcher.look().tally.counts, self.clock() + limits.patience_s
        while True:
            job, now = self.watcher.look(), self.clock()
            is_calm = self._is_calm(job, now)
            if has_come(when, job, calm=is_calm, begun=begun, before=before):
                break
            if self.job.is_over():
                return "the job had ended", ()
            waits_for_calm = when.moment == "settled" or when.calm
            # The job has not recovered from the previous fault; more faults would only hide that.
            if waits_for_calm and not is_calm and now > since + limits.within_s:
                return f"{limits.within_s:g} s after the fault before the job was not whole: {job_state(job)}", ()
            if now > patient_until:
                return f"waited {limits.patience_s:g} s for {when}: {job_state(job)}", ()
            self.pause(_LOOK_S)
        if when.after_s:
            self.pause(when.after_s)
        return ("the job had ended", ()) if self.job.is_over() else ("", job.joiners)

    def await_calm(self, *, until: float) -> None:
        """Waits until the job has recovered or ended, but not beyond the time ``until``."""
        while not (self._is_calm(self.watcher.look(), self.clock()) or self.job.is_over()):
            if self.clock() > until:
                return
            self.pause(_LOOK_S)

    def carry_out(self, fault: Fault, *, number: int, coming: tuple[int, ...]) -> Injection:
        """Carries out a fault, unless an obstacle prevents it; the outcome's ``why`` then names the obstacle."""
        what, job, now, longest_s = fault.what, self.watcher.look(), self.clock(), self.limits.within_s
        request = ""
        try:
            peers = hit_peers(what, job, coming)
            if why := self._obstacle(what, job, peers, now=now):
                return Injection(fault, None, job.steps, peers, why=why)
            if isinstance(what, Resize | SaveCheckpoint):
                request = f"{self.limits.request_prefix}-{number}"
                self.job.request(what, id=request)
            else:
                pids = [one.pid for one in processes_of(what, job, peers) if one.pid is not None]
                carry_out(what, pids, self.freezer, longest_s=longest_s)
        except (KungfuError, PermissionError) as error:
            return Injection(fault, None, job.steps, why=str(error))
        done = Injection(fault, now, job.steps, peers, now + seconds_held(what, longest_s=longest_s), request)
        is_for_good = isinstance(what, SignalPeers | SignalHosts) and what.verb in ("kill", "notice")
        self.hit_until.update(dict.fromkeys(peers, float("inf") if is_for_good else done.until))
        self.over_at = max(self.over_at, done.until)
        return done

    def _obstacle(self, what: What, job: Job, peers: Collection[int], *, now: float) -> str:
        """Describes the obstacle to a fault: its targets are elsewhere or gone, or the job would end; empty if none."""
        living = [peer for peer in job.members if not self._is_hit(peer, now)]
        ends = "" if self.limits.may_end_job else why_it_would_end(what, job, peers, living=living)
        return why_elsewhere(what, job, peers, self.limits.local_hosts) or ends or why_gone(what, job, peers)


def why_elsewhere(what: What, job: Job, peers: Collection[int], local: Collection[int]) -> str:
    """Describes the targets on other machines, which signals cannot reach; empty if there are none."""
    hosts = {*what.hosts} if isinstance(what, SignalHosts) else {job.peer(peer).host for peer in peers}
    if isinstance(what, SignalHosts):
        peers = ()
    elsewhere = sorted(hosts - {*local})
    if not elsewhere:
        return ""
    names = ", ".join((host in job.hosts and job.hosts[host].name) or str(host) for host in elsewhere)
    who = ", ".join(f"peer {peer}" for peer in peers if job.peer(peer).host in elsewhere) or "kungfu-run"
    return f"{who} runs on another machine ({names}): run kungfu chaos there"


def why_gone(what: What, job: Job, peers: Collection[int]) -> str:
    """The reason why a fault cannot signal one of its processes; empty if it can signal all of them."""
    processes = processes_of(what, job, peers)
    return next(filter(None, (why_out_of_reach(one.pid, started_at=one.started_at) for one in processes)), "")


def why_it_would_end(what: What, job: Job, peers: Collection[int], *, living: Collection[int]) -> str:
    """The reason why a fault would certainly end the job; empty if the job may survive the fault.

    Args:
        living: The members that no earlier fault has killed and no fault freezes or slows at present.

    Returns:
        The reason: the fault hits the last peers with the state, the only kungfu-run, or a quorum of the peers.
    """
    match what:
        case SignalHosts(verb="kill" | "notice") if len(job.hosts_present) <= 1:
            return "it is the only kungfu-run of the job, which ends with it"
        case SignalHosts(verb="kill") if _is_quorum({*peers}, job.members):
            return "most of the peers run there (or half of them, with rank 0), and the others have no quorum without"
        case SignalPeers(verb="kill", ranks=ranks) if ranks and {*living} <= {*peers}:
            return "no other peer holds the state of the job, which ends with it"
    return ""


def _is_quorum(peers: Collection[int], members: Sequence[int]) -> bool:
    """True if these peers are a quorum: a majority of the members, or the half that includes rank 0."""
    there = [peer for peer in members if peer in peers]
    return 2 * len(there) > len(members) or (2 * len(there) == len(members) and members[0] in there)


def seconds_held(what: What, *, longest_s: float) -> float:
    """The seconds for which a fault freezes or slows processes; 0 for a fault without a duration."""
    match what:
        case SlowPeers(for_s=for_s):
            return for_s
        case SignalPeers(verb="freeze", for_s=lasting) | SignalHosts(verb="freeze", for_s=lasting):
            return longest_s if lasting is None else lasting
    return 0.0


# ---- one fault -------------------------------------------------------------------------------------------------------


def has_come(when: When, job: Job, *, calm: bool, begun: int, before: Mapping[str, int]) -> bool:
    """True if the moment of a fault has come, apart from the seconds to wait after it. The job is ``calm`` once it has
    recovered from the previous faults. ``begun`` is the number of recorded steps when the schedule began, and
    ``before`` the number of events of each kind when the wait for this moment began."""
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
        coming: The joiners under way at the moment of the fault; they count as joiners even after they have joined.

    Raises:
        UsageError: There is no such peer or host.
    """
    if isinstance(what, Resize | SaveCheckpoint):
        return ()
    if isinstance(what, SignalHosts):
        # A host that was frozen for a long time has been removed from the job, but may still be thawed.
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
    """The processes that receive the signals of a fault: the peers, or kungfu-run on the hosts."""
    return [job.hosts[host] for host in what.hosts] if isinstance(what, SignalHosts) else [*map(job.peer, peers)]


def carry_out(what: What, pids: Iterable[int], freezer: Freezer, *, longest_s: float) -> None:
    """Applies a fault to processes; does nothing for a fault that is a request to the job. If the fault names no time,
    a frozen process is thawed after ``longest_s`` seconds. Raises ``UsageError`` if a process to be slowed or frozen
    has ended or may not be signalled."""
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
                with suppress(ProcessLookupError):  # the process has just ended
                    os.kill(pid, _SIGNALS[what.verb])
        if not is_held:
            raise UsageError(f"process {pid} cannot be held: it has ended, or belongs to another user")


def job_state(job: Job) -> str:
    """Describes the peers in training and the joiners."""
    return f"by step {job.steps} peers {list(job.members)} train and {list(job.joiners)} are on their way"


# ---- processes ------------------------------------------------------------------------------------------------------


def why_out_of_reach(pid: int | None, *, started_at: float | None) -> str:
    """The reason why a process cannot be signalled, as text; empty if it can be signalled.

    Args:
        pid: The id of the process; ``None`` if unknown.
        started_at: The recorded time of the start of the process, in seconds since 1970; ``None`` if unknown.
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


def local_hosts(job: Job) -> frozenset[int]:
    """The hosts of a job that are this machine: its only host, or the hosts whose names resolve to this machine."""
    own = local_addresses()
    names = {host: one.name for host, one in job.hosts.items() if one.name}
    here = {
        host for host, name in names.items() if any(one in own or one.startswith("127.") for one in addresses_of(name))
    }
    return frozenset(here if names else {0})
