"""Agents on a modelled network with a clock of its own: their consensus is the real one, their loops are modelled.

An agent has its `ConsensusState`, and decides by the pure functions `next_action`, `elected_by` and `commit_outcome`.
Its main loop is a generator that yields the seconds of a wait; a main loop that is stopped is not continued. A leader's
decisions are numbers, which the state of the job collects, so that everybody can see which decisions a state includes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import combinations, count
from random import Random
from typing import Any

from kungfu.runtime.agent.consensus.commit import FollowerProgress, Outcome, commit_outcome
from kungfu.runtime.agent.consensus.election import Elected, elected_by
from kungfu.runtime.agent.consensus.election_round import Action, ElectionRound, Stand, has_quorum, next_action
from kungfu.runtime.agent.consensus.replication import HEARTBEAT_EVERY_S, lost_after_s, retry_after_s
from kungfu.runtime.agent.consensus.state import ConsensusState, JobSnapshot, parse_snapshot, serialize_snapshot
from kungfu.runtime.core.cluster.cluster import Cluster, Hosts
from kungfu.runtime.core.cluster.placement import has_majority
from kungfu.runtime.core.requests.request_log import RequestLog
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.settings import Deadlines
from tests.runtime.agent.consensus.agents import state

HEARTBEAT_S = 2.0
DEADLINES = Deadlines(heartbeat_s=HEARTBEAT_S)
RETRY_S, LOST_S = retry_after_s(DEADLINES), lost_after_s(DEADLINES)
VOTES_WITHIN_S, BETWEEN_ROUNDS_S, LOOK_S, TICK_S = 1.0, 0.2, 0.2, 0.25
# A leader without a quorum finds it out within --heartbeat and two attempts, unless its main loop stops: then it is
# silent after another --heartbeat. Others miss it after LOST_S, wait for one that does not count for --heartbeat, and
# need a round to know each other, one for the votes, and a third one if the votes were split.
LEADER_WITHIN_S = 3 * HEARTBEAT_S + 3 * RETRY_S + LOST_S + 3 * (VOTES_WITHIN_S + BETWEEN_ROUNDS_S)
REFUSED = "the port refuses"

MainLoop = Generator[float, None, None]


class Link:
    """What a leader sends to one follower: one message at a time, again and again until it is answered."""

    def __init__(self, leader: ModelledAgent, host: int, *, sent: int) -> None:
        self.leader, self.host, self.sent = leader, host, sent
        self.acknowledged, self.is_lost = 0, False
        self.late: deque[tuple[int, float]] = deque()
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
        """Sends the next message, unless one is not answered yet."""
        leader = self.leader
        if self.in_flight is not None or self.is_lost or not leader.is_up:
            return
        # Nobody is to hear a leader that decides nothing any more.
        if leader.consensus.hangs:
            self._look_later(LOOK_S)
            return
        self.sent += 1
        message, self.pending = self.pending, pb.ReplicateRequest()
        message.number, message.job, message.term, message.leader = self.sent, "job", leader.term, leader.host
        self.in_flight, self.since = message, leader.world.now
        self._attempt(message, is_last=False)

    def _attempt(self, message: pb.ReplicateRequest, *, is_last: bool) -> None:
        # It was answered.
        if self.in_flight is not message or not self.leader.is_up:
            return
        if is_last:
            self._lose()
            return
        world, sent = self.leader.world, pb.ReplicateRequest()
        sent.CopyFrom(message)
        sent.now, sent.committed = world.now, self.leader.committed
        world.call(self.leader, self.host, lambda agent: agent.receive(sent), partial(self._answered, message))
        last = world.now - self.since > HEARTBEAT_S
        world.after(RETRY_S, partial(self._attempt, message, is_last=last))

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
        self._look_later(0.0 if self.pending.ByteSize() else HEARTBEAT_EVERY_S)

    def _look_later(self, wait_s: float) -> None:
        """Looks after a wait, unless something was sent meanwhile."""
        sent = self.sent
        self.leader.world.after(wait_s, lambda: self.look() if self.sent == sent else None)

    def _lose(self) -> None:
        self.is_lost, self.in_flight = True, None  # it is not sent again, to the agent that follows on this host
        self.leader.queue.append(partial(self.leader.lose_host, self.host))


class ModelledAgent:
    """The agent of a host, from its start to its end; one that comes after it knows nothing of it."""

    patience_s = HEARTBEAT_S  # of the main loop

    def __init__(self, world: World, host: int) -> None:
        self.world, self.host, self.number = world, host, next(world.numbers)
        self.consensus = ConsensusState(host, clock=lambda: world.now, patience_s=self.patience_s)
        self.is_up, self.is_stopped, self.end = True, False, ""
        self.queue: deque[Callable[[], MainLoop]] = deque()
        self.links: dict[int, Link] = {}
        self.sent: dict[int, int] = {}
        self.term, self.version, self.committed = 0, 0, 0
        self.snapshot: JobSnapshot | None = None
        self.uncommitted: tuple[Cluster, ...] = ()
        self._wait = ExitStack()
        self._wait.enter_context(self.consensus.waiting())
        self._main = self._run()
        self._wait_number = 0
        self.stops = 0  # the number of times that the main loop was stopped

    def start(self) -> None:
        self.turn()
        self.watch()

    # ---- the main loop -----------------------------------------------------------------------------------------------

    def turn(self, wait: int = 0) -> None:
        """Continues the main loop, unless it is stopped, or has been continued since this ``wait`` began."""
        if self.is_up and not self.is_stopped and wait in (0, self._wait_number):
            wait_s = next(self._main, None)
            self._wait_number = next(self.world.numbers)
            if wait_s is not None:
                self.world.after(wait_s, partial(self.turn, self._wait_number))

    def stop(self) -> None:
        """The main loop stops: a disk does not answer."""
        if not self.is_stopped:
            self.is_stopped, self.stops = True, self.stops + 1
            self._wait.close()

    def go_on(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            self._wait.enter_context(self.consensus.waiting())
            self.turn()

    def finish(self, how: str) -> None:
        """This agent ends."""
        self.is_up, self.end = False, how
        self.world.ends.append((self.world.now, self, how))

    def _run(self) -> MainLoop:
        while not self.consensus.job:
            for host in self.world.others(self.host):
                self.world.call(self, host, lambda agent: agent.asked_in(self), lambda reply: None)
            yield HEARTBEAT_EVERY_S
        while self.is_up:
            if self.consensus.is_leader:
                yield from self._lead()
            while self.queue and self.is_up and not self.consensus.is_leader:
                yield from self.queue.popleft()()
            if self.consensus.leader is None and self.is_up:
                yield from self._elect()
            yield TICK_S

    # ---- of a follower -----------------------------------------------------------------------------------------------

    def receive(self, request: pb.ReplicateRequest) -> str:
        why = self.consensus.append(request)
        if why == "" and self.consensus.is_new(request):
            if self.consensus.log.snapshot is not None:
                self.world.note_held(self.host, self.consensus.log.snapshot)
            if request.leaves or request.HasField("end"):
                self.queue.append(partial(self._told, request))
        return why

    def _told(self, request: pb.ReplicateRequest) -> MainLoop:
        if request.HasField("end"):
            assert self.host not in self.world.majority(), f"host {self.host} is told to end, and is of the majority"
            self.finish("told to end")
        elif request.term == self.consensus.term:
            self.consensus.lose_leader()
        yield from ()

    def watch(self) -> None:
        """A thread beside the main loop."""
        leader = self.consensus.leader
        if leader is not None and not self.consensus.is_leader and not self._hears(leader):
            self.consensus.lose_leader()
        if self.is_up:
            self.world.after(TICK_S, self.watch)

    def _hears(self, leader: int) -> bool:
        silence_s = self.consensus.silence_s()
        is_down = silence_s > 1.0 and not self.world.agents[leader].is_up and self.world.links(self.host, leader)
        return silence_s <= LOST_S and not is_down

    def vote(self, request: pb.VoteRequest) -> pb.VoteReply:
        leader = self.consensus.leader
        if leader is not None and leader != self.host and not self._hears(leader):
            self.consensus.lose_leader()
        return self.consensus.answer_vote(request)

    # ---- an election -------------------------------------------------------------------------------------------------

    def next_action(self, at: ElectionRound) -> Action:
        return next_action(at)

    def _elect(self) -> MainLoop:
        began = quorate_at = self.world.now
        while self.consensus.leader is None:
            log, now = self.consensus.log, self.world.now
            request = pb.VoteRequest(job="job", host=self.host, log_term=log.term, log_version=log.version)
            votes: dict[int, pb.VoteReply] = {}
            yield from self._ask(request, self.world.others(self.host), votes)
            at = ElectionRound(
                self.host, log, votes, now=now, began=began, quorate_at=quorate_at,
                voted_term=self.consensus.voted_term, voted_at=self.consensus.voted_at, heartbeat_s=HEARTBEAT_S,
            )  # fmt: skip
            self.consensus.has_quorum = at.pre_votes.is_quorum
            quorate_at = now if self.consensus.has_quorum else quorate_at
            action = self.next_action(at)
            if isinstance(action, Stand) and self.consensus.leader is None:
                yield from self._stand(action)
            if self.consensus.leader is not None:
                return
            if action in ("fenced", "no quorum"):
                self.finish(str(action))
                return
            yield BETWEEN_ROUNDS_S

    def _stand(self, action: Stand) -> MainLoop:
        if not self.consensus.grant_vote(action.term, self.host):
            return
        log, votes = self.consensus.log, dict[int, pb.VoteReply]()
        request = pb.VoteRequest(
            job="job", host=self.host, term=action.term, binding=True, log_term=log.term, log_version=log.version
        )
        yield from self._ask(request, sorted(action.voters), votes)
        if (elected := elected_by(self.consensus, votes, action.term, reached=action.voters)) is not None:
            self.begin(elected)

    def _ask(self, request: pb.VoteRequest, hosts: Sequence[int], votes: dict[int, pb.VoteReply]) -> MainLoop:
        replies: dict[int, Any] = {}
        for host in hosts:
            self.world.call(self, host, lambda agent: agent.vote(request), partial(replies.setdefault, host))
        until = self.world.now + VOTES_WITHIN_S
        while len(replies) < len(hosts) and self.world.now < until:
            yield 0.05
        votes.update({host: vote for host, vote in replies.items() if vote != REFUSED and vote.ByteSize()})

    # ---- a leader ----------------------------------------------------------------------------------------------------

    def begin(self, elected: Elected) -> None:
        self.world.note_leader(self, elected)
        self.term, self.version, self.uncommitted = elected.term, elected.version, elected.uncommitted
        self.snapshot = elected.snapshot
        self.reached = elected.reached

    @property
    def cluster(self) -> Cluster:
        assert self.snapshot is not None
        return self.snapshot.cluster

    def _lead(self) -> MainLoop:
        self.queue.clear()
        for host in sorted(self.reached - {self.host}):
            self._add_link(host, sent=0)
        yield from self._decide(self.cluster)
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

    def _is_quorum(self, hosts: frozenset[int]) -> bool:
        return has_quorum(self.uncommitted, hosts)

    def _decide(self, cluster: Cluster) -> MainLoop:
        """Decides, and performs the decision when it may."""
        if not self.is_up:
            return
        assert self.snapshot is not None
        number = next(self.world.numbers)
        self.snapshot = replace(self.snapshot, cluster=cluster, pids={**self.snapshot.pids, number: self.term})
        self.version, self.uncommitted = self.version + 1, (*self.uncommitted, cluster)
        self.world.note_held(self.host, self.snapshot)
        message = pb.ReplicateRequest(state=serialize_snapshot(self.snapshot), version=self.version)
        for link in self.links.values():
            link.send(message)
        links, began, quorate_at, stops = dict(self.links), self.world.now, math.inf, self.stops
        while (outcome := self.outcome(links, began)) == "wait":
            holders = {host for host, link in links.items() if link.acknowledged >= self.version}
            if quorate_at == math.inf and self._is_quorum(frozenset({self.host, *holders})):
                quorate_at = self.world.now
            yield LOOK_S
        if outcome == "no quorum":
            self.leave()
            return
        self.world.note_performed(self, number, self.uncommitted)
        waited_s = self.world.now - quorate_at
        assert waited_s <= HEARTBEAT_S + LOOK_S or self.stops != stops, "a quorum waits for late agents no longer"
        if outcome == "committed":
            self.uncommitted, self.committed = (cluster,), self.version
            for link in links.values():
                link.look()

    def outcome(self, links: dict[int, Link], began: float) -> Outcome:
        return commit_outcome(
            self.version, {host: link.progress for host, link in links.items()}, leader=self.host,
            is_quorum=self._is_quorum, now=self.world.now, patience_s=HEARTBEAT_S,
        )  # fmt: skip

    def lose_host(self, host: int) -> MainLoop:
        """The host is lost for this leader: without it the job continues with the peers that are left, or elsewhere."""
        if (link := self.links.pop(host, None)) is not None:
            self.sent[host] = link.sent
        if not self.is_up or host not in self.cluster.hosts.known:
            return
        if not self._is_quorum(frozenset({self.host, *(one for one, link in self.links.items() if not link.is_lost)})):
            self.leave()
            return
        hosts = self.cluster.hosts
        slots = {one: number for one, number in hosts.slots.items() if one != host}
        yield from self._decide(replace(self.cluster, hosts=replace(hosts, slots=slots)))
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
        first = max((0, *self.cluster.hosts.of)) + 1
        of = {first + index: hosts[number % len(hosts)] for index, number in enumerate(wish)}
        peers = (before.peers[0], *(Peer(id_, f"127.0.0.{host + 1}:1") for id_, host in of.items()))
        placed = replace(self.cluster.hosts, of={**self.cluster.hosts.of, **of})
        yield from self._decide(replace(self.cluster, view=View(before.version + 1, peers), hosts=placed))

    def asked_in(self, agent: ModelledAgent) -> None:
        if self.consensus.is_leader:
            self.queue.append(partial(self._admit, agent))

    def _admit(self, agent: ModelledAgent) -> MainLoop:
        host = agent.host
        # It is a member, or the one before it on its host is: it asks again.
        if host in self.cluster.hosts.known:
            return
        is_same = self.world.admitted.get(host) == agent.number
        self.world.admitted[host] = agent.number
        self._add_link(host, sent=self.sent.get(host, 0) if is_same else 0)
        hosts: Hosts = self.cluster.hosts
        yield from self._decide(replace(self.cluster, hosts=replace(hosts, slots={**hosts.slots, host: 4})))
        if self.is_up:
            self.world.deliver(self.host, host, partial(agent.consensus.follow, "job", self.host, self.term))

    def leave(self) -> None:
        """Leaves the job, without a quorum."""
        for link in self.links.values():
            self.say_farewell(link.pending)
            link.look()
        self.finish("left")

    def say_farewell(self, message: pb.ReplicateRequest) -> None:
        message.leaves = True


class World:
    """The hosts, the network between them, and what must hold.

    Attributes:
        cut: The links that are cut, each from one host to another.
        loss: The share of messages that are lost.
        delay_s: The longest delay of a message.
        doubled: The share of messages that arrive twice.
        ends: The ends of agents, with the time and the reason.
    """

    def __init__(self, hosts: int, placement: Sequence[int], *, seed: int, kind: type[ModelledAgent]) -> None:
        self.now, self.random, self.kind = 0.0, Random(seed), kind
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count(1)
        self.cut: set[tuple[int, int]] = set()
        self.loss, self.delay_s, self.doubled = 0.0, 0.01, 0.0
        self.leaders: dict[int, tuple[ModelledAgent, Collection[int]]] = {}  # by term, with the decisions that it knew
        self.held: dict[int, set[int]] = {}
        self.performed: dict[int, int] = {}  # the term of each performed decision
        self.ends: list[tuple[float, ModelledAgent, str]] = []
        self.admitted: dict[int, int] = {}
        first = parse_snapshot(state(*placement, hosts=hosts))
        self.agents = {host: self.kind(self, host) for host in range(hosts)}
        self.admitted = {host: agent.number for host, agent in self.agents.items()}
        founder = self.agents[0]
        founder.consensus.become_leader("job", 1)
        log = founder.consensus.log.with_state(0, 0, serialize_snapshot(first))
        assert log.snapshot is not None
        all_hosts = frozenset(range(hosts))
        founder.begin(Elected(1, 0, log.snapshot, RequestLog(), all_hosts, all_hosts, log.possible_clusters))
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

    def others(self, host: int) -> list[int]:
        return [one for one in self.agents if one != host]

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
                self.after(self.random.random() * self.delay_s, arrive)

    def call(
        self, caller: ModelledAgent, host: int, handle: Callable[[ModelledAgent], Any], answer: Callable[[Any], Any]
    ) -> None:
        """A call of the agent that runs on the host by now: a connection to it does not reach the one after it."""
        callee = self.agents[host]

        def arrive() -> None:
            if callee.is_up or self.agents[host] is callee:
                reply = handle(callee) if callee.is_up else REFUSED
                self.deliver(host, caller.host, lambda: caller.is_up and answer(reply))

        self.deliver(caller.host, host, arrive)

    def restart(self, host: int) -> None:
        """Another agent starts on a host, after the end of the one before it."""
        assert not self.agents[host].is_up
        self.agents[host] = self.kind(self, host)
        self.agents[host].start()

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
                if not all(self.links(one, other) for one, other in combinations(hosts, 2)):
                    continue
                clusters = [cluster for host in hosts for cluster in self._clusters(alive[host])]
                members = frozenset.intersection(*(one.hosts.known for one in clusters)) if clusters else frozenset()
                if hosts <= members and has_quorum(clusters, hosts):
                    return hosts
        return frozenset()

    @staticmethod
    def _clusters(agent: ModelledAgent) -> Sequence[Cluster]:
        return agent.uncommitted if agent.consensus.is_leader else agent.consensus.log.possible_clusters

    def leader_of(self, hosts: Collection[int]) -> ModelledAgent | None:
        """The leader that a quorum follows, all of which are among these hosts or connected to one of them."""
        for _, (agent, _) in sorted(self.leaders.items(), reverse=True):
            following = {
                host for host, one in self.agents.items()
                if one.is_up and one.consensus.leader == agent.host and one.consensus.term == agent.term
            }  # fmt: skip
            if agent.is_up and not agent.is_stopped and following & {*hosts} and agent._is_quorum(frozenset(following)):
                return agent
        return None

    def check_liveness(self) -> None:
        """From now on no link and no main loop changes: a connected majority has a leader in time, and keeps it."""
        self.loss, self.delay_s, self.doubled = 0.0, 0.01, 0.0
        self.run(VOTES_WITHIN_S + BETWEEN_ROUNDS_S)  # no answer that is awaited was lost before
        hosts, began = self.majority(), self.now
        if not hosts:
            return
        self.run(LEADER_WITHIN_S)
        leader = self.leader_of(hosts)
        assert leader is not None, f"{sorted(hosts)} have no leader after {LEADER_WITHIN_S:.1f} s"
        self.run(LOST_S)
        assert self.leader_of(hosts) is leader, "a leader that a quorum hears stays"
        # An agent leaves, or has been given up, for what it, or a leader, has heard before.
        for at, agent, how in self.ends:
            is_member = agent.host in hosts and self.links(agent.host, leader.host)
            assert at < began or not is_member or how in ("left", "fenced"), f"host {agent.host} of {hosts}: {how}"
