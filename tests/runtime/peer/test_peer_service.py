"""What a peer's service takes in and lets wait, called without a network."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import Asked, Resize, SaveCheckpoint
from kungfu.runtime.core.view import Peer
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.convert import from_asked, from_offer
from kungfu.runtime.peer.peer_service import PeerService, rendezvous_key


def service(**parts: Any) -> PeerService:
    return PeerService(**{"deadline_s": 60.0, "on_offer": lambda: None, "prepare_attachment": str, **parts})


def test_an_arrival_at_another_barrier_or_view_is_not_counted_here() -> None:
    coordinator = service(deadline_s=0.05)
    meeting = coordinator.rendezvous.at(rendezvous_key(pb.BarrierArrival(version=2, number=5)))
    for version, number in ((1, 5), (2, 4)):
        verdict = coordinator.Arrive(pb.BarrierArrival(version=version, number=number, rank=1), None)
        assert verdict.failure.text == "the coordinator never decided"
    meeting.arrive(0, pb.BarrierArrival(rank=0))
    with pytest.raises(DeadlineExceeded, match="rank 1"):
        meeting.everyone(2, deadline_s=0.0, what="barrier 5")


def admission(version: int, term: int = 0, address: str = "") -> pb.Admission:
    decision = pb.Decision(view=pb.ViewInfo(version=version))
    return pb.Admission(decision=decision, term=term, attachment_address=address, sources=[0, 1])


def test_an_admission_is_given_once() -> None:
    peer = service()
    peer.Admit(admission(4), None)
    assert peer.admission(after=0) == admission(4)
    with pytest.raises(TimeoutError):
        peer.admission(after=0, meanwhile=give_up)
    peer.Admit(admission(4), None)
    with pytest.raises(TimeoutError):  # only a later view than the one that broke would do
        peer.admission(after=4, meanwhile=give_up)


def give_up() -> None:
    raise TimeoutError


class RefusedError(Exception):
    """The call was not answered."""


class Call:
    """What a call knows of itself."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise RefusedError(f"{code.name}: {details}")


def test_an_admission_of_an_old_head_that_comes_late_does_not_replace_the_new_ones() -> None:
    peer = service()
    peer.Admit(admission(6, 2, "new"), Call())
    for version, term in ((6, 1), (4, 0), (4, 2)):
        with pytest.raises(RefusedError, match=r"FAILED_PRECONDITION: this peer is admitted to view 6 \(of term 2\)"):
            peer.Admit(admission(version, term, "old"), Call())
    peer.Admit(admission(6, 2, "new"), Call())
    assert peer.admission(after=3).attachment_address == "new"
    with pytest.raises(RefusedError):
        peer.Admit(admission(6, 1, "later still"), Call())
    peer.Admit(admission(7, 0, "of its rank 0"), Call())
    assert peer.admission(after=6).attachment_address == "of its rank 0"


def test_all_who_ask_for_the_rendezvous_of_a_view_are_told_the_same() -> None:
    made = list[int]()
    peer = service(prepare_attachment=lambda size: made.append(size) or f"here:{len(made)}")

    def address(version: int, *peers: int) -> str:
        view = pb.ViewInfo(version=version, peers=[pb.PeerInfo(id=one) for one in peers])
        return peer.PrepareAttachment(view, None).address

    assert [address(3, 1, 2) for _ in range(2)] == ["here:1"] * 2
    assert address(5, 1, 2) == "here:2"
    assert address(5, 1) == "here:3", "of an agent that has lost a peer more"
    assert made == [2, 2, 1]


def test_an_offer_of_a_peer_that_is_gone_by_now_is_not_used() -> None:
    coordinator = service()
    coordinator.OfferJoiners(from_offer(JoinerOffer((Peer(2, "a:2"), Peer(3, "a:3")))), None)
    coordinator.AnnounceFailure(pb.FailureAnnouncement(peer=3, version=0, how="killed by SIGKILL"), None)
    assert coordinator.inbox.pop_offer() is None
    whole = JoinerOffer((Peer(2, "a:2"), Peer(4, "a:4")))
    coordinator.OfferJoiners(from_offer(whole), None)
    assert coordinator.inbox.pop_offer() == whole


def test_a_failure_is_known_by_the_time_at_which_its_listener_is_called() -> None:
    known = list[bool]()
    peer = service(on_failure=lambda: known.append(peer.failed_peers.gone(3)))
    peer.AnnounceFailure(pb.FailureAnnouncement(peer=3, version=0, how="killed by SIGKILL"), None)
    assert known == [True]


def test_a_checkpoint_that_is_demanded_again_with_another_view_is_written_once() -> None:
    coordinator, external = service(), Asked(SaveCheckpoint(), "kungfu checkpoint", id="r")
    for _ in range(2):
        coordinator.ForwardRequest(from_asked(external), None)
    assert coordinator.inbox.pop_request() == external
    coordinator.ForwardRequest(from_asked(external), None)
    assert coordinator.inbox.pop_request() is None
    other = Asked(SaveCheckpoint(), "kungfu checkpoint", id="s")
    coordinator.ForwardRequest(from_asked(other), None)
    assert coordinator.inbox.pop_request() == other


def test_a_request_of_a_newer_version_is_refused_and_asks_for_no_barrier() -> None:
    posts: list[str] = []
    coordinator = service(on_offer=lambda: posts.append("barrier"))
    request = pb.Asked(leave=pb.Leave(peers=[1], when=99), by="kungfu scale-in 1", id="r")
    with pytest.raises(RefusedError, match="INVALID_ARGUMENT: When 99 is not known"):
        coordinator.ForwardRequest(request, Call())
    assert (posts, coordinator.inbox.pop_request()) == ([], None)


def test_a_repeated_call_is_done_once_and_an_older_offer_comes_behind_no_newer() -> None:
    posts: list[str] = []
    coordinator = service(on_offer=lambda: posts.append("barrier"))
    resize = from_asked(Asked(Resize(3), "kungfu resize 3", id="r"))
    for number in (7, 7, 9):  # the same one told again, and with another view
        resize.number = number
        coordinator.ForwardRequest(resize, None)
    assert posts == ["barrier"] * 2
    assert [coordinator.inbox.pop_request() is None for _ in range(3)] == [False, False, True]
    first, older, newer = (from_offer(JoinerOffer((Peer(one, f"a:{one}"),), number=8 + one)) for one in (1, 2, 3))
    posts.clear()
    for offer in (first, newer, older, newer):
        coordinator.OfferJoiners(offer, None)
    assert posts == ["barrier"] * 2
    assert [peer.id for peer in coordinator.inbox.pop_offer().ready] == [3]
    coordinator.OfferJoiners(newer, None)
    assert coordinator.inbox.pop_offer() is None, "it was taken"


def test_a_peer_is_traced_once_at_a_time_and_says_what_is_wrong() -> None:
    request, second = pb.TraceRequest(seconds=2.0, folder="there"), list[pb.TraceReply]()
    assert "cannot be traced" in service().WriteTrace(request, None).error

    def write_trace(seconds: float, folder: str) -> str:
        if not second:
            second.append(peer.WriteTrace(request, None))
        return f"{folder} for {seconds:g} s"

    peer = service(write_trace=write_trace)
    assert peer.WriteTrace(request, None).error == "there for 2 s"
    assert "being written already" in second[0].error
    assert peer.WriteTrace(request, None).error == "there for 2 s", "the next one is taken again"
