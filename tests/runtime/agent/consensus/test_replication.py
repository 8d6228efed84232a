"""What the leader sends: in order, acknowledged by all before it goes on; a follower that does not reply is lost."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import pytest

from kungfu.runtime.agent.consensus.consensus_service import HostService, ReplicateReceived
from kungfu.runtime.agent.consensus.replication import HostReported, lost_after_s, split_off
from kungfu.runtime.agent.consensus.state import parse_snapshot
from kungfu.runtime.core.cluster.events import HostLost
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.jobs.harness import awaited
from tests.runtime.agent.consensus.agents import SETTINGS, agents, replicator_of, state
from tests.runtime.ipc.link import link


def test_everybody_holds_the_state_before_the_leader_goes_on() -> None:
    with agents(3, started=[7]) as (hosts, made), replicator_of(hosts) as (replicator, heard):
        sent = state(0, 1, 2, hosts=3)
        assert replicator.commit(sent) == "committed"
        for number in (1, 2):
            assert made[number].held == parse_snapshot(sent)
            assert made[number].consensus.leader == 0
        assert {heard.get(timeout=180.0) for _ in range(2)} == {
            HostReported(1, (7,), os.getpid()),
            HostReported(2, (7,), os.getpid()),
        }
        assert replicator.reachable == {0, 1, 2}


class Measuring(HostService):
    """Notes how many bytes of requests and how many in all each message has that brings a state.

    One that is not answered soon comes a second time, under its number, and counts once.
    """

    sizes: ClassVar[queue.SimpleQueue[tuple[int, int]]] = queue.SimpleQueue()
    numbers: ClassVar[set[int]] = set()

    def Replicate(self, request: pb.ReplicateRequest, context: Any) -> pb.ReplicateReply:  # noqa: N802 - gRPC's name
        if request.state and request.number not in self.numbers:
            self.numbers.add(request.number)
            self.sizes.put((len(request.requests), request.ByteSize()))
        return super().Replicate(request, context)


def test_an_event_costs_the_same_however_many_requests_were_answered() -> None:
    answered = b"requests" * 50_000
    with agents(2, serving={1: Measuring}) as (hosts, made), replicator_of(hosts) as (replicator, _):
        for version, requests in enumerate([b"none", b"none", answered, answered], start=1):
            assert replicator.commit(state(0, 1, hosts=2, version=version), requests) == "committed"
            assert made[1].consensus.log.requests == requests
        sizes = [Measuring.sizes.get(timeout=180.0) for _ in range(4)]
        assert [of_requests for of_requests, _ in sizes] == [4, 0, len(answered), 0]
        assert sizes[3][1] <= sizes[1][1] + 8
        # One that comes later, or is back, holds the requests too.
        replicator.remove_follower(1)
        replicator.add_follower(1, hosts[1], anew=False)
        assert Measuring.sizes.get(timeout=180.0)[0] == len(answered)


def test_a_change_of_the_requests_alone_is_a_new_state() -> None:
    with agents(2) as (hosts, made), replicator_of(hosts) as (replicator, _):
        for version, requests in enumerate([b"one", b"two"], start=1):
            assert replicator.commit(state(0, 1, hosts=2), requests) == "committed"
            log = made[1].consensus.log
            assert (log.version, log.requests) == (version, requests)


class Behind(HostService):
    """Answers heartbeats, and takes a newer state in when it may."""

    may = threading.Event()

    def Replicate(self, request: pb.ReplicateRequest, context: Any) -> pb.ReplicateReply:  # noqa: N802 - gRPC's name
        if request.version > 1:
            assert self.may.wait(180.0)
        return super().Replicate(request, context)


def test_a_late_agent_is_waited_for_once_if_the_others_are_enough() -> None:
    """An agent that answers, but does not hold the newest state, is not counted on."""
    now, holding = [0.0], set[frozenset[int]]()

    def enough(hosts: frozenset[int]) -> bool:
        holding.add(hosts)
        return hosts >= {0, 1}

    def commit(version: int, is_quorum: Callable[[frozenset[int]], bool]) -> Future[str]:
        return pool.submit(replicator.commit, state(0, 1, 2, hosts=3, version=version), is_quorum=is_quorum)

    Behind.may.clear()
    with (
        agents(3, {2: Behind}) as (hosts, made),
        replicator_of(hosts, clock=lambda: now[0]) as (replicator, _),
        ThreadPoolExecutor() as pool,
    ):
        assert commit(1, enough).result(180.0) == "committed"
        newer = commit(2, enough)
        awaited(lambda: made[1].consensus.log.version == 2, what="the quick agent", deadline_s=180.0)
        with pytest.raises(TimeoutError):
            newer.result(0.5)
        now[0] = SETTINGS.deadlines.heartbeat_s + 1.0
        assert newer.result(20.0) == "quorum", "not all of them hold it"
        assert (replicator.reachable, replicator.acknowledged_by) == ({0, 1, 2}, {0, 1})
        assert {0, 1} in holding
        assert commit(3, enough).result(20.0) == "quorum", "it is late already"
        newest = commit(4, lambda hosts: hosts >= {0, 1, 2})
        with pytest.raises(TimeoutError):
            newest.result(0.5)
        Behind.may.set()
        assert newest.result(180.0) == "committed", "the leader goes on when the last one holds it"
        assert made[2].consensus.log.version == 4


def test_those_who_hold_the_state_hear_at_once_that_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kungfu.runtime.agent.consensus.replication.HEARTBEAT_EVERY_S", 600.0)  # no heartbeat says it
    with agents(3) as (hosts, made), replicator_of(hosts) as (replicator, _):
        for version in (1, 2):
            assert replicator.commit(state(0, 1, 2, hosts=3, version=version)) == "committed"
        deadline = time.monotonic() + 120.0
        while any(len(made[number].consensus.log.possible_clusters) > 1 for number in (1, 2)):
            assert time.monotonic() < deadline, "the older state may still hold"
            time.sleep(0.01)


def test_messages_arrive_in_their_order_and_once_also_after_another_admission() -> None:
    with agents(2) as (hosts, (_, other)), replicator_of(hosts) as (replicator, _):
        for peer in range(50):
            replicator.send(1, pb.ReplicateRequest(starts=[pb.Spawn(peer=peer)]))
        assert replicator.commit(state(0, 1, hosts=2)) == "committed"
        replicator.remove_follower(1)
        replicator.add_follower(1, hosts[1], anew=False)
        replicator.send(1, pb.ReplicateRequest(starts=[pb.Spawn(peer=50)]))
        assert replicator.commit(state(0, 1, hosts=2, version=2)) == "committed"
        starts: list[int] = []
        while len(starts) < 51:
            event = other.heard.get(timeout=180.0)
            assert isinstance(event, ReplicateReceived)
            starts += [start.peer for start in event.request.starts]
        assert starts == list(range(51))
        again = pb.ReplicateRequest(job="job", term=1, leader=0, number=1)
        assert not other.consensus.is_new(again)


def test_a_link_that_is_down_for_less_than_the_heartbeat_costs_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.runtime.ipc.link._RESENT_S", 600.0)  # by TCP itself: far too late
    with agents(2) as (hosts, (_, other)), link(hosts[1].address, host="127.0.0.2") as net:
        hosts[1] = Host("127.0.0.2", 4, int(net.address.rpartition(":")[2]))
        with replicator_of(hosts) as (replicator, heard):
            assert replicator.commit(state(0, 1, hosts=2)) == "committed"
            assert isinstance(heard.get(timeout=180.0), HostReported)
            net.down()
            newer, up, began = state(0, 1, hosts=2, version=2), threading.Timer(2.0, net.up), time.monotonic()
            up.start()
            assert replicator.commit(newer) == "committed", "what was sent while it was down is lost"
            assert time.monotonic() - began > 2.0
            up.join()
            assert other.consensus.silence_s() < lost_after_s(SETTINGS.deadlines)
            assert other.consensus.log.version == 2
            starts = [pb.Spawn(peer=peer) for peer in range(3)]
            replicator.send(1, pb.ReplicateRequest(starts=starts))
            assert replicator.commit(state(0, 1, hosts=2, version=3)) == "committed"
        messages = [event.request for event in iter(partial(_next, other.heard), None)]
        assert [start.peer for one in messages for start in one.starts] == [0, 1, 2]
        numbers = [one.number for one in messages]
        assert numbers == sorted(set(numbers)), "what was sent more than once was taken once"
        assert not isinstance(_next(heard), HostLost)


def _next(events: queue.SimpleQueue[Any]) -> Any:
    with suppress(queue.Empty):
        return events.get(block=False)
    return None


def test_an_agent_that_has_ended_is_lost_and_nobody_waits_for_it_any_more() -> None:
    with agents(3) as (hosts, made), replicator_of(hosts) as (replicator, heard):
        assert replicator.commit(state(0, 1, 2, hosts=3)) == "committed"
        made[1].stop()
        assert replicator.commit(state(0, 2, hosts=3)) != "committed"
        gone = next(event for event in iter(lambda: heard.get(timeout=180.0), None) if isinstance(event, HostLost))
        assert gone.host == 1
        assert "has ended or cannot be reached" in gone.how
        assert replicator.reachable == {0, 2}
        replicator.remove_follower(1)
        assert replicator.commit(state(0, 2, hosts=3, version=3)) == "committed"


def test_a_follower_of_a_later_term_makes_this_leader_stale() -> None:
    with agents(2) as (hosts, (_, other)):
        assert other.consensus.append(pb.ReplicateRequest(job="job", term=5, leader=1, number=1)) == ""
        with replicator_of(hosts) as (replicator, heard):
            event = heard.get(timeout=180.0)
            assert isinstance(event, HostLost)
            assert "takes no orders from here" in event.how
            assert "follows another leader: of term 5" in event.how
            assert replicator.commit(state(0, 1, hosts=2)) != "committed"


def records(number: int, size_bytes: int) -> pb.Records:
    return pb.Records(peer=3, number=number, records=[pb.Record(trace="x" * size_bytes)])


def test_records_that_have_no_room_go_out_with_the_next_message() -> None:
    """Records that have no room go out with the next message, and the end of the job after the last of them."""
    message = pb.ReplicateRequest(
        state=b"s", version=4, starts=[pb.Spawn(peer=7)], kills=[2], end=pb.JobEnd(code=3), leaves=True,
        reports=[records(number, 100) for number in range(5)],
    )  # fmt: skip
    rest = split_off(message, most_bytes=150)
    assert ([one.number for one in message.reports], [one.number for one in rest.reports]) == ([0, 1], [2, 3, 4])
    assert (message.state, message.version, len(message.starts), list(message.kills)) == (b"s", 4, 1, [2])
    assert (message.HasField("end"), message.leaves) == (False, False)
    assert (rest.end.code, rest.leaves, rest.state, len(rest.starts), list(rest.kills)) == (3, True, b"", 0, [])
    last = split_off(rest, most_bytes=10_000)
    assert last == pb.ReplicateRequest()
    assert rest.end.code == 3


@pytest.mark.slow
def test_more_records_than_one_message_takes_come_in_order_and_lose_no_host() -> None:
    with agents(2) as (hosts, made), replicator_of(hosts) as (replicator, heard):
        reports = [records(number, 15 << 20) for number in range(1, 6)]  # 75 MiB
        replicator.send(1, pb.ReplicateRequest(reports=reports, end=pb.JobEnd(code=3)))
        came = list[pb.ReplicateRequest]()
        while not came or not came[-1].HasField("end"):
            received = made[1].heard.get(timeout=180.0)
            assert isinstance(received, ReplicateReceived)
            came.append(received.request)
        assert [one.number for message in came for one in message.reports] == [1, 2, 3, 4, 5]
        assert heard.get(timeout=180.0) == HostReported(1, (), os.getpid())
        assert replicator.reachable == {0, 1}
