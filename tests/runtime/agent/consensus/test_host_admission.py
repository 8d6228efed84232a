"""How an agent finds the job that it belongs to, and when it founds one."""

from __future__ import annotations

import queue
import socket
import threading
from dataclasses import replace

import pytest

from kungfu import __version__
from kungfu.errors import DeadlineExceeded
from kungfu.runtime.agent.consensus.host_admission import Admitted, command_line_of, mismatch, request_admission
from kungfu.runtime.agent.context import JobSpec
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import SETTINGS, agents, free_port
from tests.runtime.ipc.link import link


def test_the_first_host_founds_the_job_where_no_agent_runs_on_the_others_yet() -> None:
    hosts = (Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, free_port("127.0.0.2")))
    assert (
        request_admission(JobSpec(("true",), 2, SETTINGS, {}, hosts=hosts), SETTINGS, interrupted=lambda: False) is None
    )


def test_the_first_host_founds_no_job_while_it_cannot_reach_the_others() -> None:
    """The first host founds no job while it cannot reach the others, and comes back into theirs."""
    found: queue.SimpleQueue[Admitted | None] = queue.SimpleQueue()
    with agents(2) as (hosts, (_, other)), link(hosts[1].address, host="127.0.0.2") as net:
        other.consensus.become_leader("job", 2)
        hosts[1] = Host("127.0.0.2", 4, int(net.address.rpartition(":")[2]))
        job = JobSpec(("true",), 2, SETTINGS, {}, hosts=tuple(hosts))
        net.down()
        entering = threading.Thread(
            target=lambda: found.put(request_admission(job, SETTINGS, interrupted=lambda: False))
        )
        entering.start()
        assert net.reached.wait(180.0)
        assert found.empty(), "it is cut off, and may have been in a job before it was restarted"
        net.up()
        settings = replace(SETTINGS, agent=other.server.address)
        reply = pb.HostAdmissionReply(settings=settings.to_json(), term=2, leader=1)
        other.heard.get(timeout=180.0).reply.set_result(reply)
        entered = found.get(timeout=180.0)
        entering.join(10.0)
        net.down()
        hasty = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, ready_s=0.5))
        with pytest.raises(DeadlineExceeded, match=r"no agent .* accepted this one; 127\.0\.0\.2 cannot be reached$"):
            request_admission(replace(job, settings=hasty), hasty, interrupted=lambda: False)
    assert entered is not None
    assert (entered.leader, entered.term, entered.settings.job) == (1, 2, "job")


def test_the_first_host_founds_no_second_job_while_another_host_is_in_one() -> None:
    """The agent of host 0 led, and was restarted; host 1 follows it still, and no agent runs on host 2."""
    passes = iter([False, False, True])
    with agents(2) as (hosts, (_, follower)):
        follower.consensus.follow("job", 0)
        hosts.append(Host("127.0.0.3", 1, free_port("127.0.0.3")))
        job = JobSpec(("true",), 3, SETTINGS, {}, hosts=tuple(hosts))
        assert request_admission(job, SETTINGS, interrupted=lambda: next(passes)) is None
    assert [*passes] == [], "it asks until it is interrupted"


def test_a_host_that_does_not_answer_is_given_up_before_the_ready_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other hosts, one of which may lead, are still to be asked before that deadline."""
    monkeypatch.setattr("kungfu.runtime.agent.consensus.host_admission._REQUEST_DEADLINE_S", 0.1)
    settings, passes = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, ready_s=30.0)), iter([False, True])
    with socket.create_server(("127.0.0.2", 0)) as frozen:
        hosts = (Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, frozen.getsockname()[1]))
        job = JobSpec(("true",), 2, settings, {}, hosts=hosts)
        assert request_admission(job, settings, interrupted=lambda: next(passes)) is None


def test_a_host_that_comes_back_may_find_a_newer_checkpoint() -> None:
    def line(option: str, found: str) -> JobSpec:
        checkpoints = replace(SETTINGS.checkpoints, resume=found, resume_option=option)
        return JobSpec(("true",), 2, replace(SETTINGS, checkpoints=checkpoints), {})

    began = line("--resume-if-any /kept", "")
    assert mismatch(command_line_of(line("--resume-if-any /kept", "/kept/step-00000020")), began) == ""
    assert "--resume '--resume /kept'" in mismatch(command_line_of(line("--resume /kept", "")), began)


def test_an_agent_of_another_version_of_kungfu_is_refused_with_both_versions() -> None:
    job = JobSpec(("true",), 2, SETTINGS, {}, hosts=(Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, 1)))
    line = command_line_of(job)
    assert mismatch(line, job) == ""
    refusal = mismatch({**line, "kungfu": "0.0.1"}, job)
    assert f"started with kungfu '0.0.1', and the job with {__version__!r}" in refusal
    assert "of the same kungfu, on every host" in refusal
