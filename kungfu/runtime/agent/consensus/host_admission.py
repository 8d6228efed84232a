"""Admits an agent to its job.

All agents of a job are started with the same command line. The hosts that ``-H`` lists know each other, and
``Agreement`` decides which of them founds the job. A host that no list names is started with ``--join``, the addresses
of any hosts of the job, instead of ``-H``; or it founds or finds the job by its name in a store. A host that holds a
record of the job also asks the hosts of this record (`FormerJob`).

An agent asks until the leader admits it; any other agent answers with the list of hosts, and the number of the leader.
The leader first gives a host that is not listed a number (`host_list`). The agent asks again with this number, and
becomes a follower: from then on the leader's messages carry the number, so that they reach no other agent by mistake.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version

import msgspec

from kungfu import __version__
from kungfu.errors import DeadlineExceeded, KungfuError, UsageError
from kungfu.runtime.agent.consensus.replication import lost_after_s
from kungfu.runtime.agent.context import JobSpec
from kungfu.runtime.hosts import Host, on_one_machine
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings, parse_settings

_REQUEST_DEADLINE_S = 5.0
_RETRY_EVERY_S = 0.3
_CONNECT_S = 2.0
# The clocks of two hosts may differ by this many seconds; the times in the records would be wrong by more.
_CLOCK_S = 300.0
_LIST = "-H"  # hosts that join later have none
RECORD = "record"  # beside the command line of a host: the name of the job whose record the host holds


def command_line_of(job: JobSpec) -> dict[str, str]:
    """The values that must be equal on all hosts, by name: the version of kungfu, and options of kungfu-run."""
    settings = job.settings
    return {
        "kungfu": __version__,  # agents of two versions would refuse each other's messages one by one
        "TensorFlow": _version_of("tensorflow"),
        **({_LIST: ",".join(f"{host.name}:{host.slots}" for host in job.hosts)} if job.is_listed else {}),
        "-np": str(job.size),
        "--min and --max": f"{settings.limits.minimum} and {settings.limits.maximum}",
        "--attachment": settings.attachment,
        "--spares": f"{job.spares.number}:{job.spares.level}",
        "--policy": " and ".join(settings.policies),
        "--deadline, --ready-deadline, --heartbeat and --forget-host": ", ".join(
            f"{name} {value:g}" for name, value in asdict(settings.deadlines).items()
        ),
        "--resume": settings.checkpoints.resume_option,
        "--restarts": str(job.restarts),
        "--inelastic": job.scaling,
        "--place": job.place,
        "--store and --job": "" if job.store is None else f"{job.store.address} and {job.store.job}",
        "program": " ".join(job.command),
    }


def mismatch(command_line: Mapping[str, str], job: JobSpec) -> str:
    """The reason why an agent with this command line does not belong to the job; empty if the agent does."""
    for name, own in command_line_of(job).items():
        given = command_line.get(name, "")
        # One of the two agents joined later, and was given no list.
        if name == _LIST and not given:
            continue
        if given != own:
            return (
                f"it was started with {name} {given!r}, and the job with {own!r}; start the same line, of the same "
                "kungfu, on every host"
            )
    return ""


def refusal_of(request: pb.HostAdmissionRequest, job: JobSpec, *, now: float) -> str:
    """The reason why the agent that sends this request does not belong to the job; empty if the agent does.

    Args:
        request: The request of the agent.
        job: The job, as the leader was started.
        now: The time of day on the leader's host, in seconds since 1970.
    """
    ahead_s = request.time - now if request.time else 0.0
    if abs(ahead_s) > _CLOCK_S:
        return (
            f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the clock of the host that "
            "leads the job; let both follow a time server"
        )
    return mismatch(dict(request.command_line), job)


def unreachable(host: Host, *, own: Host) -> str:
    """The reason why ``own``, the leader's host, cannot reach the agent of ``host``; empty if it can.

    Cost:
        At most two seconds.
    """
    if on_one_machine([host]) and not on_one_machine([own]):
        return f"on {own.name}, which leads the job, {host.name} is a loopback address; give --self another name"
    try:
        with socket.create_connection((host.name, host.port), timeout=_CONNECT_S):
            return ""
    except OSError as error:
        return (
            f"{own.name}, which leads the job, cannot reach {host.address} ({error}); give a name (--self) and a port "
            "(--port) that all hosts of the job reach"
        )


def listed_reply(hosts: Mapping[int, Host], *, job: str, leader: int | None) -> pb.HostAdmissionReply:
    """A reply with the list of hosts, and with the number of the leader if it is known."""
    return pb.HostAdmissionReply(hosts=msgspec.msgpack.encode(dict(hosts)), job=job, leader=leader)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Admitted:
    """The admission of this agent to a job.

    Args:
        settings: The settings of the job's peers.
        leader: The number of the leader's host.
        term: The term of the leader.
        number: The number of this host.
        hosts: The listed hosts, by number.
    """

    settings: Settings
    leader: int
    term: int
    number: int
    hosts: Mapping[int, Host]


@dataclass(frozen=True)
class FormerJob:
    """The job whose record a host holds, so that the host finds this job again whatever its command line names.

    Args:
        names: The names under which the job was started; empty without a record.
        hosts: The names of the hosts that were in the job and have not left it, by address.
    """

    names: tuple[str, ...] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)


NO_JOB = FormerJob()


@dataclass
class _Search:
    """The addresses to ask, and the replies so far."""

    addresses: dict[str, str]  # the name of the host at each address
    recorded: set[str]  # the addresses known by the record alone: these hosts may be in another job by now
    job: str = ""  # the job of the agents that have replied, until none of them is in it any more
    seen: str = ""  # the job of the last reply of an agent in a job
    seen_at: float = 0.0  # the time of the last reply of an agent in a job
    refused_since: dict[str, float] = field(default_factory=dict)  # the time since which each reason to wait is given


def request_admission(
    job: JobSpec, own: Settings, *, found: Callable[[bool, bool], int], interrupted: Callable[[], bool],
    leader: Callable[[], tuple[str, str] | None] = lambda: None, incarnation: str = "",
    threads: int = 0, devices: int = 0, former: FormerJob = NO_JOB,
    on_number: Callable[[int], None] = lambda number: None,
) -> Admitted | None:  # fmt: skip
    """Requests admission from the other hosts until the leader admits this host.

    Args:
        job: The job as this host's command line describes it.
        own: The settings of this host's peers, including the address of the host's agent.
        found: Founds the job, unless there is one; see ``Agreement.found``.
        interrupted: Returns True to give up.
        leader: The job that a store names, and the address of its leader; see ``Agreement.leader``.
        incarnation: The random number of this agent.
        threads: The threads that each peer would get from this host's cores.
        devices: The number of GPUs that the peers of this host may use.
        on_number: Called with the number that the leader gives this host.
        former: The job whose record this host holds. Its hosts are asked too, unless a store decides: they may go on
            with the job without the hosts that the command line names.

    Returns:
        The admission; ``None`` if this agent has founded the job, or was interrupted.

    Raises:
        UsageError: The job refuses this host.
        DeadlineExceeded: No agent has admitted this host within ``--ready-deadline``, or the job has ended.
    """
    until = time.monotonic() + job.settings.deadlines.ready_s
    here = job.hosts[job.own_host]
    own_host = pb.HostInfo(
        number=job.own_host if job.is_listed else -1, pid=os.getpid(), incarnation=incarnation, threads=threads,
        devices=devices, name=here.name, slots=here.slots, port=here.port,
    )  # fmt: skip
    line = {**command_line_of(job), RECORD: former.names[-1] if former.names else ""}
    request, search = pb.HostAdmissionRequest(host=own_host, command_line=line), _search_for(job, former)
    while not interrupted():
        silent = list[str]()
        job_exists, jobs = False, dict[str, str]()
        for address, name in list(search.addresses.items()):
            request.time = time.time()
            reply = _asked(address, name, request, job, is_recorded=address in search.recorded)
            # The host cannot be reached, but may be up and in a job.
            if reply is None:
                silent.append(address)
                continue
            # The host had joined the job, and is in another one by now.
            if address in search.recorded and _is_foreign(reply, job, former):
                continue
            is_other = bool(reply.job) and search.job not in ("", reply.job)
            # Else a former host of the job is in another one by now.
            if reply.job and (not is_other or address in job.join):
                jobs.setdefault(reply.job, name)
            # The other job may be the same one, started again: then no agent is in the former one in the next round.
            if is_other:
                continue
            hosts = _read_reply(reply, search, patience_s=2 * lost_after_s(job.deadlines))
            # The leader admits this host.
            if reply.settings:
                settings = replace(parse_settings(reply.settings), agent=own.agent)
                return Admitted(settings, reply.leader, reply.term, own_host.number, hosts)
            # The leader has given this host a number: this host asks again at once.
            if reply.HasField("number") and reply.number != own_host.number:
                own_host.number = request.host.number = reply.number
                on_number(reply.number)
            others = {host.address: host.name for host in hosts.values() if host.address != here.address}
            search.recorded |= others.keys() - search.addresses.keys() if address in search.recorded else set()
            search.addresses |= others
            # The host follows a leader, or has just lost its leader: the leader is still to be asked.
            job_exists = job_exists or reply.retry
        if len(jobs) > 1:
            other, name = next((one, name) for one, name in jobs.items() if one != search.job)
            raise UsageError(
                f"{name} is in job {other}, and another host that was asked is in job {search.job}: give hosts of one "
                "job"
            )
        search.job = next(iter(jobs), "")
        # No other host is in a job.
        if found(job_exists, bool(silent)):
            return None
        if (leads := leader()) is not None and leads[1] != here.address:
            search.job, address = leads
            _check_loopback(address, here)
            search.addresses.setdefault(address, address)
        _check_wait(search, silent, until, job)
        time.sleep(_RETRY_EVERY_S)
    return None


def _search_for(job: JobSpec, former: FormerJob) -> _Search:
    """The search for a job among the hosts of the command line, and of the record unless a store decides."""
    here = job.hosts[job.own_host]
    listed = {host.address: host.name for host in job.hosts if host is not here}
    given = {address: address for address in job.join} or listed
    recorded = former.hosts if job.store is None else {}
    recorded = {address: name for address, name in recorded.items() if address not in (here.address, *given)}
    return _Search({**given, **recorded}, {*recorded})


def _is_foreign(reply: pb.HostAdmissionReply, job: JobSpec, former: FormerJob) -> bool:
    """True if the reply of a host that the record alone names is about another job.

    A listed host knows every name of its job: the founder records the names, and the other hosts ask the founder too. A
    host that joins may not know the newest name; only another job refuses it."""
    is_named = not reply.job or reply.job in former.names
    return not is_named and (bool(reply.refusal) or not job.join)


def _check_loopback(address: str, here: Host) -> None:
    """Refuses the address of a leader that is another machine's name for itself: it would reach this machine."""
    if on_one_machine([Host(address.rpartition(":")[0], 1, 0)]) and not on_one_machine([here]):
        raise UsageError(
            f"the store names {address} as the leader of the job, a loopback address on {here.name}: start that host "
            "again with a name that all hosts reach (--self)"
        )


