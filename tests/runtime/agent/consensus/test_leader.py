"""What the agent does that takes over: one of real parts that has started no peer, with other agents beside it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kungfu.runtime.agent.consensus.entering import line_of
from kungfu.runtime.agent.consensus.service import Entering, HeadLost, Ordered
from kungfu.runtime.agent.consensus.succession import Taken, succeed
from kungfu.runtime.agent.context import CUT_OFF, Ending, Job, Station
from kungfu.runtime.agent.leader import Head
from kungfu.runtime.agent.record.journal import Journal
from kungfu.runtime.agent.record.recorder import Recorder
from kungfu.runtime.agent.supervisor.household import Household
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import SETTINGS, Agent, agents, follow, state


class Quiet:
    """Neither a person looks at the console, nor does a peer print or end."""

    def line(self, who: str, text: str) -> None:
        raise AssertionError(f"nobody prints here: {who}: {text}")

    def event(self, fields: Mapping[str, Any]) -> None:
        """A person would see it."""

    def status(self, fields: Mapping[str, Any]) -> None:
        raise AssertionError(f"nothing is measured here: {fields}")

    def printed(self, peer: int, text: str) -> None:
        raise AssertionError(f"no peer was started: {peer}: {text}")

    def ended(self, peer: int, code: int, tail: Sequence[str]) -> None:
        raise AssertionError(f"no peer was started: {peer}, {code}, {tail}")


def station_of(agent: Agent, hosts: Mapping[int, Host], folder: Path) -> Station:
    place, journal, quiet = agent.allegiance.place, Journal(folder), Quiet()
    job = Job(("true",), len(hosts), SETTINGS, {}, hosts=tuple(hosts[one] for one in sorted(hosts)), place=place)
    household = Household(job.command, environment={}, slots=4, journal=journal, listener=quiet)
    return Station(
        job, replace(SETTINGS, agent=agent.server.address), agent.allegiance, household, Recorder(journal, quiet),
        time.monotonic, SimpleQueue(),
    )  # fmt: skip


@contextmanager
def taking_over(agent: Agent, hosts: Mapping[int, Host], folder: Path) -> Iterator[tuple[Head, Station, Taken]]:
    """The agent has lost the head and takes over; ``begin`` is still to be called."""
    agent.allegiance.lose()
    taken = succeed(agent.allegiance, hosts, SETTINGS, how="host 127.0.0.1 is lost")
    assert isinstance(taken, Taken)
    station = station_of(agent, hosts, folder)
    head = Head(station, taken=taken)
    try:
        yield head, station, taken
    finally:
        head.close(Ending(0))
        station.recorder.journal.close()


def test_as_long_as_nobody_else_holds_its_state_a_new_head_needs_a_majority_of_the_one_before_too(
    tmp_path: Path,
) -> None:
    with agents(4) as (hosts, (old, one, two, three)):
        for agent in (one, two, three):
            follow(agent, 0, text=state(1, 2, 3, hosts=4))
        newer = state(1, 2, 3, 1, 1, 1, hosts=4, version=2)  # of which the head told only host 1 before it was lost
        follow(one, 0, text=newer, version=2, settled=1)
        old.stop()
        for agent in (two, three):
            agent.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, _, _):
            for agent in (two, three):
                agent.stop()  # who hear each other still, and of the view that they know are two of three
            ending = head.begin()
    assert ending is not None
    assert ending.code == CUT_OFF


def test_what_the_head_before_said_last_is_no_matter_for_the_one_that_has_taken_over(tmp_path: Path) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, _, _):
            assert head.begin() is None
            assert head.hears(Ordered(pb.Orders(job="job", term=1, head=0, number=7, kills=[1]))) is None
            assert head.hears(HeadLost("seen twice")) is None
            assert head.cluster.view is not None


class Heard(Quiet):
    """Keeps what the peers print."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[str] = SimpleQueue()

    def printed(self, peer: int, text: str) -> None:
        self.lines.put(text)

    def ended(self, peer: int, code: int, tail: Sequence[str]) -> None:
        """It has said what it was started for."""


