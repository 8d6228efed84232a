"""Admits an agent to its job.

All agents of a job are started with the same command line; the agent on the first host founds the job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from kungfu import __version__
from kungfu.errors import DeadlineExceeded, KungfuError, UsageError
from kungfu.runtime.agent.context import JobSpec
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import Settings, parse_settings

_REQUEST_DEADLINE_S = 5.0
_RETRY_EVERY_S = 0.3


def command_line_of(job: JobSpec) -> dict[str, str]:
    """The values that must be equal on all hosts, by name: the version of kungfu, and options of kungfu-run."""
    settings = job.settings
    return {
        "kungfu": __version__,  # agents of two versions would refuse each other's messages one by one
        "-H": ",".join(f"{host.name}:{host.slots}" for host in job.hosts),
        "-np": str(job.size),
        "--min and --max": f"{settings.limits.minimum} and {settings.limits.maximum}",
        "--attachment": settings.attachment,
        "--spares": f"{job.spares.number}:{job.spares.level}",
        "--policy": " and ".join(settings.policies),
        "--deadline, --ready-deadline and --heartbeat": ", ".join(
            f"{name} {value:g}" for name, value in asdict(settings.deadlines).items()
        ),
        "--resume": settings.checkpoints.resume_option,
        "--restarts": str(job.restarts),
        "program": " ".join(job.command),
    }


def mismatch(command_line: Mapping[str, str], job: JobSpec) -> str:
    """The reason why an agent with this command line does not belong to the job; empty if the agent does."""
    for name, own in command_line_of(job).items():
        given = command_line.get(name, "")
        if given != own:
            return (
                f"it was started with {name} {given!r}, and the job with {own!r}; start the same line, of the same "
                "kungfu, on every host"
            )
    return ""


@dataclass(frozen=True)
class Admitted:
    """The admission of this agent to a job: the job's ``settings``, the leader's host, and the leader's ``term``."""

    settings: Settings
    leader: int
    term: int


def request_admission(
    job: JobSpec,
    own: Settings,
    *,
    interrupted: Callable[[], bool],
    incarnation: str = "",
    threads: int = 0,
    devices: int = 0,
) -> Admitted | None:
    """Requests admission from the other hosts until the leader admits this host.

    Args:
        job: The job as this host's command line describes it.
        own: The settings of this host's peers, including the address of the host's agent.
        interrupted: Returns True to give up.
        incarnation: The random number of this agent.
        threads: The threads that each peer would get from this host's cores.
        devices: The number of GPUs that the peers of this host may use.

    Returns:
        The admission; ``None`` if this agent has to found the job, or was interrupted.

    Raises:
        UsageError: The job refuses this host.
        DeadlineExceeded: No agent has admitted this host within ``--ready-deadline``.
    """
    until = time.monotonic() + job.settings.deadlines.ready_s
    own_host = pb.HostInfo(
        number=job.own_host, pid=os.getpid(), incarnation=incarnation, threads=threads, devices=devices
    )  # fmt: skip
    request = pb.HostAdmissionRequest(host=own_host, command_line=command_line_of(job))
    while not interrupted():
        job_exists, silent = False, list[str]()
        for number, host in [one for one in enumerate(job.hosts) if one[0] != job.own_host]:
            reply = _asked(host, request, job.settings)
            # The host cannot be reached, but may be up and in a job.
            if reply is None:
                silent.append(host.name)
                continue
            # The host is in another job, or has another command line.
            if reply.refusal:
                raise UsageError(f"the job does not take this host: {reply.refusal}")
            # The leader admits this host.
            if reply.settings:
                settings = parse_settings(reply.settings)
                return Admitted(replace(settings, agent=own.agent), number, reply.term)
            # The host follows a leader, or has just lost its leader: the leader is still to be asked.
            job_exists = job_exists or reply.retry
        # No other host is in a job. A silent host might be, for example if this host was cut off and restarted.
        if job.own_host == 0 and not job_exists and not silent:
            return None
        # No leader has admitted this host in time.
        if time.monotonic() > until:
            waited_s = job.settings.deadlines.ready_s
            whom = f"; {', '.join(silent)} cannot be reached" if silent else ""
            raise DeadlineExceeded(f"waited {waited_s:.0f} s, and no agent of the other hosts accepted this one{whom}")
        time.sleep(_RETRY_EVERY_S)
    return None


def _asked(host: Host, request: pb.HostAdmissionRequest, settings: Settings) -> pb.HostAdmissionReply | None:
    """The agent's reply to ``request``; empty if no agent runs on the host, ``None`` if the host cannot be reached."""
    deadline_s, what = min(_REQUEST_DEADLINE_S, settings.deadlines.ready_s), f"the agent of {host.name}"
    try:
        with rpc.connect(host.address, secret=settings.secret) as channel:
            stub = HostServiceStub(channel)
            reply: pb.HostAdmissionReply = rpc.call(stub.AdmitHost, request, deadline_s=deadline_s, what=what)
            return reply
    # The agent has another secret; perhaps it is in another job.
    except rpc.SecretRefused as error:
        raise UsageError(f"{host.name} has another secret: give every host the same one") from error
    # No agent listens at a port that refuses; otherwise the host may be cut off, or frozen.
    except KungfuError:
        return pb.HostAdmissionReply() if rpc.is_refused(host.address) else None
