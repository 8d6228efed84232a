"""The leader of a job: one of real parts that has started no peer, with other agents beside it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from kungfu.event_log.codec import unpack_event
from kungfu.event_log.events import FailedEvent, HostLostEvent, LeaderEvent, LoggedEvent, RestartedEvent
from kungfu.runtime.agent.consensus.consensus_service import (
    AdmissionRequested,
    HostService,
    LeaderLost,
    ReplicateReceived,
)
from kungfu.runtime.agent.consensus.election import Elected, MajorityAgreement, elect
from kungfu.runtime.agent.consensus.host_admission import RECORD, command_line_of
from kungfu.runtime.agent.consensus.state import parse_request_log, parse_snapshot, serialize_snapshot
from kungfu.runtime.agent.context import AgentContext, Ending, JobSpec, SignalReceived
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.journal.recorder import HostRecorder
from kungfu.runtime.agent.leader import Leader
from kungfu.runtime.agent.supervisor.process_supervisor import ProcessSupervisor
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.events import HostLost, Tick
from kungfu.runtime.core.failure import NO_QUORUM_CODE, Failure
from kungfu.runtime.core.request import Asked, Resize, SetLimits
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.job_service import Query
from kungfu.runtime.settings import CheckpointSettings
from tests.runtime.agent.consensus.agents import SETTINGS, Agent, agents, follow, left, state
from tests.runtime.agent.journal.test_journal import events_in
from tests.runtime.agent.supervisor.test_process_supervisor import Heard


class Quiet:
    """No peer prints or ends; ``seen`` are the events on a person's console."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def line(self, who: str, text: str) -> None:
        raise AssertionError(f"nobody prints here: {who}: {text}")

    def event(self, event: LoggedEvent) -> None:
        self.seen.append(event.one_line())

    def note(self, event: LoggedEvent) -> None:
        """A person would not see it."""

    def status(self, fields: Mapping[str, Any]) -> None:
        raise AssertionError(f"nothing is measured here: {fields}")

    def on_output(self, peer: int, text: str) -> None:
        raise AssertionError(f"no peer was started: {peer}: {text}")

    def on_exit(self, peer: int, code: int, tail: Sequence[str]) -> None:
        raise AssertionError(f"no peer was started: {peer}, {code}, {tail}")


@contextmanager
def context_of(
    agent: Agent, hosts: Sequence[Host], folder: Path, *, console: Quiet | None = None
) -> Iterator[AgentContext]:
    host, quiet = agent.consensus.host, console or Quiet()
    job = JobSpec(("true",), len(hosts), SETTINGS, {}, hosts=tuple(hosts), own_host=host)
    with closing(Journal(folder)) as journal:
        supervisor = ProcessSupervisor(job.command, environment={}, slots=4, journal=journal, listener=quiet)
        yield AgentContext(
            job, replace(SETTINGS, agent=agent.server.address), agent.consensus, supervisor,
            HostRecorder(journal, quiet), time.monotonic, SimpleQueue(), MajorityAgreement(agent.consensus, SETTINGS),
        )  # fmt: skip


def admission(context: AgentContext, **host: Any) -> AdmissionRequested:
    """The request of an agent with the command line of this one."""
    line, listed = command_line_of(context.job), context.job.hosts[host["number"]]
    info = pb.HostInfo(name=listed.name, slots=listed.slots, port=listed.port, **host)
    return AdmissionRequested(pb.HostAdmissionRequest(host=info, command_line=line))


def cluster_of(text: bytes) -> Cluster:
    """That of a state as it is sent."""
    return parse_snapshot(text).cluster


@contextmanager
def taking_over(
    agent: Agent, hosts: Sequence[Host], folder: Path, *, console: Quiet | None = None
) -> Iterator[tuple[Leader, AgentContext]]:
    """The agent has lost the leader and takes over; ``begin`` is still to be called."""
    agent.consensus.lose_leader()
    elected = elect(agent.consensus, SETTINGS, how="host 127.0.0.1 is lost")
    assert isinstance(elected, Elected)
    with context_of(agent, hosts, folder, console=console) as context:
        leader = Leader(context, elected=elected)
        try:
            yield leader, context
        finally:
            leader.close(Ending(0))


