"""Random histories of agents and an etcd, in which calls, answers, leases and agents are lost.

The agreement and the consensus of each agent are the real ones. The etcd is modelled, and so is the main loop of an
agent: a leader's decisions are numbers, which the state of the job collects. A leader may ask for its claim at any
time, with whatever hosts have acknowledged its state by then.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from kungfu.runtime.agent.consensus.election_round import ElectionRound, Stand
from kungfu.runtime.agent.consensus.state import ConsensusState, parse_snapshot, serialize_snapshot
from kungfu.runtime.agent.consensus.store_agreement import StoreAgreement
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.etcd import Entry, Etcd, StoreError
from kungfu.runtime.settings import Deadlines
from tests.runtime.agent.consensus.agents import state

# Nothing listens there, so that everybody believes of everybody else that its agent has ended.
HOSTS = [Host(f"127.0.0.{number + 1}", 4, 1) for number in range(3)]
HISTORIES = int(os.environ.get("KUNGFU_SOAK_EXAMPLES", "150"))


class ModelledEtcd(Etcd):
    """Its calls may not arrive, or their answers may be lost; ``meanwhile`` is done by others before some swaps."""

    def __init__(self, random: Random) -> None:
        self.random, self.loss, self.is_frozen = random, 0.1, False
        self.entries: dict[str, Entry] = {}
        self.leases, self.revision, self.given = set[int](), 0, 0
        self.meanwhile: Callable[[], None] | None = None

    def _arrive(self) -> None:
        if self.is_frozen or self.random.random() < self.loss:
            raise StoreError("it did not arrive")

    def _answer(self) -> None:
        if self.random.random() < self.loss:
            raise StoreError("the answer is lost")

    def read(self) -> dict[str, Entry]:
        self._arrive()
        return dict(self.entries)

    def swap(
        self, expected: Mapping[str, int], put: Mapping[str, bytes], *, leased: Mapping[str, int] | None = None,
        removed: Collection[str] = (),
    ) -> bool:  # fmt: skip
        if (others := self.meanwhile) is not None and self.random.random() < 0.3:
            self.meanwhile = None
            for _ in range(5):
                others()
            self.meanwhile = others
        self._arrive()
        found = {key: self.entries[key].revision if key in self.entries else 0 for key in expected}
        if found == expected:
            if any(lease not in self.leases for key, lease in (leased or {}).items() if key in put):
                raise StoreError("requested lease not found")
            self.revision += 1
            self.entries |= {key: Entry(one, self.revision, (leased or {}).get(key, 0)) for key, one in put.items()}
            for key in removed:
                self.entries.pop(key, None)
        self._answer()
        return found == expected

    def grant(self, ttl_s: int) -> int:
        self._arrive()
        self.given += 1
        self.leases.add(self.given)
        self._answer()
        return self.given

    def renew(self, lease: int) -> bool:
        self._arrive()
        return lease in self.leases

    def revoke(self, lease: int) -> None:
        self._arrive()
        self.expire(lease)
        self._answer()

    def expire(self, lease: int) -> None:
        self.leases.discard(lease)
        self.entries = {key: entry for key, entry in self.entries.items() if entry.lease != lease}


class ModelledHost:
    """The agent of a host, and its part as a leader: its decisions, and who has acknowledged them."""

    def __init__(self, etcd: Etcd, host: int) -> None:
        self.host, self.consensus, self.is_up = (
            host,
            ConsensusState(host, dict(enumerate(HOSTS)), clock=lambda: 0.0),
            True,
        )
        self.agreement = StoreAgreement(etcd, self.consensus, Deadlines(), notify=lambda error: None)
        self.agreement.keep_lease()
        self.links, self.acknowledged = set[int](), {host}
        self.snapshot, self.version, self.pending = parse_snapshot(state(0, 1, 2, hosts=3)), 0, list[int]()
        self.numbers: dict[int, int] = {}

    def lead(self, snapshot: Any, version: int, links: Collection[int]) -> None:
        self.snapshot, self.version, self.pending = snapshot, version + 1, []
        self.links, self.acknowledged, self.numbers = set(links), {self.host}, {}


class History:
    """What happens, and what must hold."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.etcd = ModelledEtcd(self.random)
        self.etcd.loss = 0.0
        self.hosts = [ModelledHost(self.etcd, host) for host in range(3)]
        self.performed: dict[int, int] = {}  # the term of each performed decision
        self.leaders: dict[int, Collection[int]] = {}  # the decisions that the leader of each term knew at first
        self.decisions = self.elections = 0
        founder = self.hosts[0]
        term = founder.agreement.found("job", False, False)
        assert founder.consensus.become_leader("job", term)
        founder.lead(founder.snapshot, 0, [])
        self.leaders[term] = ()
        for host in (1, 2):
            self.admit(founder, self.hosts[host])
        self.etcd.loss, self.etcd.meanwhile = 0.1, self.step
        self.busy: int | None = None  # the host that others do not wait for

    def step(self) -> None:
        """Something happens, on any host but one that is busy."""
        random, was_busy = self.random, self.busy
        one = random.choice([host for host in self.hosts if host.host != was_busy])
        self.busy = one.host
        self._act(one)
        self.busy = was_busy

    def _act(self, one: ModelledHost) -> None:
        random = self.random
        other = random.choice([host for host in self.hosts if host is not one])
        what = random.random()
        if what < 0.04:
            self.etcd.is_frozen = not self.etcd.is_frozen
        elif what < 0.08 and self.etcd.leases:
            self.etcd.expire(random.choice(sorted(self.etcd.leases)))
        elif what < 0.09 and sum(host.is_up for host in self.hosts) > 1:
            one.is_up = False
        elif what < 0.5 and not one.is_up:
            self.hosts[one.host] = ModelledHost(self.etcd, one.host)
        elif not one.is_up:
            pass
        elif what < 0.3:
            one.agreement.keep_lease()
        elif one.consensus.is_leader:
            self.lead(one, other)
        elif one.consensus.job and what > 0.8:
            for _ in range(3):
                self.elect(one)

    def lead(self, one: ModelledHost, other: ModelledHost) -> None:
        what = self.random.random()
        if what < 0.2:
            self.decide(one)
        elif what < 0.6 and other.host in one.links:
            self.send(one, other)
        elif what < 0.65 and other.host in one.links:
            # The host is lost for this leader, which is a decision, too.
            one.links.discard(other.host)
            self.decide(one)
        elif what < 0.75 and other.is_up and not other.consensus.job and not one.pending:
            self.admit(one, other)
        else:
            self.claim(one)

    def decide(self, one: ModelledHost) -> None:
        self.decisions += 1
        one.pending.append(self.decisions)
        one.snapshot = replace(one.snapshot, pids={**one.snapshot.pids, self.decisions: 1})
        one.version, one.acknowledged = one.version + 1, {one.host}

    def send(self, one: ModelledHost, other: ModelledHost) -> None:
        """The newest state to a follower, unless it is lost; so may be the answer."""
        one.numbers[other.host] = number = one.numbers.get(other.host, 0) + 1
        message = pb.ReplicateRequest(
            job="job", term=one.consensus.term, leader=one.host, number=number, version=one.version,
            state=serialize_snapshot(one.snapshot),
        )  # fmt: skip
        if other.is_up and self.random.random() > 0.1 and other.consensus.append(message) == "":
            other.consensus.is_new(message)
            if self.random.random() > 0.1:
                one.acknowledged.add(other.host)

    def admit(self, one: ModelledHost, other: ModelledHost) -> None:
        if other.host not in one.links:
            one.links.add(other.host)
            one.numbers[other.host] = 0
            other.consensus.follow("job", one.host, one.consensus.term)
            self.send(one, other)

    def claim(self, one: ModelledHost) -> None:
        claim = one.agreement.claim(frozenset(one.acknowledged))
        if claim == "refused":
            one.is_up = False
        if claim == "granted":
            for number in one.pending:
                for term, known in self.leaders.items():
                    assert term <= one.consensus.term or number in known, f"{number} is unknown to the leader of {term}"
                self.performed[number] = one.consensus.term
            one.pending = []

    def elect(self, one: ModelledHost) -> None:
        consensus = one.consensus
        if consensus.is_leader:
            return
        consensus.lose_leader()
        log = consensus.log
        pre_vote = pb.VoteRequest(job="job", host=one.host, log_term=log.term, log_version=log.version)
        votes = {
            other.host: vote for other in self.hosts
            if other is not one and other.is_up and self.random.random() > 0.3
            and not (vote := other.consensus.answer_vote(pre_vote)).hears_leader and vote.ByteSize()
        }  # fmt: skip
        at = ElectionRound(
            one.host, log, votes, now=self.random.choice([0.0, 6.0]), began=0.0, quorate_at=0.0,
            voted_term=consensus.voted_term, voted_at=-1e9, heartbeat_s=5.0,
        )  # fmt: skip
        others = {number: host for number, host in enumerate(HOSTS) if number != one.host}
        action = one.agreement.next_action(at, others)
        elected = one.agreement.stand(action, others) if isinstance(action, Stand) else None
        if elected is None:
            return
        self.elections += 1
        assert elected.term not in self.leaders, "one leader in a term"
        known = elected.snapshot.pids.keys()
        missing = [number for number in self.performed if number not in known]
        assert not missing, f"the leader of term {elected.term} does not know of {missing}"
        self.leaders[elected.term] = known
        one.lead(elected.snapshot, elected.version, elected.reached - {one.host})


def test_every_later_leader_knows_what_was_acted_on() -> None:
    seed, performed, elections = secrets.randbits(32) if "KUNGFU_RANDOM" in os.environ else 0, 0, 0
    print(f"the first seed is {seed}")
    for number in range(HISTORIES):
        history = History(seed + number)
        for _ in range(150):
            history.step()
        performed, elections = performed + len(history.performed), elections + history.elections
    assert performed > HISTORIES, "something was decided"
    assert elections > HISTORIES / 4, "and leaders were lost"
