"""The check of several hosts: each doctor calls the other hosts and answers their calls, until a deadline.

The messages are JSON over the channel of the agents, not protocol buffers, so that hosts with different versions
understand them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import grpc

from kungfu.cli.doctor.finding import Finding, Severity
from kungfu.errors import KungfuError
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import JobServiceStub
from kungfu.runtime.job_api.job_service import to_status

_SERVICE, _METHOD = "kungfu.Doctor", "Describe"
_ASK_S, _PAUSE_S = 3.0, 0.2
_CLOCK_S = 1.0  # a larger difference makes the records of two hosts hard to compare
_MUST_AGREE = ("Python", "kungfu", "tensorflow", "horovod")


@dataclass(frozen=True)
class HostFacts:
    """The facts that a host sends to other hosts: versions by name, and its clock in seconds since 1970."""

    versions: Mapping[str, str]
    clock_s: float = 0.0


@dataclass(frozen=True)
class HostAnswer:
    """The result of calling one host.

    Args:
        facts: The facts that the host sent; ``None`` if the host was not reached.
        ahead_s: The minimum seconds by which that host's clock is ahead of this host's clock; negative if behind.
        has_asked: True if that host has reached this host.
    """

    facts: HostFacts | None
    error: str = ""
    ahead_s: float = 0.0
    has_asked: bool = True


@dataclass
class _Desk:
    """Answers the other hosts, and remembers which hosts have called."""

    facts: HostFacts
    clock: Callable[[], float]
    asked: set[int] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def describe(self, request: bytes, context: Any) -> bytes:
        with self.changed:
            self.asked.add(int(json.loads(request)["place"]))
            self.changed.notify_all()
        return json.dumps({**asdict(self.facts), "clock_s": self.clock()}).encode()


def exchange(
    hosts: Sequence[Host], index: int, facts: HostFacts, *, secret: str, wait_s: float,
    clock: Callable[[], float] = time.time,
) -> dict[int, HostAnswer]:  # fmt: skip
    """Exchanges facts with the other hosts, which run the same command; returns their answers by host index.

    Args:
        wait_s: Seconds to wait for the other hosts.

    Raises:
        UsageError: Another program listens on this host's port.
    """
    desk, until = _Desk(facts, clock), time.monotonic() + wait_s
    handler = grpc.unary_unary_rpc_method_handler(desk.describe)
    service = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
    own, others = hosts[index], [number for number in range(len(hosts)) if number != index]
    server = rpc.serve(
        (lambda handlers, server: server.add_generic_rpc_handlers(handlers), (service,)),
        host=own.name, port=own.port, secret=secret, threads=len(hosts) + 1,
    )  # fmt: skip
    try:
        with ThreadPoolExecutor(max(1, len(others))) as pool:
            asked = {
                number: pool.submit(_asked, hosts[number], index, secret=secret, until=until, clock=clock)
                for number in others
            }
            answers = {number: one.result() for number, one in asked.items()}
        # The other hosts may still be calling this host.
        with desk.changed:
            desk.changed.wait_for(lambda: desk.asked >= set(others), timeout=max(0.0, until - time.monotonic()))
            return {number: replace(one, has_asked=number in desk.asked) for number, one in answers.items()}
    finally:
        server.stop()


def _asked(host: Host, index: int, *, secret: str, until: float, clock: Callable[[], float]) -> HostAnswer:
    """Calls one host until that host answers or the deadline ``until`` has passed."""
    request = json.dumps({"place": index}).encode()
    while True:
        try:
            with rpc.connect(host.address, secret=secret) as channel:
                method = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
                asked = clock()
                reply = json.loads(rpc.call(method, request, deadline_s=_ASK_S, what=f"{host.name} to answer"))
                return _answer(HostFacts(reply["versions"], float(reply["clock_s"])), asked=asked, answered=clock())
        # The doctor of that host may start later.
        except KungfuError as error:
            if time.monotonic() + _PAUSE_S > until:
                return HostAnswer(None, str(error))
            time.sleep(_PAUSE_S)


def _answer(facts: HostFacts, *, asked: float, answered: float) -> HostAnswer:
    """The answer of a host, with the smallest clock offset that fits the times of the request and of the answer."""
    ahead_s = max(0.0, facts.clock_s - answered) + min(0.0, facts.clock_s - asked)
    return HostAnswer(facts, ahead_s=ahead_s)


def compared(hosts: Sequence[Host], own: HostFacts, answers: Mapping[int, HostAnswer]) -> Iterator[Finding]:
    """The findings on the reachability, the versions and the clock of each other host, from that host's answer."""
    for number, answer in sorted(answers.items()):
        host = hosts[number]
        yield _reach(host, answer)
        if answer.facts is not None:
            yield _versions(host, own.versions, answer.facts.versions)
            yield _clock(host, answer.ahead_s)


def _reach(host: Host, answer: HostAnswer) -> Finding:
    if answer.facts is None:
        advice = f"run this command on it at the same time; let through port {host.port} and those that are free"
        return Finding("reach", answer.error, "problem", advice, host.name)
    if not answer.has_asked:
        advice = "it was reached, and does not reach this host: see the report of its own doctor"
        return Finding("reach", "answers, and has not asked this host", "problem", advice, host.name)
    return Finding("reach", f"answers at {host.address}, and reaches this host", host=host.name)


def _versions(host: Host, here: Mapping[str, str], there: Mapping[str, str]) -> Finding:
    unlike = [name for name in dict.fromkeys((*here, *there)) if here.get(name) != there.get(name)]
    if not unlike:
        return Finding("versions", "the same as here", host=host.name)
    differing = ", ".join(f"{name} {there.get(name, 'missing')} (here {here.get(name, 'missing')})" for name in unlike)
    severity: Severity = "problem" if any(name in _MUST_AGREE for name in unlike) else "remark"
    return Finding("versions", differing, severity, "install the same versions on all hosts", host.name)


def check_job(addresses: Sequence[str], *, secret: str) -> Iterator[Finding]:
    """The findings on the job that this host may join: if an agent of it answers at each address, with this secret."""
    for address in addresses:
        try:
            with rpc.connect(address, secret=secret) as channel:
                what, method = f"the agent at {address}", JobServiceStub(channel).GetStatus
                status = to_status(rpc.call(method, pb.Empty(), deadline_s=_ASK_S, what=what))
            yield Finding("job", f"{status.job}, of {status.membership.size} peers", host=address)
        except KungfuError as error:
            advice = "name a host on which the job runs, by its --port, and give the secret of the job"
            yield Finding("job", str(error), "problem", advice, address)


def _clock(host: Host, ahead_s: float) -> Finding:
    found = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this one"
    if abs(ahead_s) > _CLOCK_S:
        return Finding("clock", found, "remark", "let both follow a time server, so that records agree", host.name)
    return Finding("clock", "as here", host=host.name)