def test_a_new_leader_that_alone_holds_its_state_needs_the_majority_before_too(tmp_path: Path) -> None:
    with left(state(1, 2, 3, hosts=4), hosts=4) as (hosts, (one, two, three)):
        newer = state(1, 2, 3, 1, 1, 1, hosts=4, version=2)  # of which the leader told only host 1 before it was lost
        follow(one, newer, version=2)
        for agent in (two, three):
            agent.consensus.lose_leader()
        with taking_over(one, hosts, tmp_path) as (leader, _):
            for agent in (two, three):
                agent.stop()  # who hear each other still, and of the view that they know are two of three
            ending = leader.begin()
    assert ending is not None
    assert ending.code == NO_QUORUM_CODE


def test_a_leader_that_lost_its_majority_leaves_and_ends_nobody_who_still_hears_it(tmp_path: Path) -> None:
    with left(state(1, 2, 3, 3, 3, hosts=4), hosts=4) as (hosts, (one, two, three)):
        for agent in (two, three):
            agent.consensus.lose_leader()
        with taking_over(one, hosts, tmp_path) as (leader, _):
            assert leader.begin() is None
            three.stop()
            ending = leader.handle(HostLost(3, "it was cut off"))
            assert ending is not None
            assert ending.code == NO_QUORUM_CODE
            leader.close(ending)
            said = said_to(two)
    assert said[-1].leaves
    assert not any(message.HasField("end") for message in said), "it may be one of a majority with host 3"
    recorded = [unpack_event(one.event) for message in said for records in message.reports for one in records.records]
    assert [type(event) for event in recorded] == [LeaderEvent, HostLostEvent], "no end of the job"
    assert [line["code"] for line in events_in(tmp_path) if line["event"] == "failed"] == [NO_QUORUM_CODE]


def said_to(agent: Agent) -> list[pb.ReplicateRequest]:
    """The messages of a leader up to the one with which it ends."""
    said = [agent.heard.get(timeout=180.0).request]
    while not said[-1].leaves and not said[-1].HasField("end"):
        said.append(agent.heard.get(timeout=180.0).request)
    return said


def test_a_leader_that_no_quorum_follows_gives_up_no_host(tmp_path: Path) -> None:
    with left(state(1, 2, 3, hosts=4), hosts=4) as (hosts, (one, two, three)):
        for agent in (two, three):
            agent.consensus.lose_leader()
        with taking_over(one, hosts, tmp_path) as (leader, _):
            assert leader.begin() is None
            assert two.consensus.grant_vote(9, 2)
            ending = leader.handle(HostLost(3, "it was cut off"))
            assert ending is not None
            assert (ending.code, 3 in leader.cluster.hosts.known) == (NO_QUORUM_CODE, True)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_leader_that_takes_over_the_end_of_a_job_tells_it_again(tmp_path: Path, is_recorded: bool) -> None:
    ending = Ending(1, Failure(2, "rank 2 (peer 2): exit code 1", 1, ("ValueError",)))
    ended = replace(parse_snapshot(state(1, 2, 2, hosts=3)), end=ending.to_message().SerializeToString())
    with left(serialize_snapshot(ended)) as (hosts, (one, two)):
        two.consensus.lose_leader()
        with taking_over(one, hosts, tmp_path) as (leader, context):
            if is_recorded:
                context.recorder.event(FailedEvent(peer=2, error="rank 2 (peer 2): exit code 1", code=1))
            assert leader.begin() == ending
            leader.close(ending)
            assert Ending.from_message(said_to(two)[-1].end) == ending
    assert [line["peer"] for line in events_in(tmp_path) if line["event"] == "failed"] == [2]


@pytest.mark.parametrize("removed", [1, 2])
def test_a_host_whose_removal_no_quorum_has_acknowledged_joins_again(tmp_path: Path, removed: int) -> None:
    with left(state(1, 1, 2, hosts=3)) as (hosts, others):
        one, two = others
        follow(others[2 - removed], state(1, 1, 2, hosts=3, gone=frozenset({removed})), version=2)
        two.consensus.lose_leader()
        with taking_over(one, hosts, tmp_path) as (leader, context):
            assert leader.begin() is None
            while leader.cluster.hosts.known != {1, 2}:
                event = context.next_event(180.0)
                assert event is not None
                assert leader.handle(event) is None
    assert [line["host"] for line in events_in(tmp_path) if line["event"] == "host"] == [removed]


