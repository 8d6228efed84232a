"""How an agent finds the job that it belongs to, and when it founds one."""

from __future__ import annotations

import queue
import socket
import threading
from dataclasses import replace
from functools import partial

import pytest

from kungfu import __version__
from kungfu.errors import DeadlineExceeded, UsageError
from kungfu.runtime.agent.consensus.election import MajorityAgreement
from kungfu.runtime.agent.consensus.host_admission import (
    Admitted,
    FormerJob,
    command_line_of,
    listed_reply,
    mismatch,
    refusal_of,
    request_admission,
    unreachable,
)
from kungfu.runtime.agent.consensus.state import ConsensusState
from kungfu.runtime.agent.context import JobSpec
from kungfu.runtime.core.cluster.cluster import SpareLimits
from kungfu.runtime.hosts import Host, StoreAddress
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import SETTINGS, agents, free_port
from tests.runtime.ipc.link import link

first_founds = partial(MajorityAgreement(ConsensusState(0), SETTINGS).found, "job")


def never(job_exists: bool, is_silent: bool) -> int:
    return 0


def test_the_first_host_founds_the_job_where_no_agent_runs_on_the_others_yet() -> None:
    hosts = (Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, free_port("127.0.0.2")))
    job = JobSpec(("true",), 2, SETTINGS, {}, hosts=hosts)
    assert request_admission(job, SETTINGS, found=first_founds, interrupted=lambda: False) is None


