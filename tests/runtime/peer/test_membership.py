"""Peers of one process: join, barriers, growth, shrinkage, failures."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import Asked, Resize, StopTraining
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.handshake import Credentials
from kungfu.runtime.peer.peer_service import rendezvous_key
from kungfu.runtime.state.buffers import Buffers
from tests.jobs.harness import awaited
from tests.runtime.expiring import expired_at
from tests.runtime.peer.held import Held
from tests.runtime.peer.running import (
    SECRET,
    SHORT_S,
    TERMS,
    WITHIN_S,
    Job,
    Member,
    admit,
    barrier,
    errors_of,
    job,
    tell,
)

# ---- joining --------------------------------------------------------------------------------------------------------


def test_the_first_view_takes_its_state_from_rank_0_and_is_told_to_the_agent() -> None:
    with job(b"first", b"other", b"third") as running:
        assert [member.state.content for member in running.members] == [b"first"] * 3
        assert [view.version for view in running.agent.in_force] == [1]
        assert running.agent.in_force[0].ids == (0, 1, 2)
        opened = [member.socket.opened[0] for member in running.members]
        name, secret = f"membership-{os.getpid()}", bytes.fromhex(SECRET)
        assert [to["me"] for to in opened] == [Credentials(name, 1, rank, 3, secret) for rank in range(3)]
        assert {to["rendezvous"] for to in opened} == {"r"}
        assert opened[0]["addresses"] == [peer.address for peer in running.agent.in_force[0].peers]


class Eager(queue.SimpleQueue[Peer]):
    """An agent that prepares a peer's view before the peer has heard that it is known to be ready."""

    def put(self, peer: Peer, *_: Any) -> None:
        view = pb.ViewInfo(version=1, peers=[pb.PeerInfo(id=rank, address=peer.address) for rank in range(2)])
        tell(peer, "PrepareAttachment", view)
        super().put(peer)


def test_what_is_prepared_for_a_view_as_soon_as_its_first_peer_is_ready_stays() -> None:
    with job() as running:
        running.agent.ready = Eager()
        first = running.add(b"state")
        joining, peer = running.begin(first)
        admit(View(1, (peer,)))
        joining.result(WITHIN_S)
        assert first.socket.prepared == ["store for 2"]


def test_a_peer_that_was_admitted_to_a_view_without_it_says_so() -> None:
    with job(b"state") as running:
        late = running.add(b"late")
        joining, peer = running.begin(late)
        view = pb.ViewInfo(version=2, peers=[pb.PeerInfo(id=0, address="a:1")])
        tell(peer, "Admit", pb.Admission(decision=pb.Decision(view=view)))
        with pytest.raises(InternalError, match="peer 1 was admitted to view 2, which lacks it"):
            joining.result(WITHIN_S)


# ---- barriers -------------------------------------------------------------------------------------------------------


def test_a_barrier_without_a_request_leaves_all_as_it_was() -> None:
    with job(b"state", b"state") as running:
        for _ in range(3):
            results = running.all_do(barrier())
            assert [result.after for result in results] == [result.before for result in results]
            assert [result.rank for result in results] == [0, 1]
        assert [len(member.socket.opened) for member in running.members] == [1, 1]
        assert [member.socket.plugged for member in running.members] == [True, True]


def test_the_terms_after_a_barrier_are_the_leaders() -> None:
    with job(b"state", b"state") as running:
        results = running.hold_each(terms=[Terms(100, 50.0), Terms(99, 49.5)])
        assert [result.after.terms for result in results] == [Terms(100, 50.0)] * 2


def test_growth_goes_through_prepare_and_offer_to_a_view_that_holds_one_state() -> None:
    with job(b"state", b"state") as running:
        results = running.all_do(barrier(3))
        assert [result.after.view.version for result in results] == [1, 1]
        assert running.agent.wanted.get(timeout=WITHIN_S) == 3
        waiting = results[0].after.terms
        assert waiting.target_size == 3

        joining, peer = running.begin(running.add(b"blank"))
        running.offer(peer, spawn=0.5)
        assert running.members[0].posts == ["offer"]
        results = running.all_do(barrier(terms=waiting), running.members[:2])

        after = joining.result(WITHIN_S).after
        assert [result.after.view for result in results] == [after.view] * 2
        assert (after.view.version, after.view.ids) == (2, (0, 1, 2))
        assert after.terms == Terms(96, 32.0)
        assert results[0].offer == JoinerOffer((peer,), parts={"spawn": 0.5})
        assert {name for name in results[0].parts if "/" not in name} == {"barrier", "attach", "state"}
        assert running.members[2].state.content == b"state"
        assert [member.state.rescales for member in running.members] == [1, 1, 1], "the first view is no rescale"
        assert [member.socket.opened[-1]["rendezvous"] for member in running.members] == ["store for 3"] * 3
        assert running.agent.in_force[-1] == after.view
        assert [result.rank for result in running.all_do(barrier(terms=after.terms))] == [0, 1, 2]