@contextmanager
def led_anew(
    folder: Path,
    serving: Mapping[int, type[HostService]] = MappingProxyType({}),
    *,
    console: Quiet | None = None,
) -> Iterator[tuple[Leader, AgentContext, list[Host], Agent, Agent]]:
    """Of three hosts the one that led is lost, which ran no peer; the next one leads by now, and runs one of three.

    Gives its leader and context, the hosts, and the two agents that are left.
    """
    with left(state(1, 2, 2, hosts=3), serving=serving) as (hosts, (one, two)):
        two.consensus.lose_leader()
        with taking_over(one, hosts, folder, console=console) as (leader, context):
            assert leader.begin() is None
            yield leader, context, hosts, one, two


def test_the_last_message_of_the_former_leader_does_not_matter(tmp_path: Path) -> None:
    late = pb.ReplicateRequest(job="job", term=1, leader=0, number=7, kills=[1])
    with led_anew(tmp_path) as (leader, *_):
        assert leader.handle(ReplicateReceived(late)) is None
        assert leader.handle(LeaderLost("seen twice")) is None
        assert leader.cluster.view is not None


def test_all_peers_get_the_threads_of_the_host_that_has_the_fewest_for_each(tmp_path: Path) -> None:
    """The other host has one for each of its peers, this one as many as it has cores."""
    with agents(2) as (hosts, (here, other)), context_of(here, hosts, tmp_path) as context:
        says, heard = "import os; print(os.environ['TF_NUM_INTRAOP_THREADS'])", Heard()
        supervisor = ProcessSupervisor(
            (sys.executable, "-c", says), environment={}, slots=1, journal=context.recorder.journal, listener=heard
        )
        hosts[0] = replace(hosts[0], slots=1)
        job = replace(context.job, hosts=tuple(hosts))
        context = replace(context, supervisor=supervisor, job=job)
        here.consensus.become_leader("job", 1)
        leader = Leader(context)
        try:
            assert leader.begin() is None
            assert leader.handle(admission(context, number=1, pid=7, threads=1)) is None
            assert leader.cluster.hosts.shares == {0: len(os.sched_getaffinity(0)), 1: 1}
            assert heard.lines.get(timeout=180.0) == "1"
            started: list[pb.Spawn] = []
            while not started:
                event = other.heard.get(timeout=180.0)
                started += event.request.starts if isinstance(event, ReplicateReceived) else []
            assert [(start.peer, start.threads) for start in started] == [(1, 1)]
        finally:
            leader.close(Ending(0))
            supervisor.close()


def kills_sent_to(agent: Agent) -> list[int]:
    """In the messages up to the first one with any, and in those after it; one comes twice a second."""
    kills, after = list[int](), 0
    while after < 3:
        event = agent.heard.get(timeout=180.0)
        kills += event.request.kills if isinstance(event, ReplicateReceived) else []
        after += bool(kills)
    return kills


def test_a_peer_that_was_started_too_late_to_be_known_of_is_ended(tmp_path: Path) -> None:
    with led_anew(tmp_path) as (leader, *_, two):
        assert leader.handle(pb.HostEvent(host=2, kind=pb.HOST_EVENT_KIND_SPAWNED, peer=9, pid=4711)) is None
        assert kills_sent_to(two) == [9]


def test_a_notice_that_is_repeated_is_no_second_signal(tmp_path: Path) -> None:
    """A notice that is repeated is no second signal for this leader, nor for the next one."""
    notice = pb.HostEvent(host=2, kind=pb.HOST_EVENT_KIND_SIGNALLED, code=signal.SIGTERM, number=4)
    with led_anew(tmp_path) as (leader, *_, two):
        assert [leader.handle(notice), leader.handle(notice)] == [None, None]
        assert leader.cluster.hosts.leaving == {2}
        assert (two.held.cluster.hosts.leaving, two.held.last_events) == ({2}, {2: 4})
        notice.number = 5
        assert leader.handle(notice) == Ending(128 + signal.SIGTERM)


