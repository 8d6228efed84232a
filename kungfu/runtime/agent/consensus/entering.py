"""How an agent comes into a job. All agents of a job are told the same; the one on the first host founds it."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from kungfu.errors import DeadlineExceeded, KungfuError, UsageError
from kungfu.runtime.agent.context import Job
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.settings import ENVIRONMENT_KEY, Settings, read_settings

__all__ = ["Entered", "enter", "mismatch", "welcome"]

_ASK_S = 5.0
_AGAIN_S = 0.3


def line_of(job: Job) -> dict[str, str]:
    """What kungfu-run was told, as far as it must be the same on all hosts."""
    settings = job.settings
    return {
        "-H": ",".join(f"{host.name}:{host.slots}" for host in job.hosts),
        "-np": str(job.size),
        "--min and --max": f"{settings.limits.minimum} and {settings.limits.maximum}",
        "--attachment": settings.attachment,
        "--policy": settings.policy,
        "--deadline, --ready-deadline and --heartbeat": json.dumps(asdict(settings.deadlines)),
        "--resume": settings.keeping.resume,
        "program": " ".join(job.command),
    }


def mismatch(line: Mapping[str, str], job: Job) -> str:
    """Why an agent with this line does not belong to the job; empty if it does."""
    for name, own in line_of(job).items():
        given = line.get(name, "")
        if given != own:
            return f"it was started with {name} {given!r}, and the job with {own!r}; start the same line on every host"
    return ""


def welcome(settings: Settings, *, term: int) -> pb.Welcome:
    """The peers' settings for another agent, from the head of ``term``."""
    return pb.Welcome(settings=settings.to_environment()[ENVIRONMENT_KEY], term=term)


@dataclass(frozen=True)
class Entered:
    """The ``settings`` of the job that this agent is in from now on, and the host that leads it, in which term."""

    settings: Settings
    head: int
    term: int


def enter(job: Job, own: Settings, *, interrupted: Callable[[], bool], threads: int = 0) -> Entered | None:
    """The job that this agent is in from now on; ``None`` if it founds the job, or was interrupted.

    ``threads`` are those that a peer would have of this host's cores.
    Raises ``UsageError`` where the job does not take it, and ``DeadlineExceeded`` when no agent could say within
    ``--ready-deadline``.
    """
    until = time.monotonic() + job.settings.deadlines.ready_s
    own_host = pb.HostInfo(number=job.place, pid=os.getpid(), incarnation=secrets.token_hex(8), threads=threads)
    entrance = pb.Entrance(host=own_host, line=line_of(job))
    while not interrupted():
        founded, silent = False, list[str]()
        for number, host in [one for one in enumerate(job.hosts) if one[0] != job.place]:
            answer = _asked(host, entrance, job.settings)
            if answer is None:
                silent.append(host.name)
                continue
            if answer.refusal:
                raise UsageError(f"the job does not take this host: {answer.refusal}")
            if answer.settings:
                settings = read_settings({ENVIRONMENT_KEY: answer.settings})
                assert settings is not None
                return Entered(replace(settings, agent=own.agent), number, answer.term)
            founded = founded or answer.later
        # A host that cannot be reached may be in the job already, if this one was in it before and was cut off.
        if job.place == 0 and not founded and not silent:
            return None
        if time.monotonic() > until:
            waited_s = job.settings.deadlines.ready_s
            whom = f"; {', '.join(silent)} cannot be reached" if silent else ""
            raise DeadlineExceeded(f"waited {waited_s:.0f} s, and no agent of the other hosts took this one in{whom}")
        time.sleep(_AGAIN_S)
    return None


def _asked(host: Host, entrance: pb.Entrance, settings: Settings) -> pb.Welcome | None:
    """What the agent of a host says; an empty welcome where none runs, ``None`` where nobody can be asked."""
    try:
        with rpc.connect(host.address, secret=settings.secret) as channel:
            stub = HostServiceStub(channel)
            deadline_s, what = min(_ASK_S, settings.deadlines.ready_s), f"the agent of {host.name}"
            answer: pb.Welcome = rpc.call(stub.Enter, entrance, deadline_s=deadline_s, what=what)
    except rpc.SecretRefused as error:
        raise UsageError(f"{host.name} knows another secret: give every host the same one") from error
    except KungfuError:
        return pb.Welcome() if rpc.is_refused(host.address) else None
    return answer