def test_all_peers_get_the_threads_of_the_host_that_has_the_fewest_for_each(tmp_path: Path) -> None:
    """The other host has one for each of its peers, this one as many as it has cores."""
    with agents(2) as (hosts, (here, other)):
        says, heard = "import os; print(os.environ['TF_NUM_INTRAOP_THREADS'])", Heard()
        station = station_of(here, hosts, tmp_path)
        household = Household(
            (sys.executable, "-c", says), environment={}, slots=1, journal=station.recorder.journal, listener=heard
        )
        hosts[0] = replace(hosts[0], slots=1)
        job = replace(station.job, hosts=(hosts[0], hosts[1]))
        station = replace(station, household=household, job=job)
        here.allegiance.lead("job", 1)
        head = Head(station)
        try:
            assert head.begin() is None
            info = pb.HostInfo(number=1, pid=7, incarnation="a", threads=1)
            assert head.hears(Entering(pb.Entrance(host=info, line=line_of(job)))) is None
            assert head.cluster.hosts.shares == {0: len(os.sched_getaffinity(0)), 1: 1}
            assert heard.lines.get(timeout=10.0) == "1"
            started: list[pb.Start] = []
            while not started:
                event = other.heard.get(timeout=10.0)
                started += event.orders.starts if isinstance(event, Ordered) else []
            assert [(start.peer, start.threads) for start in started] == [(1, 1)]
        finally:
            head.close(Ending(0))
            household.close()
            station.recorder.journal.close()


def kills_sent_to(agent: Agent) -> list[int]:
    """In the next messages; one comes twice a second."""
    events = [agent.heard.get(timeout=10.0) for _ in range(6)]
    return [peer for event in events if isinstance(event, Ordered) for peer in event.orders.kills]


def test_a_peer_that_was_started_too_late_to_be_known_of_is_ended(tmp_path: Path) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, _, _):
            assert head.begin() is None
            assert head.hears(pb.Happening(host=2, what="spawned", peer=9, pid=4711)) is None
            assert kills_sent_to(two) == [9]


def test_a_notice_that_is_told_again_is_no_second_signal_for_this_head_nor_for_the_next_one(tmp_path: Path) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        told = pb.Happening(host=2, what="signalled", code=signal.SIGTERM, number=4)
        with taking_over(one, hosts, tmp_path) as (head, _, _):
            assert head.begin() is None
            assert [head.hears(told), head.hears(told)] == [None, None]
            assert head.cluster.hosts.leaving == {2}
            held = two.allegiance.held.standby
            assert held is not None
            assert (held.cluster.hosts.leaving, held.heard) == ({2}, {2: 4})
            told.number = 5
            assert head.hears(told) == Ending(128 + signal.SIGTERM)


def test_a_host_that_was_told_to_ask_again_is_not_taken_in_behind_its_back(tmp_path: Path) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, station, _):
            assert head.begin() is None
            line = line_of(station.job)
            late = Entering(pb.Entrance(host=pb.HostInfo(number=0, pid=1), line=line))
            assert late.reply.cancel()
            assert head.hears(late) is None
            assert 0 not in head.cluster.hosts.slots
            old_again = Entering(late.entrance)
            assert head.hears(old_again) is None
            assert old_again.reply.result().settings
            assert head.cluster.hosts.slots[0] == hosts[0].slots


def test_an_agent_that_did_not_hear_its_welcome_is_told_again_and_another_one_in_its_place_is_not(
    tmp_path: Path,
) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, station, taken):
            assert head.begin() is None
            came = pb.Entrance(host=pb.HostInfo(number=0, pid=1, incarnation="a"), line=line_of(station.job))
            told = [Entering(came), Entering(came)]
            assert [head.hears(entering) for entering in told] == [None, None]
            assert [entering.reply.result(0.0).term for entering in told] == [taken.term] * 2
            assert all(entering.reply.result(0.0).settings for entering in told)
            came.host.incarnation = "b"
            other = Entering(came)
            assert head.hears(other) is None
            assert other.reply.result(0.0) == pb.Welcome(later=True), "that the one before it is gone is not known yet"
            held = two.allegiance.held.standby
            assert held is not None
            assert held.incarnations == {0: "a"}, "so that the next head can tell it too"


def test_a_head_without_a_majority_takes_no_host_in(tmp_path: Path) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, station, _):
            assert head.begin() is None
            two.stop()
            entering = Entering(pb.Entrance(host=pb.HostInfo(number=0, pid=1), line=line_of(station.job)))
            ending = head.hears(entering)
            assert ending is not None
            assert ending.code == CUT_OFF
            assert not entering.reply.done(), "whoever leads by now does it"


def test_of_a_peer_that_has_ended_the_agents_hold_no_address_and_no_process(tmp_path: Path) -> None:
    with agents(3) as (hosts, (old, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(1, 2, 2, hosts=3))
        old.stop()
        two.allegiance.lose()
        with taking_over(one, hosts, tmp_path) as (head, _, _):
            assert head.begin() is None
            for peer in (1, 2):
                head.hears(pb.Happening(host=2, what="spawned", peer=peer, pid=100 + peer))
            assert head.hears(pb.Happening(host=2, what="ended", peer=1, code=1)) is None
            held = two.allegiance.held.standby
            assert held is not None
            assert held.pids == {2: 102}
