"""What the agent tells peers that do not hear it at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from kungfu.runtime.agent.controller.peer_client import NotifyFailed, PeerClient
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits, Processes, Regrouping
from kungfu.runtime.core.cluster.events import AdmitSurvivors, AnnounceFailure, CoordinatorUnreachable
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import AGENT, Asked, Leave, Resize
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import to_asked, to_offer
from kungfu.runtime.ipc.messages_pb2_grpc import add_PeerServiceServicer_to_server
from kungfu.runtime.peer.peer_service import PeerService
from kungfu.runtime.settings import Deadlines, Limits, Settings

SECRET = "ab" * 32
SHORT_S = 0.3  # of a wait that is to expire, before a message is told again
SOON_S = 60.0
RESIZE = Asked(Resize(3), "kungfu resize 3", id="r")


class ListeningPeer(PeerService):
    """A peer that does as it is told with each message: "hears" it, hears it and its "answer is lost", or "is deaf"."""

    def __init__(self) -> None:
        super().__init__(deadline_s=SOON_S, on_offer=lambda: None, prepare_attachment=lambda size: f"store for {size}")
        self.moods: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.let_go = threading.Event()

    def hear(self, method: Callable[[Any, Any], Any], request: Any, context: Any) -> Any:
        mood = "hears" if self.moods.empty() else self.moods.get()
        if mood == "is deaf":
            self.let_go.wait(SOON_S)
            context.abort(grpc.StatusCode.CANCELLED, "it never heard that")
        answer = method(request, context)
        if mood == "answer is lost":
            context.abort(grpc.StatusCode.INTERNAL, "the answer is lost")
        self.came.put(request)
        return answer


def _in_its_mood(name: str) -> Callable[[ListeningPeer, Any, Any], Any]:
    def receive(self: ListeningPeer, request: Any, context: Any) -> Any:
        return self.hear(getattr(super(ListeningPeer, self), name), request, context)

    return receive


for _method in ("OfferJoiners", "ForwardRequest", "AnnounceFailure", "Admit", "PrepareAttachment"):
    setattr(ListeningPeer, _method, _in_its_mood(_method))


class Agent:
    """What is known of a job of two peers, of which the first one listens here; the other one's place refuses."""

    def __init__(self, address: str, refuses: str, *, deadlines: Deadlines) -> None:
        self.view = View(1, (Peer(0, address), Peer(1, refuses)))
        self.cluster = Cluster(JobLimits(deadlines), self.view, processes=Processes(alive=frozenset({0, 1}), next_id=2))
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        settings = Settings("job", -1, "127.0.0.1", SECRET, "local", Limits(1, 4), deadlines)
        self.peers = PeerClient(settings, self.heard.put, known=lambda: self.cluster, term=1)

    def ended(self, *peers: int) -> None:
        people = replace(self.cluster.processes, alive=self.cluster.alive - {*peers})
        self.cluster = replace(self.cluster, processes=people)

    def silent(self) -> None:
        """Waits until nothing is told to anybody any more."""
        for thread in [one for one in threading.enumerate() if one.name == "kungfu-peer-client"]:
            thread.join(SOON_S)
            assert not thread.is_alive()

    def regroups(self) -> AdmitSurvivors:
        """The first peer is to go on alone."""
        alone = View(3, self.view.peers[:1])
        self.cluster = replace(self.cluster, regrouping=Regrouping(0.0, 3, {1: "killed"}, formed=alone))
        return AdmitSurvivors(alone, (0,), 0, {1: "killed"})


@contextmanager
def job(*moods: str, wait_s: float = SOON_S, heartbeat_s: float = SHORT_S) -> Iterator[tuple[Agent, ListeningPeer]]:
    listener = ListeningPeer()
    for mood in moods:
        listener.moods.put(mood)
    server = rpc.serve((add_PeerServiceServicer_to_server, listener), host="127.0.0.1", secret=SECRET, threads=8)
    gone = rpc.serve(host="127.0.0.1", secret=SECRET, threads=1)
    gone.stop()
    agent = Agent(server.address, gone.address, deadlines=Deadlines(wait_s=wait_s, heartbeat_s=heartbeat_s))
    try:
        yield agent, listener
    finally:
        agent.ended(0, 1)
        listener.let_go.set()
        server.stop()


@pytest.mark.parametrize("mishap", ["is deaf", "answer is lost"])
def test_a_demand_that_was_not_heard_is_told_again_until_it_is_and_carried_out_once(mishap: str) -> None:
    with job(mishap, mishap) as (agent, listener):
        agent.peers.send_to_rank_0(RESIZE)
        listener.came.get(timeout=SOON_S)
        assert listener.inbox.pop_request() == RESIZE
        assert listener.inbox.pop_request() is None
        unheard = agent.heard.get(timeout=SOON_S)
        assert (type(unheard), unheard.peer) == (NotifyFailed, 0)
        assert agent.heard.empty(), "once, however often it is told"