def test_a_person_sees_who_leads_and_which_hosts_are_lost_or_leave(tmp_path: Path) -> None:
    notice = pb.HostEvent(host=2, kind=pb.HOST_EVENT_KIND_SIGNALLED, code=signal.SIGTERM, number=4)
    with led_anew(tmp_path, console=(console := Quiet())) as (leader, *_):
        assert leader.handle(notice) is None
    assert console.seen == [
        "host 1 (127.0.0.2) leads the job now",
        "host 0 (127.0.0.1) is lost: its agent has ended or cannot be reached",
        "host 2 (127.0.0.3) got a notice (SIGTERM): its peers leave at the next barrier",
    ]


def test_a_host_that_was_told_to_ask_again_is_not_taken_in_behind_its_back(tmp_path: Path) -> None:
    with led_anew(tmp_path) as (leader, context, hosts, *_):
        late = admission(context, number=0, pid=1)
        assert late.reply.cancel()
        assert leader.handle(late) is None
        assert 0 not in leader.cluster.hosts.slots
        old_again = AdmissionRequested(late.request)
        assert leader.handle(old_again) is None
        assert old_again.reply.result().settings
        assert leader.cluster.hosts.slots[0] == hosts[0].slots


def test_an_agent_that_did_not_hear_its_admission_reply_receives_it_again(tmp_path: Path) -> None:
    """An agent that did not hear its admission reply receives it again, and another one in its place does not."""
    with led_anew(tmp_path) as (leader, context, _, first, two):
        entering = [admission(context, number=0, pid=1, incarnation="a") for _ in range(2)]
        assert [leader.handle(one) for one in entering] == [None, None]
        assert [one.reply.result(0.0).term for one in entering] == [first.consensus.term] * 2
        assert all(one.reply.result(0.0).settings for one in entering)
        other = admission(context, number=0, pid=1, incarnation="b")
        assert leader.handle(other) is None
        reply = other.reply.result(0.0)
        assert reply.retry, "that the one before it is gone is not known yet"
        assert "a host with the name 127.0.0.1 is in it" in reply.refusal
        assert not reply.settings
        assert two.held.incarnations == {0: "a"}, "so that the next leader can tell it too"


def test_a_name_in_use_is_refused_at_once_if_its_holder_answers(tmp_path: Path) -> None:
    """Host 1 leads; host 2 has answered before, and answers the heartbeat after the first refusal."""
    with led_anew(tmp_path) as (leader, context, *_, two):
        leader.handle(Tick())

        def asks(number: int, incarnation: str) -> pb.HostAdmissionReply:
            one = admission(context, number=number, pid=1, incarnation=incarnation)
            assert leader.handle(one) is None
            return one.reply.result(0.0)

        assert not asks(1, "double of the leader").retry
        assert asks(2, "double").retry, "host 2 may have ended before its double was started"
        while asks(2, "double").retry:
            two.heard.get(timeout=180.0)
        two.stop()
        assert asks(2, "agent that replaces it").retry
        assert asks(2, "agent that replaces it").retry


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_leader_without_a_majority_with_its_own_code(tmp_path: Path, number: int) -> None:
    """The others may continue, and a supervisor that starts hosts without a majority again must not start this one."""
    with led_anew(tmp_path) as (leader, *_, two):
        if number == signal.SIGTERM:
            assert leader.handle(SignalReceived(number)) is None, "a notice"
        two.stop()
        ending = leader.handle(SignalReceived(number))
    assert ending is not None
    assert ending.failure is not None
    assert (ending.code, ending.leaves, ending.failure.code) == (128 + number, True, 128 + number)
    assert "the others may continue without it" in ending.failure.text
    assert [line["code"] for line in events_in(tmp_path) if line["event"] == "failed"] == [128 + number]