def test_the_peers_of_a_host_know_of_a_joiner_there_until_it_is_ready() -> None:
    def known(running: Job) -> list[int | None]:
        return [member.membership.host_joiners() for member in running.members]

    with job(b"state", b"state") as running:
        assert known(running) == [0, 0]
        waiting = running.all_do(barrier(3))[0].after.terms
        running.joiners.add(2)  # as the agent does when it starts it
        running.joiners.add(5)  # another one, of which nothing is heard
        assert known(running) == [2, 2]
        joining, peer = running.begin(running.add(b"blank"))
        assert known(running) == [1, 1, 1], "it is ready, and only waits"
        running.joiners.add(2)  # as if it had not got to say so
        running.offer(peer)
        running.all_do(barrier(terms=waiting), running.members[:2])
        joining.result(WITHIN_S)
        assert known(running) == [1, 1, 1], "it is in the view"
        running.joiners.remove([5])
        assert known(running) == [0, 0, 0]


def test_a_shrink_unplugs_the_newest_and_the_others_go_on() -> None:
    with job(b"state", b"state", b"state") as running:
        results = running.all_do(barrier(2))
        assert [result.rank for result in results] == [0, 1, None]
        assert {result.after.view.ids for result in results} == {(0, 1)}
        assert [member.socket.plugged for member in running.members] == [True, True, False]
        assert running.agent.in_force[-1] == results[0].after.view
        stayers = running.members[:2]
        assert [result.rank for result in running.all_do(barrier(1, terms=TERMS), stayers)] == [0, None]
        assert running.members[0].membership.hold_barrier(running.members[0].state, TERMS).rank == 0
        with pytest.raises(InternalError, match="held by a peer that is in no view"):
            running.members[2].membership.hold_barrier(running.members[2].state, TERMS)


def test_the_leaders_request_counts_and_a_dissent_is_recorded() -> None:
    with job(b"state", b"state") as running:
        results = running.hold_each(requests=[(Asked(Resize(1, "local_batch_size"), "rule", 7),), ()])
        assert [result.rank for result in results] == [0, None]
        requests = {"0": "rule asks for 1", "1": ""}
        assert running.events() == [{"event": "dissent", "view": 1, "requests": requests}]


def test_what_only_some_peers_would_have_asked_for_in_the_shadow_is_recorded() -> None:
    two, close, three = (ShadowAsk("shadow(grow)", 50, value) for value in (2.0, 2.00001, 3.0))
    with job(b"state", b"state") as running:
        running.hold_each(shadows=[(two,), (close,)])
        running.hold_each(shadows=[(two,), (three,)])
        running.hold_each("final_barrier", shadows=[(two,), ()])
        found = running.events()
    assert [one["event"] for one in found] == ["shadow dissent"] * 2
    asks = "shadow(grow) asks for {} at step 50".format
    assert [one["shadows"] for one in found] == [{"0": asks(2), "1": asks(3)}, {"0": asks(2), "1": ""}]


def test_the_end_that_the_program_of_rank_0_asks_for_is_no_dissent_about_a_size() -> None:
    with job(b"state", b"state") as running:
        grow, end = Asked(Resize(3), "rule", 7), Asked(StopTraining(), "the program", 7)
        results = running.hold_each(requests=[(grow, end), (grow,)])
        assert [one.by for one in results[0].after.superseded] == [grow.by]
        assert running.events() == []


def test_a_request_from_outside_comes_before_the_rules_and_is_no_dissent() -> None:
    rule = Asked(Resize(1, "local_batch_size"), "rule", 7)
    told = Asked(Resize(2, "local_batch_size"), "kungfu resize 2", 7, id="r")
    with job(b"state", b"state") as running:
        results = running.hold_each(requests=[(rule, told), (rule,)])
        assert [result.after.view.size for result in results] == [2, 2]
        assert [result.after.requests for result in results] == [(told,), (told,)], (
            "who follows may lead soon, and tell of it"
        )
        assert running.events() == []


def test_the_last_barrier_only_compares() -> None:
    with job(b"state", b"state") as running:
        assert running.hold_each("final_barrier") == [None, None]
        running.members[1].state.content = b"drift"
        assert all(isinstance(outcome, KungfuError) for outcome in running.hold_each("final_barrier"))


def test_a_peer_that_withdraws_and_closes_in_two_threads_unplugs_once_at_a_time() -> None:
    with job(b"state") as running:
        (member,) = running.members
        leaving, closed, overlapped = threading.Event(), threading.Event(), list[bool]()

        def leave() -> None:
            leaving.set()
            overlapped.append(closed.wait(0.3))

        member.socket.leave, member.socket.close = leave, closed.set
        withdrawing = running.threads.submit(member.membership.withdraw)
        assert leaving.wait(180.0)
        member.membership.close()
        withdrawing.result(WITHIN_S)
    assert (overlapped, closed.is_set()) == ([False], True)


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_state_that_differs_is_named_on_every_peer() -> None:
    with job(b"state", b"state", b"state") as running:
        running.members[2].state.content = b"drift"
        outcomes = running.all_do(barrier())
        first, *others = errors_of(outcomes)
        text = "UsageError: the peers of view 1 do not hold the same state: v0 of rank 2 is not that of rank 0; a "
        assert first.startswith(text)
        assert others == [first, first]


