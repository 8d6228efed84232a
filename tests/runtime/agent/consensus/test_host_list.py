"""The list of a job's hosts: numbers are given once, and a host leaves only if it can be needed for no majority."""

from __future__ import annotations

from dataclasses import replace

from kungfu.runtime.agent.consensus.election import elect
from kungfu.runtime.agent.consensus.host_list import HostList, founded
from kungfu.runtime.agent.consensus.state import ConsensusState, parse_snapshot, serialize_snapshot
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import HASTY, SETTINGS, agents, follow, state

A, B, C = (Host(name, 2, 28100) for name in "abc")


def test_a_number_is_never_given_again() -> None:
    hosts = founded([A, B]).with_host(C)
    assert [hosts.number_of(name) for name in "abc"] == [0, 1, 2]
    again = hosts.without([2, 1]).with_host(B)
    assert (again.listed, again.next_number) == ({0: A, 3: B}, 4)
    assert again.number_of("c") is None
    assert again.without([7]) is again


def test_a_host_is_absent_since_it_was_present_last_and_is_not_counted_anew() -> None:
    hosts = founded([A, B, C]).with_present([0, 1, 2], 5.0)
    assert hosts.absent_since == {}
    lost = hosts.with_present([0, 2], 7.0).with_present([0], 9.0)
    assert lost.absent_since == {1: 7.0, 2: 9.0}
    assert lost.with_present([0], 50.0) is lost
    assert lost.with_present([0, 1], 50.0).absent_since == {2: 9.0}
    assert lost.without([1]).absent_since == {2: 9.0}


def test_a_lost_host_is_forgotten_unless_a_view_that_may_be_in_force_needs_it() -> None:
    without = parse_snapshot(state(0, 3, hosts=4, gone=frozenset({1, 2}))).cluster
    before = parse_snapshot(state(0, 1, hosts=4, gone=frozenset({2}))).cluster
    hosts = HostList({0: A, 1: B, 2: C}, 3, {1: 10.0, 2: 20.0})
    assert hosts.to_forget([without], now=39.0, forget_s=30.0) is None
    assert hosts.to_forget([without], now=60.0, forget_s=30.0) == 1
    assert hosts.to_forget([before, without], now=60.0, forget_s=30.0) == 2, "host 1 may be in force"
    assert not hosts.may_leave(0, [without]), "it is present"


def test_the_list_is_part_of_the_state_and_every_agent_knows_the_newest() -> None:
    consensus, hosts = ConsensusState(1, {0: A, 1: B}), founded([A, B]).with_host(C).with_present([0, 1], 3.5)
    snapshot = replace(parse_snapshot(state(0, 1, hosts=2)), hosts=hosts)
    request = pb.ReplicateRequest(job="job", term=1, leader=0, number=1, version=1, state=serialize_snapshot(snapshot))
    assert consensus.append(request) == ""
    assert consensus.hosts == {0: A, 1: B, 2: C}
    assert consensus.log.snapshot == snapshot


def test_a_candidate_asks_the_hosts_that_only_a_voter_knows() -> None:
    """Host 1 has not heard that host 2 joined; with the newest state, host 2 is a member, and host 1 needs its vote."""
    with agents(4) as (places, (leader, behind, joined, ahead)):
        follow(behind, state(0, 1, 3, hosts=4, gone=frozenset({2})))
        behind.consensus.hosts = {number: places[number] for number in (0, 1, 3)}
        listed = founded(places)
        newer = serialize_snapshot(replace(parse_snapshot(state(1, 2, 2, hosts=4, version=2)), hosts=listed))
        for agent in (joined, ahead):
            follow(agent, newer, version=2)
        leader.stop()
        for agent in (behind, joined, ahead):
            agent.consensus.lose_leader()
        settings = replace(SETTINGS, deadlines=replace(HASTY.deadlines, heartbeat_s=5.0))
        elected = elect(behind.consensus, settings, how="lost")
    assert getattr(elected, "reached", elected) == {1, 2, 3}