def test_a_leader_without_a_majority_takes_no_host_in(tmp_path: Path) -> None:
    with led_anew(tmp_path) as (leader, context, *_, two):
        two.stop()
        entering = admission(context, number=0, pid=1)
        ending = leader.handle(entering)
        assert ending is not None
        assert ending.code == NO_QUORUM_CODE
        assert not entering.reply.done(), "whoever leads by now does it"


def test_of_a_peer_that_has_ended_the_agents_hold_no_address_and_no_process(tmp_path: Path) -> None:
    with led_anew(tmp_path) as (leader, *_, two):
        for peer in (1, 2):
            leader.handle(pb.HostEvent(host=2, kind=pb.HOST_EVENT_KIND_SPAWNED, peer=peer, pid=100 + peer))
        assert leader.handle(pb.HostEvent(host=2, kind=pb.HOST_EVENT_KIND_ENDED, peer=1, code=1)) is None
        assert two.held.pids == {2: 102}


class Watching(HostService):
    """A follower that looks whether a query has its reply when it is sent a log of requests."""

    query: ClassVar[Query]
    replied: ClassVar[list[bool]]

    def Replicate(self, request: pb.ReplicateRequest, context: Any) -> pb.ReplicateReply:  # noqa: N802 - gRPC's name
        if "r" in parse_request_log(request.requests).entries:
            self.replied.append(self.query.reply.done())
        return super().Replicate(request, context)


def test_a_request_is_answered_only_after_the_followers_know_of_it(tmp_path: Path) -> None:
    Watching.query, Watching.replied = Query(Asked(Resize(2), id="r")), []
    with led_anew(tmp_path, {2: Watching}) as (leader, *_):
        assert leader.handle(Watching.query) is None
        assert Watching.query.reply.result(timeout=0.0).id == "r"
    assert Watching.replied[:1] == [False]


def test_a_hold_and_moved_limits_are_part_of_the_state_that_followers_hold(tmp_path: Path) -> None:
    with led_anew(tmp_path) as (leader, *_, two):
        for name, what in (("h", Resize(3, hold_s=600.0)), ("s", SetLimits(minimum=2))):
            assert leader.handle(Query(Asked(what, id=name))) is None
        sizes = parse_request_log(two.consensus.log.requests).sizes
        assert (sizes.hold and sizes.hold.size, sizes.minimum, sizes.revision) == (3, 2, 2)
        assert two.held.cluster.limits.minimum == 1, "no loss ends the job below a minimum that was raised"
    told = [(line["held"], line["minimum"]) for line in events_in(tmp_path) if line["event"] == "limits"]
    assert told == [(3, 1), (3, 2)]


def test_a_host_that_no_list_names_is_listed_and_then_admitted_by_its_number(tmp_path: Path) -> None:
    asks = Host("127.0.0.9", 2, 9)

    def joiner(context: AgentContext, number: int, *, incarnation: str = "a", host: Host = asks) -> AdmissionRequested:
        info = pb.HostInfo(
            number=number, pid=1, incarnation=incarnation, name=host.name, slots=host.slots, port=host.port
        )
        return AdmissionRequested(pb.HostAdmissionRequest(host=info, command_line=command_line_of(context.job)))

    with led_anew(tmp_path) as (leader, context, hosts, _, two):
        first = joiner(context, -1)
        assert leader.handle(first) is None
        reply = first.reply.result(0.0)
        assert (reply.retry, reply.number, reply.settings) == (True, 3, b"")
        assert two.held.hosts.listed == {**dict(enumerate(hosts)), 3: asks}, "the others hold it before it is told"
        assert 3 not in leader.cluster.hosts.known
        again, admitted = joiner(context, -1), joiner(context, 3)
        assert [leader.handle(one) for one in (again, admitted)] == [None, None]
        assert again.reply.result(0.0).number == 3, "it has not heard its number"
        assert (admitted.reply.result(0.0).settings != b"", admitted.reply.result(0.0).leader) == (True, 1)
        assert leader.cluster.hosts.slots[3] == 2
        other = joiner(context, -1, incarnation="b")
        assert leader.handle(other) is None
        assert "a host with the name 127.0.0.9 is in it, at 127.0.0.9:9 with 2 slots" in other.reply.result(0.0).refusal
        assert leader.handle(HostLost(3, "it was only named")) is None
        larger = joiner(context, -1, incarnation="c", host=replace(asks, slots=5))
        assert leader.handle(larger) is None
        assert larger.reply.result(0.0).number == 4, "with other slots it is another host"


