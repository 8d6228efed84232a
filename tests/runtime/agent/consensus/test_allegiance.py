"""Whom an agent follows, whatever comes at the same time, late or twice."""

from __future__ import annotations

import threading

from kungfu.runtime.agent.consensus.allegiance import Allegiance
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import state


def orders(number: int, *, term: int = 1, head: int = 0, version: int = 0) -> pb.Orders:
    text = state(0, 1, 2, hosts=3, version=version) if version else b""
    return pb.Orders(job="job", term=term, head=head, number=number, version=version, state=text)


def test_who_has_promised_a_later_term_to_another_host_does_not_lead_an_earlier_one() -> None:
    allegiance = Allegiance(1)
    allegiance.hear(orders(1))
    allegiance.lose()
    assert allegiance.promise(2, 1)
    assert allegiance.promise(3, 2), "host 2 asked while this one counted its votes"
    assert not allegiance.lead("job", 2)
    assert not allegiance.leads
    assert allegiance.hear(orders(1, term=3, head=2)) == ""
    assert not allegiance.lead("job", 3), "and who follows the head of a term is not its head"


class Meanwhile(Allegiance):
    """The head sends a newer state at the moment at which a promise is asked for."""

    def promise(self, term: int, host: int) -> bool:
        sent = threading.Thread(target=self.hear, args=(orders(2, version=2),), daemon=True)
        sent.start()
        sent.join(timeout=0.3)
        return super().promise(term, host)


def test_a_vote_tells_of_the_state_that_is_held_when_the_promise_is_given() -> None:
    allegiance = Meanwhile(1)
    assert allegiance.hear(orders(1, version=1)) == ""
    allegiance.lose()
    vote = allegiance.vote(pb.Ballot(job="job", host=2, term=2, promise=True))
    assert vote.granted
    assert vote.version == allegiance.held.version


def test_a_message_that_arrives_late_a_second_time_changes_nothing() -> None:
    allegiance = Allegiance(1)
    for number in (1, 2):
        assert allegiance.hear(orders(number, version=number)) == ""
        assert allegiance.is_new(orders(number))
    assert allegiance.hear(orders(1, version=1)) == ""
    assert not allegiance.is_new(orders(1))
    assert allegiance.held.version == 2
    assert [version for version, _ in allegiance.held.open] == [1, 2]


def test_a_message_that_was_overtaken_on_another_connection_says_nothing_of_the_head() -> None:
    now = [100.0]
    allegiance = Allegiance(1, clock=lambda: now[0])
    for number in (1, 2):
        assert allegiance.hear(orders(number)) == ""
        assert allegiance.is_new(orders(number))
    now[0] = 107.0
    allegiance.lose()
    assert allegiance.hear(orders(1)) == ""
    assert (allegiance.head, allegiance.silence_s()) == (None, 7.0)


def test_the_numbers_of_the_head_before_do_not_hide_the_orders_of_the_next_one() -> None:
    allegiance = Allegiance(1)
    allegiance.enter("job", 0)
    late, first = orders(9), orders(1, term=2, head=2)
    assert allegiance.hear(late) == ""
    assert allegiance.hear(first) == "", "before anybody asked whether the one before was new"
    assert not allegiance.is_new(late)
    assert allegiance.is_new(first)


def test_an_old_heads_welcome_that_comes_late_is_none() -> None:
    allegiance = Allegiance(1)
    assert allegiance.hear(orders(1, term=3, head=2)) == ""
    allegiance.enter("job", 0, term=1)
    assert (allegiance.head, allegiance.term) == (2, 3)
    fresh = Allegiance(1)
    fresh.enter("job", 2, term=3)
    assert fresh.hear(orders(1, term=1)).startswith("this host follows another head: of term 3")
    assert fresh.head == 2


def test_an_agent_that_has_begun_anew_takes_no_orders_for_the_one_before_it() -> None:
    allegiance = Allegiance(1)
    assert allegiance.hear(orders(7)) == "the agent of this host has begun anew"
    assert (allegiance.job, allegiance.head) == ("", None)
    assert allegiance.hear(orders(1)) == "", "the first ones may be faster than the welcome"
    allegiance.enter("job", 2)
    assert allegiance.head == 0
