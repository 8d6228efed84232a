"""An agent that follows another one, and what signals mean to it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kungfu.errors import KungfuError
from kungfu.event_log.events import HostJoinedEvent, LoggedEvent
from kungfu.runtime.agent.agent import Agent as WholeAgent
from kungfu.runtime.agent.consensus.election import elect
from kungfu.runtime.agent.consensus.host_admission import command_line_of
from kungfu.runtime.agent.consensus.replication import lost_after_s
from kungfu.runtime.agent.context import Ending, JobSpec, SignalReceived
from kungfu.runtime.agent.follower import Follower
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.core.failure import NO_QUORUM_CODE
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import HostServiceStub
from kungfu.runtime.job_api.job_file import NAME as JOB_FILE
from tests.jobs.harness import awaited
from tests.runtime.agent.consensus.agents import HASTY, SETTINGS, Agent, agents, follow, free_port, replicator_of, state
from tests.runtime.agent.journal.test_journal import events_in
from tests.runtime.agent.test_leader import Quiet, context_of


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a folder of checkpoints is one job's


def run_second(hosts: list[Host], folder: Path, *, program: str = sys.executable) -> Ending:
    """Runs the agent of the second host, as whose folder ``folder`` serves, to its end."""
    journal = Journal(folder)
    job = JobSpec((program,), 2, replace(SETTINGS, agent="127.0.0.2"), {}, hosts=tuple(hosts), own_host=1)
    ending = WholeAgent(job, journal=journal, console=Quiet()).run()
    journal.close()
    return ending


@contextmanager
def led(lead: Callable[[Agent, list[Host]], None], *beside: Callable[[], None]) -> Iterator[list[Host]]:
    """A leader on the first of two hosts, which leads in a thread of its own; what else goes on beside it."""
    with agents(1) as (hosts, (leader,)):
        hosts.append(Host("127.0.0.2", 4, free_port("127.0.0.2")))
        leader.consensus.become_leader("job", 1)
        threads = [threading.Thread(target=work) for work in (partial(lead, leader, hosts), *beside)]
        for thread in threads:
            thread.start()
        yield hosts
        for thread in threads:
            thread.join(timeout=180.0)


def admission_by(leader: Agent) -> pb.HostAdmissionReply:
    return pb.HostAdmissionReply(settings=replace(SETTINGS, agent=leader.server.address).to_json(), term=1)


def test_a_signal_is_a_notice_and_a_second_one_the_end(tmp_path: Path) -> None:
    """A signal is a notice, whatever else the leader has yet to hear of, and a second one is the end."""
    with agents(2) as (hosts, (_, other)), context_of(other, hosts, tmp_path) as context:
        follow(other, state(0, 1, hosts=2))
        follower, ended = Follower(context), pb.HostEvent(host=1, kind=pb.HOST_EVENT_KIND_ENDED, peer=1)
        context.host_events.put(ended)
        assert follower.handle(SignalReceived(signal.SIGTERM)) is None
        assert context.host_events.first() == ended
        assert follower.handle(SignalReceived(signal.SIGTERM)) == Ending(128 + signal.SIGTERM), (
            "the leader has heard of none"
        )


def test_a_host_that_was_taken_in_and_hears_nothing_more_of_the_leader_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kungfu.runtime.agent.agent.elect",
        lambda consensus, settings, **given: elect(consensus, HASTY, **given),
    )

    def lead(leader: Agent, hosts: list[Host]) -> None:
        leader.heard.get(timeout=180.0).reply.set_result(admission_by(leader))
        what = "the agent to know of the job that it was taken in"
        awaited((tmp_path / JOB_FILE).exists, what=what, deadline_s=180.0)
        leader.stop()

    with led(lead) as hosts:
        ending = run_second(hosts, tmp_path)
    assert ending.code == NO_QUORUM_CODE
    assert ending.failure is not None
    assert "has ended or cannot be reached, before the first view" in ending.failure.text
    assert [line["error"] for line in events_in(tmp_path) if line["event"] == "failed"] == [ending.failure.text]


def test_commands_to_an_agent_without_its_admission_reply_are_done_after_it(tmp_path: Path) -> None:
    done: list[Any] = []

    def lead(leader: Agent, hosts: list[Host]) -> None:
        asked = [leader.heard.get(timeout=180.0)]
        with replicator_of(hosts, incarnation=asked[0].request.host.incarnation) as (replicator, _):
            replicator.send(1, pb.ReplicateRequest(starts=[pb.Spawn(peer=5)]))
            assert replicator.commit(state(0, 1, hosts=2)) == "committed"
            asked[0].reply.set_exception(RuntimeError("the answer is lost"))
            asked.append(leader.heard.get(timeout=180.0))
            asked[1].reply.set_result(admission_by(leader))
            done.append(asked[0].request.host == asked[1].request.host)
            done.append(leader.heard.get(timeout=180.0))
            replicator.send(1, pb.ReplicateRequest(end=pb.JobEnd(code=0, peer=-1)))

    with led(lead) as hosts:
        ending = run_second(hosts, tmp_path, program="true")
    assert ending == Ending(0)
    same, started = done
    assert same, "one agent, so that the leader can tell that it is"
    assert (started.kind, started.peer) == (pb.HOST_EVENT_KIND_SPAWNED, 5)


class Broken(Quiet):
    """The leader cannot go on once the second host is in."""

    def event(self, event: LoggedEvent) -> None:
        if isinstance(event, HostJoinedEvent) and event.host == 1:
            raise OSError(errno.ENOSPC, "no space left on device")


def test_a_leader_that_fails_says_no_end_of_the_job_but_goes(tmp_path: Path) -> None:
    said: list[pb.ReplicateRequest] = []
    with agents(2) as (hosts, (_, other)):
        hosts[0] = Host("127.0.0.1", 4, free_port("127.0.0.1"))

        def entered() -> None:
            with rpc.connect(hosts[0].address, secret=SETTINGS.secret) as channel:
                line = command_line_of(JobSpec((sys.executable,), 2, SETTINGS, {}, hosts=tuple(hosts)))
                me = pb.HostInfo(number=1, pid=1, name=hosts[1].name, slots=4, port=hosts[1].port)
                entrance = pb.HostAdmissionRequest(host=me, command_line=line)
                while other.heard.empty():  # at first nobody listens, and then nobody answers any more
                    with suppress(KungfuError):
                        rpc.call(HostServiceStub(channel).AdmitHost, entrance, deadline_s=10.0, what="the leader")
            while not any(message.leaves for message in said):
                said.append(other.heard.get(timeout=180.0).request)

        entering = threading.Thread(target=entered)
        journal = Journal(tmp_path)
        job = JobSpec((sys.executable,), 2, replace(SETTINGS, agent="127.0.0.1"), {}, hosts=tuple(hosts))
        entering.start()
        with pytest.raises(OSError, match="no space left") as caught:
            WholeAgent(job, journal=journal, console=Broken()).run()
        entering.join(timeout=180.0)
        journal.close()
    assert "The other hosts of this job go on without this one" in "".join(caught.value.__notes__)
    assert said[-1].leaves
    assert not any(message.HasField("end") for message in said)


class Stuck(Quiet):
    """The disk or the terminal of the leader does not answer once the second host is in."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def event(self, event: LoggedEvent) -> None:
        if isinstance(event, HostJoinedEvent) and event.host == 1:
            self.may_go_on.wait(180.0)