def test_a_host_that_is_lost_for_long_leaves_the_list_and_comes_back_as_another(tmp_path: Path) -> None:
    console, forget_s = Quiet(), SETTINGS.deadlines.forget_s
    with led_anew(tmp_path, console=console) as (leader, context, *_, two):
        leader.handle(Tick())
        assert 0 in two.held.hosts.listed
        controller = leader._controller
        controller.hosts = replace(controller.hosts, absent_since={0: time.monotonic() - forget_s - 1.0})
        leader.handle(Tick())
        assert two.held.hosts.listed.keys() == {1, 2}
        assert "it is lost for 600 s (--forget-host)" in console.seen[-1]
        back = admission(context, number=0, pid=1, incarnation="b")
        assert leader.handle(back) is None
        assert back.reply.result(0.0).number == 3, "which is the host 0 of the list of its line"


def test_a_host_with_a_record_of_the_job_is_refused_by_a_founder_without_one(tmp_path: Path) -> None:
    """The job would begin anew, and its progress would be lost; the same host may enter a job that is started again."""
    restart = RestartedEvent(why="killed", nth=1, limit=2, size=2, first_peer=2, first_view=3)
    for again, refusal in ((None, "holds the record of job one, and that of 127.0.0.1"), (restart, "")):
        with agents(3) as (hosts, (founder, *_)), context_of(founder, hosts, tmp_path / str(refusal == "")) as context:
            settings = replace(context.job.settings, checkpoints=CheckpointSettings(restarts=2))
            context = replace(context, job=replace(context.job, settings=settings))
            leader, asks = Leader(context, restart=again), admission(context, number=1, pid=1, incarnation="a")
            asks.request.command_line[RECORD] = "one"
            assert leader.begin() is None
            assert leader.handle(asks) is None
            assert refusal in asks.reply.result(0.0).refusal
            assert bool(asks.reply.result(0.0).settings) is (refusal == "")
            leader.close(Ending(0))


def test_a_job_that_begins_with_some_hosts_has_as_many_founders_as_peers(tmp_path: Path) -> None:
    """Of three peers two begin; a size that a checkpoint has is compared with two."""
    with agents(3) as (hosts, (here, other, _)), context_of(here, hosts, tmp_path) as context:
        founders = "json.loads(os.environ['KUNGFU_SETTINGS'])['checkpoints']['founders']"
        says, heard = f"import json, os; print({founders})", Heard()
        supervisor = ProcessSupervisor(
            (sys.executable, "-c", says), environment={}, slots=1, journal=context.recorder.journal, listener=heard
        )
        one_each = tuple(replace(host, slots=1) for host in hosts)
        job = replace(context.job, size=3, hosts=one_each, min_hosts=2)
        context = replace(context, supervisor=supervisor, job=job)
        here.consensus.become_leader("job", 1)
        leader = Leader(context)
        try:
            assert leader.begin() is None
            assert not leader.cluster.alive, "one host is too few"
            assert leader.handle(admission(context, number=2, pid=7, incarnation="a", threads=1)) is None
            assert (sorted(leader.cluster.starting), leader.cluster.hosts.goal) == ([0, 1], 3)
            assert leader.cluster.hosts.of == {0: 0, 1: 2}
            assert heard.lines.get(timeout=180.0) == "2"
            assert other.heard.empty(), "host 1 is still to come"
            # A host that has no peer may go before the first view; the job cannot begin without the others.
            assert leader.handle(admission(context, number=1, pid=8, incarnation="b", threads=1)) is None
            notices = [pb.HostEvent(host=host, kind=pb.HOST_EVENT_KIND_SIGNALLED, code=15, number=1) for host in (1, 2)]
            assert leader.handle(notices[0]) is None
            assert leader.cluster.hosts.known == {0, 2}
            assert leader.handle(notices[1]) == Ending(128 + signal.SIGTERM)
        finally:
            leader.close(Ending(0))
            supervisor.close()