def test_the_newer_one_of_two_offers_counts_whichever_is_heard_first() -> None:
    with job("is deaf") as (agent, listener):
        older, newer = JoinerOffer((Peer(2, "a:2"),)), JoinerOffer((Peer(2, "a:2"), Peer(3, "a:3")))
        agent.peers.send_to_rank_0(older)
        assert agent.heard.get(timeout=SOON_S).peer == 0
        agent.peers.send_to_rank_0(newer)
        # The older one may be told again before the newer one is made.
        while to_offer(listener.came.get(timeout=SOON_S)) != newer:
            pass
        assert listener.inbox.pop_offer() == newer
        agent.ended(0)
        agent.silent()
        assert listener.inbox.pop_offer() is None


def test_of_two_requests_of_the_agent_itself_for_the_same_the_newer_one_counts() -> None:
    """A size to make losses good, and the notice of a peer, are made anew where more is lost meanwhile."""
    older = Asked(Resize(3), "a host has come", id=AGENT), Asked(Leave((1,), "noticed", 3), "notice", id=AGENT)
    newer = Asked(Resize(4), "a host has come", id=AGENT), Asked(Leave((1,), "noticed", 2), "notice", id=AGENT)
    with job("is deaf", "is deaf") as (agent, listener):
        for one in older:
            agent.peers.send_to_rank_0(one)
            assert agent.heard.get(timeout=SOON_S).peer == 0
        for one in (*newer, RESIZE):
            agent.peers.send_to_rank_0(one)
        heard = [to_asked(listener.came.get(timeout=SOON_S)) for _ in range(3)]
        agent.silent()
        while not listener.came.empty():
            heard.append(to_asked(listener.came.get()))
        for old, new in zip(older, newer, strict=True):
            assert new in heard
            assert old not in heard[heard.index(new) :], "nothing older comes after it"
        assert RESIZE in heard, "that of a person is another one"


def test_nothing_is_told_to_a_leader_any_more_when_another_one_leads_or_it_has_ended() -> None:
    def is_over(agent: Agent) -> None:
        agent.cluster = replace(agent.cluster, view=View(2, agent.view.peers[1:]))

    for over in (is_over, lambda agent: agent.ended(0)):
        with job(*["answer is lost"] * 99) as (agent, listener):
            agent.peers.send_to_rank_0(RESIZE)
            agent.heard.get(timeout=SOON_S)
            over(agent)
            agent.silent()
            assert listener.came.empty()


def test_an_agent_that_ends_tells_nobody_anything_any_more() -> None:
    with job("is deaf", *["answer is lost"] * 99, wait_s=300.0, heartbeat_s=300.0) as (agent, _):
        agent.peers.send_to_rank_0(RESIZE)
        agent.peers.announce(AnnounceFailure(1, 1, "killed by SIGKILL"), agent.view.peers)
        assert isinstance(agent.heard.get(timeout=SOON_S), NotifyFailed)
        agent.peers.close()
        agent.silent()


def test_an_announcement_is_told_until_it_is_heard_or_a_later_view_trains() -> None:
    with job("answer is lost") as (agent, listener):
        agent.peers.announce(AnnounceFailure(1, 1, "killed by SIGKILL"), agent.view.peers)
        listener.came.get(timeout=SOON_S)
        assert str(listener.failed_peers.failure_in(agent.view)) == "rank 1 (peer 1) is gone: killed by SIGKILL"
        assert {agent.heard.get(timeout=SOON_S).peer for _ in range(2)} == {0, 1}
        agent.cluster = replace(agent.cluster, view=View(3, agent.view.peers[:1]))
        agent.silent()


def test_a_survivor_that_stood_still_is_admitted_when_it_goes_on() -> None:
    with job("is deaf", "hears", "is deaf") as (agent, listener):  # when asked to prepare, and when admitted
        agent.peers.admit_survivors(agent.regroups())
        admission = listener.admission(after=1)
        assert (admission.decision.view.version, list(admission.sources)) == (3, [0])
        assert admission.attachment_address == "store for 1"


@pytest.mark.parametrize("how", ["it has ended", "it does not answer"])
def test_a_view_is_unled_when_its_first_peer_has_ended_or_did_not_answer_in_its_time(how: str) -> None:
    with job(*["is deaf"] * 9, wait_s=SOON_S if how == "it has ended" else SHORT_S) as (agent, _):
        lead = agent.regroups()
        agent.peers.admit_survivors(lead)
        if how == "it has ended":
            agent.ended(0)
        events = [agent.heard.get(timeout=SOON_S)]
        while not isinstance(events[-1], CoordinatorUnreachable):
            events.append(agent.heard.get(timeout=SOON_S))
        assert events[-1] == CoordinatorUnreachable(lead.view)


def test_a_survivor_to_be_admitted_to_a_view_that_is_over_is_not_disturbed() -> None:
    with job("hears", *["answer is lost"] * 99, heartbeat_s=SOON_S) as (agent, listener):
        agent.peers.admit_survivors(agent.regroups())
        assert isinstance(agent.heard.get(timeout=SOON_S), NotifyFailed)
        agent.cluster = replace(agent.cluster, regrouping=None)
        agent.silent()
        assert isinstance(listener.came.get(timeout=SOON_S), pb.ViewInfo)
        assert listener.came.empty()