def test_the_first_host_founds_no_job_while_it_cannot_reach_the_others() -> None:
    """The first host founds no job while it cannot reach the others, and comes back into theirs."""
    found: queue.SimpleQueue[Admitted | None] = queue.SimpleQueue()
    with agents(2) as (hosts, (_, other)), link(hosts[1].address, host="127.0.0.2") as net:
        other.consensus.become_leader("job", 2)
        hosts[1] = Host("127.0.0.2", 4, int(net.address.rpartition(":")[2]))
        job = JobSpec(("true",), 2, SETTINGS, {}, hosts=tuple(hosts))
        net.down()
        entering = threading.Thread(
            target=lambda: found.put(request_admission(job, SETTINGS, found=first_founds, interrupted=lambda: False))
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
            request_admission(replace(job, settings=hasty), hasty, found=first_founds, interrupted=lambda: False)
    assert entered is not None
    assert (entered.leader, entered.term, entered.settings.job) == (1, 2, "job")


def test_the_first_host_founds_no_second_job_while_another_host_is_in_one() -> None:
    """The agent of host 0 led, and was restarted; host 1 follows it still, and no agent runs on host 2."""
    passes = iter([False, False, True])
    with agents(2) as (hosts, (_, follower)):
        follower.consensus.follow("job", 0)
        hosts.append(Host("127.0.0.3", 1, free_port("127.0.0.3")))
        job = JobSpec(("true",), 3, SETTINGS, {}, hosts=tuple(hosts))
        assert request_admission(job, SETTINGS, found=first_founds, interrupted=lambda: next(passes)) is None
    assert [*passes] == [], "it asks until it is interrupted"


def test_a_host_that_does_not_answer_is_given_up_before_the_ready_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other hosts, one of which may lead, are still to be asked before that deadline."""
    monkeypatch.setattr("kungfu.runtime.agent.consensus.host_admission._REQUEST_DEADLINE_S", 0.1)
    settings, passes = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, ready_s=30.0)), iter([False, True])
    with socket.create_server(("127.0.0.2", 0)) as frozen:
        hosts = (Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, frozen.getsockname()[1]))
        job = JobSpec(("true",), 2, settings, {}, hosts=hosts)
        assert request_admission(job, settings, found=first_founds, interrupted=lambda: next(passes)) is None


def test_a_host_that_comes_back_may_find_a_newer_checkpoint() -> None:
    def line(option: str, found: str) -> JobSpec:
        checkpoints = replace(SETTINGS.checkpoints, resume=found, resume_option=option)
        return JobSpec(("true",), 2, replace(SETTINGS, checkpoints=checkpoints), {})

    began = line("--resume-if-any /kept", "")
    assert mismatch(command_line_of(line("--resume-if-any /kept", "/kept/step-00000020")), began) == ""
    assert "--resume '--resume /kept'" in mismatch(command_line_of(line("--resume /kept", "")), began)


def test_all_hosts_are_started_with_the_same_spares() -> None:
    job = JobSpec(("true",), 2, SETTINGS, {}, spares=SpareLimits(1))
    other = replace(job, spares=SpareLimits(1, "loaded"))
    assert "started with --spares '1:loaded', and the job with '1:warm'" in mismatch(command_line_of(other), job)


def test_an_agent_of_another_version_of_kungfu_is_refused_with_both_versions() -> None:
    job = JobSpec(("true",), 2, SETTINGS, {}, hosts=(Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, 1)))
    line = command_line_of(job)
    assert mismatch(line, job) == ""
    refusal = mismatch({**line, "kungfu": "0.0.1"}, job)
    assert f"started with kungfu '0.0.1', and the job with {__version__!r}" in refusal
    assert "of the same kungfu, on every host" in refusal


# ---- hosts that only the record names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "secret", "founds"),
    [(("job",), SETTINGS.secret, False), (("former",), SETTINGS.secret, True), (("job",), "cd" * 32, True)],
    ids=["its job", "another job", "another secret"],
)
def test_the_first_host_founds_no_job_beside_that_of_a_host_which_had_joined_it(
    names: tuple[str, ...], secret: str, founds: bool
) -> None:
    """All hosts of the list were lost; the host that had joined goes on, or is in another job by now."""
    passes = iter([False, False, True])
    with agents(2) as (hosts, (_, joined)):
        joined.consensus.follow("job", 7)
        here, former = Host("127.0.0.3", 1, 1), FormerJob(names, {hosts[1].address: hosts[1].name})
        job = JobSpec(("true",), 1, replace(SETTINGS, secret=secret), {}, hosts=(here,))
        assert request_admission(job, SETTINGS, found=first_founds, interrupted=passes.__next__, former=former) is None
    assert bool([*passes]) == founds, "it asks until it is interrupted, or has founded the job at once"


def test_the_first_host_waits_for_a_recorded_host_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kungfu.runtime.agent.consensus.host_admission._REQUEST_DEADLINE_S", 0.1)
    hasty = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, ready_s=0.5))
    with socket.create_server(("127.0.0.2", 0)) as frozen:
        former = FormerJob(("job",), {f"127.0.0.2:{frozen.getsockname()[1]}": "127.0.0.2"})
        job = JobSpec(("true",), 1, hasty, {}, hosts=(Host("127.0.0.1", 1, 1),))
        with pytest.raises(DeadlineExceeded, match=r"127\.0\.0\.2 had joined it, and may go on .* new --logdir"):
            request_admission(job, hasty, found=first_founds, interrupted=lambda: False, former=former)


def test_a_host_that_had_joined_comes_back_through_any_host_of_its_record() -> None:
    """The host that it was told to join is gone; the job may have been started again under another name."""
    with agents(1) as (hosts, (leader,)), socket.create_server(("127.0.0.3", 0)) as here:
        leader.consensus.become_leader("again", 1)
        job = joining(f"127.0.0.2:{free_port('127.0.0.2')}", port=here.getsockname()[1])
        former = FormerJob(("job",), {hosts[0].address: hosts[0].name, job.hosts[0].address: "127.0.0.3"})
        settings = replace(SETTINGS, job="again", agent=job.hosts[0].address)
        admitted = pb.HostAdmissionReply(settings=settings.to_json(), term=1, leader=0, job="again")

        def answer() -> None:
            for reply in (pb.HostAdmissionReply(refusal="of another program", job="another"), admitted):
                leader.heard.get(timeout=180.0).reply.set_result(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        entered = request_admission(job, SETTINGS, found=never, interrupted=lambda: False, former=former)
        thread.join(10.0)
    assert entered is not None
    assert entered.settings.job == "again"


# ---- hosts that no list names ----------------------------------------------------------------------------------------


def joining(*addresses: str, port: int = 28100, heartbeat_s: float = 30.0) -> JobSpec:
    """The line of a host that joins a job, of which it knows these addresses."""
    settings = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, heartbeat_s=heartbeat_s))
    return JobSpec(("true",), 2, settings, {}, hosts=(Host("127.0.0.3", 2, port),), join=addresses)


def test_a_host_that_asks_a_follower_gets_a_number_of_the_leader_and_asks_again() -> None:
    found, numbers = queue.SimpleQueue[Admitted | None](), list[int]()
    with agents(2) as (hosts, (leader, follower)), socket.create_server(("127.0.0.3", 0)) as here:
        leader.consensus.become_leader("job", 1)
        follower.consensus.follow("job", 0, 1)
        job, listed = joining(hosts[1].address, port=here.getsockname()[1]), dict(enumerate(hosts))
        entering = threading.Thread(
            target=lambda: found.put(
                request_admission(job, SETTINGS, found=never, interrupted=lambda: False, on_number=numbers.append)
            )
        )
        entering.start()
        asked = leader.heard.get(timeout=180.0)
        assert asked.request.host.number == -1
        assert Host(asked.request.host.name, asked.request.host.slots, asked.request.host.port) == job.hosts[0]
        numbered = listed_reply({**listed, 7: job.hosts[0]}, job="job", leader=0)
        numbered.retry, numbered.number = True, 7
        asked.reply.set_result(numbered)
        again = leader.heard.get(timeout=180.0)
        assert (again.request.host.number, again.request.host.incarnation) == (7, asked.request.host.incarnation)
        reply = pb.HostAdmissionReply(settings=SETTINGS.to_json(), term=1, leader=0, hosts=numbered.hosts)
        again.reply.set_result(reply)
        entered = found.get(timeout=180.0)
        entering.join(10.0)
    assert entered is not None
    assert (entered.number, entered.leader, entered.hosts) == (7, 0, {**listed, 7: job.hosts[0]})
    assert numbers == [7]


def test_a_host_joins_no_two_jobs_and_none_that_has_ended() -> None:
    with agents(2) as (hosts, (one, other)):
        one.consensus.follow("job", 1)
        other.consensus.follow("another", 0)
        with pytest.raises(UsageError, match="is in job another, and another host that was asked is in job job"):
            request_admission(
                joining(*(host.address for host in hosts)), SETTINGS, found=never, interrupted=lambda: False
            )
        passes = iter([False])
        other.stop()

        def is_interrupted() -> bool:
            if next(passes, None) is None:
                one.stop()  # which was asked once
            return False

        with pytest.raises(DeadlineExceeded, match="job job has ended before it took this host"):
            request_admission(
                joining(hosts[0].address, heartbeat_s=0.2), SETTINGS, found=never, interrupted=is_interrupted
            )


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_host_enters_the_job_that_is_started_again_although_it_met_the_former_one(is_listed: bool) -> None:
    """Host 1 follows the job that is about to end; then its agent has ended, and host 0 has founded the job again."""
    with agents(2) as (hosts, (founder, former)):
        former.consensus.follow("job", 0)
        joins = joining(*(host.address for host in hosts))
        here = Host("127.0.0.3", 2, 1)
        job = replace(joins, join=(), hosts=(*hosts, here), own_host=2) if is_listed else joins
        passes = iter([False])

        def is_interrupted() -> bool:
            if next(passes, None) is None and not founder.consensus.job:
                former.stop()  # which was asked once
                founder.consensus.become_leader("again", 1)
            return False

        def admit() -> None:
            settings = replace(SETTINGS, job="again")
            reply = pb.HostAdmissionReply(settings=settings.to_json(), term=1, leader=0, job="again")
            founder.heard.get(timeout=180.0).reply.set_result(reply)
            founder.heard.get(timeout=180.0).reply.set_result(reply)

        thread = threading.Thread(target=admit, daemon=True)
        thread.start()
        job = replace(job, settings=replace(job.settings, deadlines=replace(job.settings.deadlines, ready_s=30.0)))
        with socket.create_server((here.name, 0)) as server:
            if not is_listed:
                job = replace(job, hosts=(Host(here.name, 2, server.getsockname()[1]),))
            entered = request_admission(job, SETTINGS, found=never, interrupted=is_interrupted)
    assert entered is not None
    assert entered.settings.job == "again"


def test_the_leader_that_a_store_names_is_asked_and_may_be_of_another_job() -> None:
    strange, here = replace(SETTINGS, secret="cd" * 32), Host("127.0.0.3", 2, 28100)
    job = JobSpec(("true",), 2, strange, {}, hosts=(here,), store=StoreAddress("127.0.0.1:2379", "digits"))
    assert "-H" not in command_line_of(job), "hosts without a list have one line"
    with agents(1) as (hosts, (leader,)):
        leader.consensus.become_leader("other", 1)
        ask = partial(
            request_admission, found=never, interrupted=lambda: False, leader=lambda: ("other", hosts[0].address)
        )
        with pytest.raises(UsageError, match=r"127.0.0.1:\d+ has another secret: .* digits is another job .* --job"):
            ask(job, strange)
        with pytest.raises(UsageError, match=r"names 127.0.0.1:\d+ as the leader .* a loopback address on 192.0.2.3"):
            ask(replace(job, hosts=(Host("192.0.2.3", 2, 28100),)), strange)


def test_a_name_in_use_is_waited_for_and_then_refused() -> None:
    """The host that has the name may have ended, and is not missed yet."""
    in_use = pb.HostAdmissionReply(retry=True, refusal="a host with the name 127.0.0.3 is in it")
    asked = list[int]()
    with agents(1) as (hosts, (leader,)), socket.create_server(("127.0.0.3", 0)) as here:
        leader.consensus.become_leader("job", 1)
        job = joining(hosts[0].address, port=here.getsockname()[1], heartbeat_s=0.2)

        def answer() -> None:
            while (requested := leader.heard.get(timeout=180.0)) is not None:
                requested.reply.set_result(in_use)
                asked.append(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UsageError, match="does not take this host: a host with the name"):
            request_admission(job, SETTINGS, found=never, interrupted=lambda: False)
        leader.heard.put(None)
        thread.join(10.0)
    assert len(asked) > 1


@pytest.mark.parametrize(("ahead_s", "words"), [(-3600.0, "3600 s behind"), (3600.0, "3600 s ahead of"), (30.0, "")])
def test_a_clock_that_differs_by_an_hour_is_refused(ahead_s: float, words: str) -> None:
    job = joining("127.0.0.1:1")
    request = pb.HostAdmissionRequest(command_line=command_line_of(job), time=1e9 + ahead_s)
    refusal = refusal_of(request, job, now=1e9)
    assert bool(refusal) == bool(words)
    assert words in refusal


def test_the_leader_must_reach_a_host_that_joins_by_its_name() -> None:
    closed = Host("127.0.0.3", 1, free_port("127.0.0.3"))
    assert f"cannot reach {closed.address} (" in unreachable(closed, own=Host("127.0.0.1", 1, 1))
    assert "127.0.0.3 is a loopback address" in unreachable(closed, own=Host("192.0.2.1", 1, 1))
    with socket.create_server(("127.0.0.3", 0)) as here:
        assert unreachable(Host("127.0.0.3", 1, here.getsockname()[1]), own=closed) == ""


def test_the_list_of_hosts_is_compared_only_with_another_list() -> None:
    listed = JobSpec(("true",), 2, SETTINGS, {}, hosts=(Host("127.0.0.1", 1, 1), Host("127.0.0.2", 1, 1)))
    other = replace(listed, hosts=listed.hosts[::-1])
    joiner = replace(listed, hosts=(Host("127.0.0.3", 1, 1),), join=("127.0.0.1:1",))
    assert "started with -H" in mismatch(command_line_of(other), listed)
    assert mismatch(command_line_of(joiner), listed) == mismatch(command_line_of(listed), joiner) == ""
    assert "--inelastic 'inelastic'" in mismatch(command_line_of(replace(joiner, scaling="inelastic")), listed)