def test_a_peer_that_does_not_come_is_named_with_the_seconds_on_all_who_did() -> None:
    with job(b"state", b"state", b"state") as running:
        outcomes = coordinator_last(running, barrier(), number=0, wait_s=SHORT_S)
        text = "waited 0.6 s at barrier 0 of view 1 for rank 2"
        assert errors_of(outcomes) == [f"DeadlineExceeded: {text}", f"DeadlineExceeded: {text}"]
        assert [(one.waiting_for, one.waited_s) for one in outcomes] == [((2,), SHORT_S)] * 2, "as data too"


def test_who_comes_when_the_others_have_given_up_hears_why() -> None:
    with job(b"state", b"state") as running:
        running.members[0].expect_within(SHORT_S)
        with pytest.raises(DeadlineExceeded, match="for rank 1"):
            barrier()(running.members[0])
        with pytest.raises(DeadlineExceeded, match=r"waited 0\.6 s at barrier 0 of view 1 for rank 1"):
            barrier()(running.members[1])


@pytest.mark.parametrize("late", [0, 1])
def test_a_wait_at_a_barrier_for_a_peer_that_stands_still_ends_before_its_deadline(late: int) -> None:
    with job(b"state", b"state") as running:
        waiting = running.members[1 - late]
        waiting.socket.stopped.append(late)
        with pytest.raises(PeerFailure, match=f"rank {late} shows no life"):
            barrier()(waiting)


@pytest.mark.slow  # twice the deadline, so that a coordinator's own error comes first
def test_a_coordinator_that_never_decides_is_an_error_at_the_deadline() -> None:
    with job(b"state", b"state") as running:
        running.members[0].membership._protocol.service._deadline_s = SHORT_S
        with pytest.raises(PeerFailure, match="the coordinator never decided"):
            barrier()(running.members[1])


def test_a_joiner_that_is_gone_when_it_is_admitted_reaches_every_peer_as_an_error() -> None:
    with job(b"state", b"state") as running:
        waiting = running.all_do(barrier(3))[0].after.terms
        gone = rpc.serve(host="127.0.0.1", secret=SECRET, threads=1)
        gone.stop()
        running.offer(Peer(2, gone.address))
        outcomes = running.all_do(barrier(terms=waiting))
        assert [type(outcome) for outcome in outcomes] == [PeerFailure, PeerFailure]
        assert all("lost peer 2, about to join" in str(outcome) for outcome in outcomes)
        assert [outcome.peers for outcome in outcomes] == [(2,), (2,)]


def test_a_joiner_that_never_installs_the_view_is_named_on_all_who_did() -> None:
    outcomes = list[Any]()

    def joined(wait_s: float) -> None:
        with job(b"state", b"state") as running:
            waiting = running.all_do(barrier(3))[0].after.terms
            running.offer(Peer(2, running.serve_silence()))
            outcomes[:] = coordinator_last(running, barrier(terms=waiting), number=1, wait_s=wait_s)
            raise outcomes[0]

    wait_s, _ = expired_at("at the start of view 2 for rank 2", joined)
    text = f"waited {wait_s:.1f} s at the start of view 2 for rank 2"
    assert errors_of(outcomes) == [f"DeadlineExceeded: {text}", f"DeadlineExceeded: {text}"]


def coordinator_last(running: Job, what: Callable[[Member], Any], *, number: int, wait_s: float) -> list[Any]:
    """The outcomes of the first two peers at the barrier of this number, to which the coordinator comes last."""
    coordinator, other = running.members[:2]
    before = running.threads.submit(what, other)
    rendezvous = coordinator.membership._protocol.service.rendezvous.at(
        rendezvous_key(pb.BarrierArrival(version=1, number=number))
    )
    awaited(lambda: 1 in rendezvous._arrivals, what="rank 1 at the barrier", deadline_s=WITHIN_S)
    coordinator.expect_within(wait_s)
    outcomes = running.all_do(what, [coordinator])
    return [*outcomes, before.exception(WITHIN_S) or before.result()]


def test_a_state_that_arrives_wrong_starts_no_view() -> None:
    with job(b"state", b"state") as running:
        outcomes, joining = running.grow(_Deaf(b"blank"))
        text = "InternalError: the peers of view 2 do not hold the same state: v0 of rank 2 is not that of rank 0"
        assert errors_of([*outcomes, joining.exception(WITHIN_S)]) == [text] * 3
        assert [view.version for view in running.agent.in_force] == [1]


class _Deaf(Held):
    """Takes nothing in."""

    @contextmanager
    def writable(self) -> Iterator[Buffers]:
        yield Buffers.of([self.variables[0].copy()])