def _read_reply(reply: pb.HostAdmissionReply, search: _Search, *, patience_s: float) -> Mapping[int, Host]:
    """Returns the list of hosts in a reply; raises ``UsageError`` if the job refuses this host, at once or for long."""
    now = time.monotonic()
    search.job = reply.job or search.job
    # A host that has just ended may not be missed yet, so its name may be in use for a moment.
    since = search.refused_since.setdefault(reply.refusal, now)
    if reply.refusal and (not reply.retry or now - since > patience_s):
        raise UsageError(f"the job does not take this host: {reply.refusal}")
    if reply.retry:
        search.seen, search.seen_at = reply.job or search.seen, now
    return msgspec.msgpack.decode(reply.hosts, type=dict[int, Host]) if reply.hosts else {}


def _check_wait(search: _Search, silent: list[str], until: float, job: JobSpec) -> None:
    """Raises ``DeadlineExceeded`` if no leader has admitted this host in time, or the job that it joins has ended."""
    now = time.monotonic()
    is_over = search.seen_at and not silent and now - search.seen_at > 2 * lost_after_s(job.deadlines)
    # A job with restarts may begin again.
    if job.join and is_over and not job.restarts:
        raise DeadlineExceeded(f"job {search.seen} has ended before it took this host: no agent of it runs any more")
    if now > until:
        waited_s = job.settings.deadlines.ready_s
        whom = f"; {', '.join(search.addresses[one] for one in silent)} cannot be reached" if silent else ""
        others = f"at {', '.join(job.join)}" if job.join else "of the other hosts"
        joined = ", ".join(search.addresses[one] for one in silent if one in search.recorded and not job.join)
        fix = (
            f": by the record of the job (--logdir), {joined} had joined it, and may go on with it; start kungfu-run "
            "there again or, if that machine is gone for good, begin with a new --logdir, and --resume"
        )
        raise DeadlineExceeded(
            f"waited {waited_s:.0f} s, and no agent {others} accepted this one{whom}{fix if joined else ''}"
        )


def _asked(
    address: str, name: str, request: pb.HostAdmissionRequest, job: JobSpec, *, is_recorded: bool = False
) -> pb.HostAdmissionReply | None:
    """The agent's reply to ``request``; empty if no agent runs on the host, ``None`` if the host cannot be reached.

    A host that the record alone names counts as one without an agent if it has another secret."""
    deadline_s, what = min(_REQUEST_DEADLINE_S, job.deadlines.ready_s), f"the agent of {name}"
    try:
        with rpc.connect(address, secret=job.settings.secret) as channel:
            stub = HostServiceStub(channel)
            reply: pb.HostAdmissionReply = rpc.call(stub.AdmitHost, request, deadline_s=deadline_s, what=what)
            return reply
    # The agent has another secret; perhaps it is in another job.
    except rpc.SecretRefused as error:
        if is_recorded:
            return pb.HostAdmissionReply()
        hint = "" if job.store is None else f", or, if {job.store.job} is another job there, this one another --job"
        raise UsageError(f"{name} has another secret: give every host the same one{hint}") from error
    # No agent listens at a port that refuses; otherwise the host may be cut off, or frozen.
    except KungfuError:
        return pb.HostAdmissionReply() if rpc.is_refused(address) else None