def test_a_leader_whose_main_thread_hangs_is_not_heard_any_more(tmp_path: Path) -> None:
    deadlines = replace(SETTINGS.deadlines, heartbeat_s=1.0)
    settings, console = replace(SETTINGS, agent="127.0.0.1", deadlines=deadlines), Stuck()
    silent: list[bool] = []
    with agents(2) as (hosts, (_, other)):
        hosts[0] = Host("127.0.0.1", 4, free_port("127.0.0.1"))
        job = JobSpec((sys.executable,), 2, settings, {}, hosts=tuple(hosts))

        def entered() -> None:
            try:
                with rpc.connect(hosts[0].address, secret=SETTINGS.secret) as channel:
                    stub = HostServiceStub(channel)
                    me = pb.HostInfo(number=1, pid=1, name=hosts[1].name, slots=4, port=hosts[1].port)
                    entrance = pb.HostAdmissionRequest(host=me, command_line=command_line_of(job))
                    while other.consensus.leader is None:
                        with suppress(KungfuError):
                            rpc.call(stub.AdmitHost, entrance, deadline_s=5.0, what="the leader")
                awaited(
                    lambda: other.consensus.silence_s() > lost_after_s(deadlines),
                    what="the silence of the leader", deadline_s=60.0,
                )  # fmt: skip
                silent.append(True)
            finally:
                console.may_go_on.set()
                os.kill(os.getpid(), signal.SIGINT)

        entering = threading.Thread(target=entered)
        with closing(Journal(tmp_path)) as journal:
            entering.start()
            WholeAgent(job, journal=journal, console=console).run()
            entering.join(timeout=180.0)
    assert silent


def test_an_interrupt_ends_this_host_when_the_leader_is_lost_before_it_hears_of_it(tmp_path: Path) -> None:
    over, needed_more = threading.Event(), threading.Event()

    def lead(leader: Agent, hosts: list[Host]) -> None:
        asked = leader.heard.get(timeout=180.0)
        asked.reply.set_result(admission_by(leader))
        with replicator_of(hosts, incarnation=asked.request.host.incarnation) as (replicator, _):
            replicator.commit(state(0, 1, hosts=2))
            leader.stop()
            os.kill(os.getpid(), signal.SIGINT)

    def insist() -> None:
        limit_s = 120.0
        while not over.wait(limit_s):
            needed_more.set()
            os.kill(os.getpid(), signal.SIGINT)
            limit_s = 0.5

    with led(lead, insist) as hosts:
        ending = run_second(hosts, tmp_path)
        over.set()
    assert ending == Ending(128 + signal.SIGINT)
    assert not needed_more.is_set(), "one interrupt is enough"
