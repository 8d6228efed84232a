"""Agents on a modelled network with a clock of its own: their consensus is the real one, their loops are modelled.

An agent has its `ConsensusState`, and decides by the pure functions `next_action`, `elected_by` and `commit_outcome`.
Its main loop is a generator that yields the seconds of a wait; a main loop that is stopped is not continued. A leader's
decisions are numbers, which the state of the job collects, so that everybody can see which decisions a state includes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import combinations, count
from random import Random
from typing import Any

from kungfu.runtime.agent.consensus.commit import FollowerProgress, Outcome, commit_outcome
from kungfu.runtime.agent.consensus.election import Elected, elected_by
from kungfu.runtime.agent.consensus.election_round import Action, ElectionRound, Stand, has_quorum, next_action
from kungfu.runtime.agent.consensus.host_list import HostList, founded
from kungfu.runtime.agent.consensus.replication import HEARTBEAT_EVERY_S, lost_after_s, retry_after_s
from kungfu.runtime.agent.consensus.state import (
    ConsensusState,
    JobSnapshot,
    listed_in,
    parse_snapshot,
    serialize_snapshot,
)
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.placement import has_majority
from kungfu.runtime.core.requests.request_log import RequestLog
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Deadlines
from tests.runtime.agent.consensus.agents import state

# All times are multiples of a power of two, so that their sums are exact.
HEARTBEAT_S, VOTES_WITHIN_S, TICK_S, STEP_S, FORGET_S = 1.5, 1.0, 0.25, 1 / 64, 3.0
SILENT_S = 0.25  # for the vote of a host from which no answer is expected
RETRY_S, LOST_S = retry_after_s(Deadlines(heartbeat_s=HEARTBEAT_S)), lost_after_s(Deadlines(heartbeat_s=HEARTBEAT_S))
ROUND_S = VOTES_WITHIN_S + TICK_S
# The time after which a message is answered, or its receiver lost; the leader knows it one tick later.
ANSWERED_S = HEARTBEAT_S + 2 * RETRY_S + TICK_S
# A leader without a quorum finds it out within ANSWERED_S, unless its main loop stops: then it is silent after another
# --heartbeat. Others miss it after LOST_S, wait for one that does not count for --heartbeat, and need a round to know
# each other, one for the votes, and a third one if the votes were split.
LEADER_WITHIN_S = ANSWERED_S + HEARTBEAT_S + LOST_S + HEARTBEAT_S + 3 * ROUND_S
SPEAKS_S = 2.0  # the time for which an agent that ends says so
REFUSED = "the port refuses"

MainLoop = Generator[float, None, None]


class Link:
    """The messages of a leader to one follower: one at a time, each repeated until it is answered."""

    def __init__(self, leader: ModelledAgent, host: int, *, sent: int) -> None:
        self.leader, self.host, self.sent = leader, host, sent
        self.incarnation = leader.incarnations.get(host, "")
        self.acknowledged, self.is_lost = 0, False
        self.late: deque[tuple[int, float]] = deque()  # the unacknowledged versions, each with its time of sending
        self.pending = pb.ReplicateRequest()
        self.in_flight: pb.ReplicateRequest | None = None
        self._look_later(HEARTBEAT_EVERY_S)

    @property
    def progress(self) -> FollowerProgress:
        return FollowerProgress(self.acknowledged, self.late[0][1] if self.late else math.inf, self.is_lost)

    def send(self, request: pb.ReplicateRequest) -> None:
        self.pending.MergeFrom(request)
        if request.version:
            self.late.append((request.version, self.leader.world.now))
        self.look()

    def look(self) -> None:
        """Sends the next message, unless the previous one is not answered yet."""
        leader = self.leader
        if self.in_flight is not None or self.is_lost or not leader.speaks:
            return
        # The leader has ended, and everything is said.
        if not leader.is_up and not self.pending.ByteSize():
            return
        # Nobody is to hear a leader that decides nothing any more.
        if leader.consensus.hangs:
            self._look_later(TICK_S)
            return
        self.sent += 1
        message, self.pending = self.pending, pb.ReplicateRequest()
        message.number, message.job, message.term, message.leader = self.sent, "job", leader.term, leader.host
        message.incarnation = self.incarnation
        self.in_flight, self.since = message, leader.world.now
        self._attempt(message)

    def _attempt(self, message: pb.ReplicateRequest) -> None:
        world = self.leader.world
        # It was answered, or the leader has ended.
        if self.in_flight is not message or not self.leader.speaks:
            return
        if world.now - self.since > HEARTBEAT_S + RETRY_S:
            self._lose()
            return
        sent = pb.ReplicateRequest()
        sent.CopyFrom(message)
        sent.now, sent.committed = world.now, self.leader.committed
        world.call(self.leader, self.host, lambda agent: agent.receive(sent), partial(self._answered, message))
        world.after(RETRY_S, partial(self._attempt, message))

    def _answered(self, message: pb.ReplicateRequest, why: str) -> None:
        # The first answer counts; a port may refuse for a moment.
        if self.in_flight is not message or (why == REFUSED and self.leader.world.now - self.since < RETRY_S):
            return
        # The agent has ended, or follows another leader, or has begun anew.
        if why:
            self._lose()
            return
        self.acknowledged, self.in_flight = max(self.acknowledged, message.version), None
        while self.late and self.late[0][0] <= self.acknowledged:
            self.late.popleft()
        if self.pending.ByteSize():
            self.look()
        else:
            self._look_later(HEARTBEAT_EVERY_S)

    def _look_later(self, wait_s: float) -> None:
        """Looks after a wait, unless something was sent meanwhile."""
        sent = self.sent
        self.leader.world.after(wait_s, lambda: self.look() if self.sent == sent else None)

    def _lose(self) -> None:
        self.is_lost, self.in_flight = True, None  # it is not sent again, to the agent that follows on this host
        if self.leader.links.get(self.host) is self:
            self.leader.queue.append(partial(self.leader.lose_host, self.host))


class ModelledAgent:
    """The agent of a host, from its start to its end; one that comes after it knows nothing of it."""

    patience_s = HEARTBEAT_S  # of the main loop

    def __init__(self, world: World, host: int, name: str) -> None:
        self.world, self.host, self.name, incarnation = world, host, name, str(next(world.numbers))
        self.consensus = ConsensusState(
            host, world.founded.listed, incarnation=incarnation, clock=lambda: world.now, patience_s=self.patience_s
        )  # fmt: skip
        self.is_up, self.is_stopped, self.stops, self.speaks_until = True, False, 0, math.inf
        self.queue: deque[Callable[[], MainLoop]] = deque()
        self.links: dict[int, Link] = {}
        self.sent: dict[int, int] = {}
        self.term, self.version, self.committed = 0, 0, 0
        self.snapshot: JobSnapshot | None = None
        self.uncommitted: tuple[Cluster, ...] = ()
        self._wait = ExitStack()
        self._wait.enter_context(self.consensus.waiting())
        self._main, self._is_due = self._run(), False

    def start(self) -> None:
        self.turn()
        self.watch()

    @property
    def speaks(self) -> bool:
        return self.world.now <= self.speaks_until

    # ---- the main loop -----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Continues the main loop; one that is stopped is continued later."""
        self._is_due = self.is_stopped
        if self.is_up and not self.is_stopped and (wait_s := next(self._main, None)) is not None:
            self.world.after(wait_s, self.turn)

    def stop(self) -> None:
        """The main loop stops: a disk does not answer."""
        if not self.is_stopped:
            self.is_stopped, self.stops = True, self.stops + 1
            self._wait.close()

    def go_on(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            self._wait.enter_context(self.consensus.waiting())
            if self._is_due:
                self.turn()

    def finish(self, how: str, said: pb.ReplicateRequest | None = None) -> None:
        """This agent ends, and for a while tells its followers what is to be ``said``."""
        self.is_up, self.speaks_until = False, -1.0 if said is None else self.world.now + SPEAKS_S
        self.world.ends.append((self.world.now, self, how))
        for link in self.links.values():
            if said:
                link.send(said)

    def _run(self) -> MainLoop:
        while not self.consensus.job:
            for host in self.world.others(self):
                self.world.call(self, host, lambda agent: agent.asked_in(self), lambda reply: None)
            yield HEARTBEAT_EVERY_S
        while self.is_up:
            if self.consensus.is_leader:
                yield from self._lead()
            while self.queue and self.is_up:
                yield from self.queue.popleft()()
            if self.consensus.leader is None and self.is_up:
                yield from self._elect()
            yield TICK_S

    # ---- of a follower -----------------------------------------------------------------------------------------------

    def receive(self, request: pb.ReplicateRequest) -> str:
        why = self.consensus.append(request)
        if why == "" and self.consensus.is_new(request):
            if request.state and self.consensus.log.snapshot is not None:
                self.world.note_held(self.host, self.consensus.log.snapshot)
            if request.leaves or request.HasField("end"):
                self.queue.append(partial(self._told, request))
        return why

    def _told(self, request: pb.ReplicateRequest) -> MainLoop:
        if request.HasField("end"):
            assert self.world.is_over, f"host {self.host} is told an end that was not decided"
            self.finish("told the end")
        elif request.term == self.consensus.term:
            self.consensus.lose_leader()
        yield from ()

    def watch(self) -> None:
        """A thread beside the main loop."""
        self._look_for_leader(LOST_S)
        if self.is_up:
            self.world.after(max(TICK_S, 1.0 - self.consensus.silence_s()), self.watch)

    def _look_for_leader(self, patience_s: float) -> None:
        leader, silence_s = self.consensus.leader, self.consensus.silence_s()
        if leader is not None and leader != self.host:
            is_down = not self.world.agents[leader].is_up and self.world.links(self.host, leader)
            if silence_s > patience_s or (silence_s > 1.0 and is_down):
                self.consensus.lose_leader()

    def vote(self, request: pb.VoteRequest) -> pb.VoteReply:
        self._look_for_leader(LOST_S - HEARTBEAT_EVERY_S)
        return self.consensus.answer_vote(request)

    # ---- an election -------------------------------------------------------------------------------------------------

    def next_action(self, at: ElectionRound) -> Action:
        return next_action(at)

    def _elect(self) -> MainLoop:
        began = quorate_at = self.world.now
        listed = {*self.consensus.hosts}
        silent: Set[int | None] = {self.consensus.lost_leader, *(listed - self.consensus.log.members)}
        while self.consensus.leader is None:
            log, now, votes = self.consensus.log, self.world.now, dict[int, pb.VoteReply]()
            yield from self._ask(sorted(listed - {self.host}), votes, silent=silent)
            silent = listed - votes.keys()
            at = ElectionRound(
                self.host, log, votes, now=now, began=began, quorate_at=quorate_at,
                voted_term=self.consensus.voted_term, voted_at=self.consensus.voted_at, heartbeat_s=HEARTBEAT_S,
            )  # fmt: skip
            self.consensus.has_quorum = at.pre_votes.is_quorum
            quorate_at = now if at.is_quorate else quorate_at
            if (newer := listed_in(at.pre_votes.log).keys()) - listed:
                listed |= newer
                continue
            action = self.next_action(at)
            if isinstance(action, Stand) and self.consensus.leader is None:
                yield from self._stand(action)
            if self.consensus.leader is not None:
                return
            if action in ("fenced", "no quorum"):
                self.finish(str(action))
                return
            yield TICK_S

    def _stand(self, action: Stand) -> MainLoop:
        if not self.consensus.grant_vote(action.term, self.host):
            return
        votes = dict[int, pb.VoteReply]()
        yield from self._ask(sorted(action.voters), votes, term=action.term)
        if (elected := elected_by(self.consensus, votes, action.term, reached=action.voters)) is not None:
            self.begin(elected)

    def _ask(
        self, hosts: Sequence[int], votes: dict[int, pb.VoteReply], *, term: int = 0,
        silent: Set[int | None] = frozenset(),
    ) -> MainLoop:  # fmt: skip
        log, replies = self.consensus.log, dict[int, Any]()
        request = pb.VoteRequest(
            job="job", host=self.host, term=term, binding=term > 0, log_term=log.term, log_version=log.version
        )
        for host in hosts:
            self.world.call(self, host, lambda agent: agent.vote(request), partial(replies.setdefault, host))
        until = self.world.now + VOTES_WITHIN_S
        while {*hosts} - replies.keys() - silent and self.world.now < until:
            yield TICK_S / 4
        until = min(until, self.world.now + SILENT_S)
        while len(replies) < len(hosts) and self.world.now < until:
            yield TICK_S / 4
        votes.update({host: vote for host, vote in replies.items() if vote != REFUSED and vote.ByteSize()})

    # ---- a leader ----------------------------------------------------------------------------------------------------

    def begin(self, elected: Elected) -> None:
        self.world.note_leader(self, elected)
        self.term, self.version, self.uncommitted = elected.term, elected.version, elected.uncommitted
        self.snapshot, self.reached = elected.snapshot, elected.reached
        self.incarnations = dict(elected.snapshot.incarnations)
        self.consensus.hosts = self.snapshot.hosts.listed

    @property
    def cluster(self) -> Cluster:
        assert self.snapshot is not None
        return self.snapshot.cluster

    def _lead(self) -> MainLoop:
        self.queue.clear()
        for host in sorted(self.reached - {self.host}):
            self._add_link(host, sent=0)
        yield from self._decide(self.cluster)
        # The previous leader has ended the job, and may not have told all hosts.
        if self.is_up and self.snapshot is not None and self.snapshot.end:
            yield from self.end_job()
        # The removal of a host was not committed.
        if again := self.reached - self.cluster.hosts.known:
            yield from self._decide(self._with_slots({**self.cluster.hosts.slots, **dict.fromkeys(again, 4)}))
        for host in sorted(self.cluster.hosts.known - self.reached):
            yield from self.lose_host(host)
        yield from self._regroup()
        while self.is_up:
            while self.queue and self.is_up:
                yield from self.queue.popleft()()
            yield TICK_S

    def _add_link(self, host: int, *, sent: int) -> None:
        self.links[host] = link = Link(self, host, sent=sent)
        if self.version and self.snapshot is not None:
            link.send(pb.ReplicateRequest(state=serialize_snapshot(self.snapshot), version=self.version))

    def _with_slots(self, slots: dict[int, int]) -> Cluster:
        return replace(self.cluster, hosts=replace(self.cluster.hosts, slots=slots))

    @property
    def possible_clusters(self) -> Sequence[Cluster]:
        assert self.snapshot is not None
        return [one for one in self.uncommitted if self.snapshot.hosts.covers(one)]

    def is_quorum(self, hosts: Collection[int]) -> bool:
        return has_quorum(self.possible_clusters, frozenset(hosts))

    def _decide(self, cluster: Cluster, hosts: HostList | None = None, *, end: bytes = b"") -> MainLoop:
        """Decides, and performs the decision when it may; ``hosts`` are the list of hosts, if it changes."""
        if not self.is_up:
            return
        assert self.snapshot is not None
        number, end = next(self.world.numbers), end or self.snapshot.end
        hosts = (hosts or self.snapshot.hosts).with_present(cluster.hosts.known, self.world.now)
        pids, incarnations = {**self.snapshot.pids, number: self.term}, dict(self.incarnations)
        self.snapshot = JobSnapshot(cluster, pids=pids, incarnations=incarnations, end=end, hosts=hosts)
        self.consensus.hosts = hosts.listed
        assert cluster.hosts.known <= hosts.listed.keys(), "every member is listed"
        self.version, self.uncommitted = self.version + 1, (*self.uncommitted, cluster)
        self.world.note_held(self.host, self.snapshot)
        message = pb.ReplicateRequest(state=serialize_snapshot(self.snapshot), version=self.version)
        for link in self.links.values():
            link.send(message)
        links, began, quorate_at, stops = dict(self.links), self.world.now, math.inf, self.stops
        while (outcome := self.outcome(links, began)) == "wait":
            holders = {host for host, link in links.items() if link.acknowledged >= self.version}
            if quorate_at == math.inf and self.is_quorum({self.host, *holders}):
                quorate_at = self.world.now
            yield TICK_S
        if outcome == "no quorum":
            self.leave()
            return
        self.world.note_performed(self, number, self.possible_clusters)
        self.world.is_over |= bool(end)
        waited_s = self.world.now - quorate_at
        assert waited_s <= HEARTBEAT_S + TICK_S or self.stops != stops, "a quorum waits for late agents no longer"
        if outcome == "committed":
            self.uncommitted, self.committed = (cluster,), self.version
            for link in links.values():
                link.look()

    def outcome(self, links: dict[int, Link], began: float) -> Outcome:
        return commit_outcome(
            self.version, {host: link.progress for host, link in links.items()}, leader=self.host,
            is_quorum=self.is_quorum, now=self.world.now, patience_s=HEARTBEAT_S,
        )  # fmt: skip

    def lose_host(self, host: int) -> MainLoop:
        """The host is lost for this leader: without it the job continues with the peers that are left, or elsewhere."""
        if (link := self.links.pop(host, None)) is not None:
            self.sent[host] = link.sent
        if not self.is_up or host not in self.cluster.hosts.known:
            return
        if not self.is_quorum({self.host, *(one for one, link in self.links.items() if not link.is_lost)}):
            self.leave()
            return
        # A leader that hears nobody decides on no loss, as others may hear it.
        yield from self._decide(self.cluster)
        hosts = self.cluster.hosts
        slots = {one: number for one, number in hosts.slots.items() if one != host}
        gone = replace(hosts, slots=slots, leaving=hosts.leaving - {host})
        yield from self._decide(replace(self.cluster, hosts=gone))
        yield from self._regroup()

    def _regroup(self) -> MainLoop:
        """The peers on hosts that are lost leave the view."""
        view, hosts = self.cluster.view, self.cluster.hosts
        assert view is not None
        survivors = tuple(peer for peer in view.peers if hosts.of[peer.id] in hosts.known)
        if self.is_up and survivors != view.peers:
            yield from self._decide(replace(self.cluster, view=View(view.version + 1, survivors)))

    def place(self, wish: Sequence[int]) -> MainLoop:
        """A new view: the first of its peers stays, and the others are new, on hosts that are in the job."""
        before, hosts = self.cluster.view, sorted(self.cluster.hosts.slots)
        assert before is not None
        # It was asked for before, of hosts that may be cut off by now.
        if self.world.is_calm:
            return
        first = max((0, *self.cluster.hosts.of)) + 1
        of = {first + index: hosts[number % len(hosts)] for index, number in enumerate(wish)}
        peers = (before.peers[0], *(Peer(id_, f"127.0.0.{host + 1}:1") for id_, host in of.items()))
        placed = replace(self.cluster.hosts, of={**self.cluster.hosts.of, **of})
        yield from self._decide(replace(self.cluster, view=View(before.version + 1, peers), hosts=placed))

    def asked_in(self, agent: ModelledAgent) -> None:
        if self.consensus.is_leader:
            self.queue.append(partial(self._admit, agent))

    def _admit(self, agent: ModelledAgent) -> MainLoop:
        assert self.snapshot is not None
        hosts = self.snapshot.hosts
        # It is not listed, or not any more.
        if hosts.number_of(agent.name) is None:
            yield from self._decide(self.cluster, hosts.with_host(Host(agent.name, 4, 1)))
        # It does not know its number yet.
        host = self.snapshot.hosts.number_of(agent.name)
        if host is not None and host != agent.host and self.is_up:
            self.world.deliver(self.host, agent.host, partial(self.world.number, agent, host))
        if host is None or host != agent.host or not self.is_up:
            return
        # It is a member, or the one before it on its host is: it asks again.
        if host in self.cluster.hosts.known:
            return
        is_same = self.incarnations.get(host) == agent.consensus.incarnation
        self.incarnations[host] = agent.consensus.incarnation
        self._add_link(host, sent=self.sent.get(host, 0) if is_same else 0)
        yield from self._decide(self._with_slots({**self.cluster.hosts.slots, host: 4}))
        if self.is_up:
            self.world.deliver(self.host, host, partial(agent.consensus.follow, "job", self.host, self.term))

    def end_job(self) -> MainLoop:
        """Ends the job, and tells it to the others, once a quorum holds the end."""
        yield from self._decide(self.cluster)
        yield from self._decide(self.cluster, end=b"over")
        if self.is_up:
            self.finish("over", pb.ReplicateRequest(end=pb.JobEnd()))

    def release(self, host: int) -> MainLoop:
        """A host got a notice: its peers leave the view, and then it leaves the job and the list."""
        view, hosts = self.cluster.view, self.cluster.hosts
        assert view is not None
        assert self.snapshot is not None
        staying = tuple(peer for peer in view.peers if hosts.of[peer.id] != host)
        # It is not in the job, or no peer would be left.
        if host == self.host or host not in hosts.slots or not staying:
            return
        slots = {one: number for one, number in hosts.slots.items() if one != host}
        leaving = replace(hosts, slots=slots, leaving=hosts.leaving | {host})
        yield from self._decide(replace(self.cluster, view=View(view.version + 1, staying), hosts=leaving))
        if self.is_up:
            gone = replace(self.cluster.hosts, leaving=self.cluster.hosts.leaving - {host})
            yield from self._decide(replace(self.cluster, hosts=gone), self.snapshot.hosts.without([host]))
        if self.is_up:
            self.links.pop(host, None)
            self.world.call(self, host, lambda agent: agent.finish("released"), lambda reply: None)

    def forget(self) -> MainLoop:
        """The host that is lost for the longest time leaves the list."""
        assert self.snapshot is not None
        hosts = self.snapshot.hosts
        number = hosts.to_forget(self.uncommitted, now=self.world.now, forget_s=FORGET_S)
        if number is not None:
            yield from self._decide(self.cluster, hosts.without([number]))

    def leave(self) -> None:
        """Leaves the job, without a quorum."""
        self.finish("left", self.farewell())

    def farewell(self) -> pb.ReplicateRequest:
        return pb.ReplicateRequest(leaves=True)


class World:
    """The hosts, the network between them, and what must hold.

    Attributes:
        cut: The links that are cut, each from one host to another.
        loss: The share of messages that are lost.
        delay_s: The longest delay of a message.
        doubled: The share of messages that arrive twice.
        is_over: True once a quorum holds the end of the job.
        is_calm: True once nobody asks for another view.
        ends: The ends of agents, with the time and the reason.
    """

    def __init__(self, hosts: int, placement: Sequence[int], *, seed: int, kind: type[ModelledAgent]) -> None:
        self.now, self.random, self.kind = 0.0, Random(seed), kind
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count(1)
        self.cut: set[tuple[int, int]] = set()
        self.loss, self.delay_s, self.doubled = 0.0, STEP_S, 0.0
        self.leaders: dict[int, tuple[ModelledAgent, Collection[int]]] = {}  # by term, with the decisions that it knew
        self.held: dict[int, set[int]] = {}
        self.performed: dict[int, int] = {}  # the term of each performed decision
        self.is_over = self.is_calm = False
        self.ends: list[tuple[float, ModelledAgent, str]] = []
        self.founded = founded(Host(f"host {host}", 4, 1) for host in range(hosts))
        self.named: dict[int, str] = {}  # the name of the agent that was given each number
        self.agents = {host: self.kind(self, host, f"host {host}") for host in range(hosts)}
        incarnations = {host: agent.consensus.incarnation for host, agent in self.agents.items()}
        first = parse_snapshot(state(*placement, hosts=hosts))
        first = replace(first, incarnations=incarnations, hosts=self.founded)
        everybody = frozenset(self.agents)
        self.agents[0].consensus.become_leader("job", 1)
        self.agents[0].begin(Elected(1, 0, first, RequestLog(), everybody, everybody, (first.cluster,)))
        for agent in self.agents.values():
            agent.consensus.follow("job", 0, 1)
            agent.start()
        self.run(2.0)

    # ---- time and messages -------------------------------------------------------------------------------------------

    def after(self, wait_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + wait_s, next(self.numbers), action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = until

    def others(self, agent: ModelledAgent) -> list[int]:
        return [host for host, one in self.agents.items() if one is not agent]

    def links(self, one: int, other: int) -> bool:
        """True if messages pass in both directions."""
        return (one, other) not in self.cut and (other, one) not in self.cut

    def deliver(self, sender: int, receiver: int, action: Callable[[], object]) -> None:
        """A message on its way: later ones may overtake it, it may come twice or never."""

        def arrive() -> None:
            if (sender, receiver) not in self.cut:
                action()

        for _ in range(1 + (self.random.random() < self.doubled)):
            if (sender, receiver) not in self.cut and self.random.random() >= self.loss:
                self.after(self.random.random() * self.delay_s // STEP_S * STEP_S, arrive)

    def call(
        self, caller: ModelledAgent, host: int, handle: Callable[[ModelledAgent], Any], answer: Callable[[Any], Any]
    ) -> None:
        """A call of the agent that runs on the host by now: a connection to it does not reach the one after it."""
        # Nothing runs any more where a host was that came back under another number.
        if (callee := self.agents.get(host)) is None:
            return

        def arrive() -> None:
            if callee.is_up or self.agents.get(host) is callee:
                reply = handle(callee) if callee.is_up else REFUSED
                self.deliver(host, caller.host, lambda: caller.speaks and answer(reply))

        self.deliver(caller.host, host, arrive)

    def restart(self, host: int) -> None:
        """Another agent starts on a host, after the end of the one before it."""
        before = self.agents[host]
        assert not before.is_up
        self.agents[host] = self.kind(self, host, before.name)
        self.agents[host].start()

    def join(self) -> None:
        """An agent starts that no list names; it has no number yet."""
        host = -next(self.numbers)
        self.agents[host] = self.kind(self, host, f"joiner {host}")
        self.agents[host].start()

    def number(self, agent: ModelledAgent, number: int) -> None:
        """A leader has told an agent its number."""
        assert self.named.setdefault(number, agent.name) == agent.name, f"number {number} was given twice"
        # It was told before, or has ended.
        if agent.host == number or not agent.is_up or agent.consensus.job:
            return
        assert number not in self.agents or not self.agents[number].is_up, f"two agents have number {number}"
        del self.agents[agent.host]
        self.agents[number], agent.host, agent.consensus.host = agent, number, number

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def note_held(self, host: int, snapshot: JobSnapshot) -> None:
        for number in snapshot.pids:
            self.held.setdefault(number, set()).add(host)

    def note_leader(self, agent: ModelledAgent, elected: Elected) -> None:
        assert elected.term not in self.leaders, f"one leader in term {elected.term}"
        missing = [number for number in self.performed if number not in elected.snapshot.pids]
        assert not missing, f"the leader of term {elected.term} does not know of the performed decisions {missing}"
        self.leaders[elected.term] = agent, elected.snapshot.pids.keys()

    def note_performed(self, leader: ModelledAgent, number: int, clusters: Sequence[Cluster]) -> None:
        holders = self.held[number]
        for cluster in clusters:
            assert cluster.view is not None
            assert has_majority(cluster.view, cluster.hosts.of, holders), f"of decision {number} only {holders} know"
        for term, (_, known) in self.leaders.items():
            assert term <= leader.term or number in known, f"decision {number} is unknown to the leader of term {term}"
        self.performed[number] = leader.term

    def majority(self) -> frozenset[int]:
        """Members of the job that all reach each other and may continue without the others; empty if there are none."""
        alive = {
            host: agent for host, agent in self.agents.items()
            if agent.is_up and not agent.is_stopped and self._clusters(agent)
        }  # fmt: skip
        for size in range(len(alive), 0, -1):
            for hosts in map(frozenset, combinations(alive, size)):
                clusters = [cluster for host in hosts for cluster in self._clusters(alive[host])]
                if all(
                    self._reach_each_other(alive[one], alive[other]) for one, other in combinations(hosts, 2)
                ) and has_quorum(clusters, hosts):
                    return hosts
        return frozenset()

    @staticmethod
    def _clusters(agent: ModelledAgent) -> Sequence[Cluster]:
        return agent.possible_clusters if agent.consensus.is_leader else agent.consensus.log.possible_clusters

    def _reach_each_other(self, one: ModelledAgent, other: ModelledAgent) -> bool:
        """True if there is a link between two agents, and neither of them has given up the other one."""

        def counts_on(agent: ModelledAgent, host: int) -> bool:
            link = agent.links.get(host)
            is_linked = not agent.consensus.is_leader or (link is not None and not link.is_lost)
            return is_linked and any(host in cluster.hosts.known for cluster in self._clusters(agent))

        return self.links(one.host, other.host) and counts_on(one, other.host) and counts_on(other, one.host)

    def leader_of(self, hosts: Collection[int]) -> ModelledAgent | None:
        """The leader that a quorum follows, of which a host is among ``hosts``."""
        for _, (agent, _) in sorted(self.leaders.items(), reverse=True):
            following = {
                host for host, one in self.agents.items()
                if one.is_up and one.consensus.leader == agent.host and one.consensus.term == agent.term
            }  # fmt: skip
            if agent.is_up and not agent.is_stopped and following & {*hosts} and agent.is_quorum(following):
                return agent
        return None

    def check_liveness(self) -> None:
        """From now on no link and no main loop changes: a connected majority has a leader in time, and keeps it."""
        self.loss, self.delay_s, self.doubled, self.is_calm = 0.0, STEP_S, 0.0, True
        self.run(ANSWERED_S)
        hosts, began = self.majority(), self.now
        if not hosts:
            return
        self.run(LEADER_WITHIN_S)
        if self.is_over:
            left = [host for host in hosts if self.agents[host].is_up]
            assert not left, f"the job is over, and hosts {left} go on after {LEADER_WITHIN_S} s"
            return
        leader = self.leader_of(hosts)
        assert leader is not None, f"{sorted(hosts)} have no leader after {LEADER_WITHIN_S} s"
        self.run(LOST_S)
        assert self.leader_of(hosts) is leader, "a leader that a quorum hears stays"
        # An agent leaves, or has been given up, for what it, or a leader, has heard before.
        for at, agent, how in self.ends:
            is_member = agent.host in hosts and self.links(agent.host, leader.host)
            assert at < began or not is_member or how in ("left", "fenced", "released"), (
                f"host {agent.host} of {hosts}: {how}"
            )
