"""Who takes over when the head is lost, and who stops."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.agent.consensus.orders import Orders
from kungfu.runtime.agent.consensus.service import HostService
from kungfu.runtime.agent.consensus.succession import CutOff, Taken, succeed
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import SETTINGS, Agent, agents, follow, state

HOW = "host 127.0.0.1, which led the job: its agent has ended"


def succeeds(agent: Agent, hosts: dict[int, Host]) -> Taken | CutOff | None:
    agent.allegiance.lose()
    return succeed(agent.allegiance, hosts, SETTINGS, how=HOW)


def test_the_first_of_those_that_are_left_takes_over_and_the_others_follow_it() -> None:
    with agents(3) as (hosts, (head, first, second)):
        for agent in (first, second):
            follow(agent, 0, text=state(0, 1, 2, hosts=3))
        head.stop()
        found: dict[int, Any] = {}

        def led() -> None:
            found[1] = succeeds(first, hosts)
            assert second.allegiance.hear(pb.Orders(job="job", term=2, head=1, number=1)) == ""

        leading = threading.Thread(target=led)
        leading.start()
        found[2] = succeeds(second, hosts)
        leading.join()
        taken = found[1]
        assert isinstance(taken, Taken)
        assert (taken.present, taken.standby.cluster.view and taken.standby.cluster.view.size) == ({1, 2}, 3)
        assert first.allegiance.leads
        assert (found[2], second.allegiance.head) == (None, 1), "it waits for the orders of the first"


def test_two_halves_go_on_only_with_rank_0() -> None:
    for ranks, leads in (((1, 0), True), ((0, 1), False)):
        with agents(2) as (hosts, (head, other)):
            follow(other, 0, text=state(*ranks, hosts=2))
            head.stop()
            came = succeeds(other, hosts)
            assert isinstance(came, Taken if leads else CutOff), ranks
            if isinstance(came, CutOff):
                assert "would go on with 1 of the 2 peers of view 1, which is no majority" in came.why


def test_before_the_first_view_nobody_takes_over() -> None:
    with agents(2) as (hosts, (head, other)):
        follow(other, 0, text=state(1, hosts=2).replace(b'"view": {', b'"view": null, "was": {'))
        head.stop()
        assert isinstance(came := succeeds(other, hosts), CutOff)
        assert "before the first view" in came.why


def test_as_long_as_another_agent_hears_the_head_it_is_not_lost() -> None:
    with agents(3) as (hosts, (_, deaf, other)):
        follow(deaf, 0, text=state(0, 1, 2, hosts=3))
        heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        head = Orders(SETTINGS, hosts, head=0, term=1, clock=time.monotonic, put=heard.put)
        head.begin(2)
        assert head.settle(state(0, 1, 2, hosts=3))
        came = succeeds(deaf, hosts)
        assert isinstance(came, CutOff)
        assert "127.0.0.3 still hears it" in came.why
        assert other.allegiance.head == 0
        head.close()


def test_who_was_given_up_stops() -> None:
    with agents(3) as (hosts, (head, late, other)):
        follow(late, 0, text=state(0, 1, 2, hosts=3))
        follow(other, 0, text=state(0, 2, hosts=3, gone=frozenset({1})), version=2)
        head.stop()
        came = succeeds(late, hosts)
        assert isinstance(came, CutOff)
        assert "gave this one up" in came.why


def test_who_was_given_up_and_has_woken_up_is_not_counted_on() -> None:
    for held_by, said in ((1, "would go on with 1 of the 3 peers"), (3, "")):
        with agents(4) as (hosts, (head, late, *others)):
            follow(late, 0, text=state(0, 1, 2, hosts=4))
            for agent in others:
                follow(agent, 0, text=state(0, 2, held_by, hosts=4, gone=frozenset({1})), version=2, settled=2)
            head.stop()
            for agent in (late, others[1]):
                agent.allegiance.lose()
            came = succeeds(others[0], hosts)
            if said:
                assert isinstance(came, CutOff)
                assert said in came.why
            else:
                assert isinstance(came, Taken)
                assert came.present == {2, 3}


def test_the_newest_state_that_anybody_holds_is_gone_on_from() -> None:
    with agents(3) as (hosts, (head, behind, ahead)):
        follow(behind, 0, text=state(0, 1, 2, hosts=3))
        follow(ahead, 0, text=state(0, 1, 2, hosts=3))
        follow(ahead, 0, text=state(1, 2, hosts=3, version=2), version=2)
        head.stop()
        ahead.allegiance.lose()
        came = succeeds(behind, hosts)
        assert isinstance(came, Taken)
        assert (came.version, came.term) == (2, 2)
        assert came.standby.cluster.view is not None
        assert came.standby.cluster.view.version == 2


def test_while_it_is_open_which_view_holds_a_majority_of_both_is_needed() -> None:
    with agents(3) as (hosts, (head, one, two)):
        for agent in (one, two):
            follow(agent, 0, text=state(0, 0, 0, 1, hosts=3))
            follow(agent, 0, text=state(1, 2, hosts=3, version=2, first=4), version=2, settled=1)
        head.stop()
        two.allegiance.lose()
        came = succeeds(one, hosts)
        assert isinstance(came, CutOff), "of the settled view most peers are on the lost host, and may go on there"
        for agent in (one, two):
            assert agent.allegiance.hear(pb.Orders(job="job", term=99, head=0, number=3, settled=2)) == ""
        two.allegiance.lose()
        assert isinstance(succeeds(one, hosts), Taken)


class Meanwhile(HostService):
    """Before this agent answers the one that asks, the orders of a new head have reached that one."""

    asking: Agent

    def Stand(self, request: pb.Ballot, context: Any) -> pb.Vote:  # noqa: N802 - gRPC's name
        vote = super().Stand(request, context)
        assert self.asking.allegiance.hear(pb.Orders(job="job", term=2, head=2, number=1)) == ""
        return vote


@pytest.mark.parametrize("gone", [frozenset[int](), frozenset({1})], ids=["known", "given up"])
def test_who_follows_a_new_head_by_the_time_does_not_stop(gone: frozenset[int]) -> None:
    hasty = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, heartbeat_s=1e-3))
    with agents(3, {2: Meanwhile}) as (hosts, (head, asking, other)):
        Meanwhile.asking = asking
        follow(asking, 0, text=state(0, 1, 2, hosts=3))
        follow(other, 0, text=state(0, 1, 2, hosts=3, gone=gone))
        head.stop()
        for agent in (asking, other):
            agent.allegiance.lose()
        assert succeed(asking.allegiance, hosts, hasty, how=HOW) is None
        assert asking.allegiance.head == 2


def test_who_has_promised_to_follow_another_one_waits_for_its_orders() -> None:
    now = [0.0]
    with agents(2) as (hosts, (head, other)):
        other.allegiance = allegiance = Allegiance(1, clock=lambda: now[0])
        follow(other, 0, text=state(1, 2, hosts=3))
        head.stop()
        allegiance.lose()
        now[0] = time.monotonic() + 0.5  # so much after it has begun to look for another head
        assert allegiance.promise(7, 2)
        hasty = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, heartbeat_s=0.2))
        began = time.monotonic()
        assert isinstance(succeed(allegiance, hosts, hasty, how=HOW), CutOff)
        assert time.monotonic() - began > 0.5 + 2 * 0.2


def test_a_term_is_promised_once() -> None:
    with agents(3) as (_, (_, one, _)):
        follow(one, 0, text=state(0, 1, 2, hosts=3))
        one.allegiance.lose()
        ballot = pb.Ballot(job="job", term=2, host=2, promise=True)
        assert one.allegiance.vote(ballot).granted
        assert one.allegiance.vote(ballot).granted, "asked again, because the answer was lost"
        ballot.host = 0
        assert not one.allegiance.vote(ballot).granted
        assert one.allegiance.hear(pb.Orders(job="job", term=1, head=0, number=2)).startswith(
            "this host follows another"
        )


@pytest.mark.parametrize(("job", "said"), [("other", "this host is in another job"), ("job", "")])
def test_orders_of_another_job_are_none(job: str, said: str) -> None:
    with agents(1) as (_, (one,)):
        follow(one, 0, text=state(0, hosts=1))
        assert one.allegiance.hear(pb.Orders(job=job, term=1, head=0, number=2)).startswith(said)
