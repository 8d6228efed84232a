"""Both implementations of the agreement keep the same promises; and what only an etcd decides."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from kungfu.runtime.agent.consensus.agreement import Agreement
from kungfu.runtime.agent.consensus.election import Elected, MajorityAgreement, NoQuorum, elect
from kungfu.runtime.agent.consensus.replication import Replicator
from kungfu.runtime.agent.consensus.state import ConsensusState, parse_snapshot
from kungfu.runtime.agent.consensus.store_agreement import StoreAgreement
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.etcd import Etcd, StoreError
from tests.runtime.agent.consensus.agents import SETTINGS, Agent, agents, state
from tests.runtime.agent.etcd_server import EtcdServer, etcd_server, needs_etcd

# A lost host is given up in time; a lease, which lasts as long, ends by itself.
QUICK = replace(SETTINGS, deadlines=replace(SETTINGS.deadlines, heartbeat_s=2.0))
WITHIN_S = 60.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@dataclass
class Job:
    """Agents in one job, each with its agreement; the agent of host 0 has founded it, and the others follow."""

    hosts: list[Host]
    agents: list[Agent]
    agreements: list[Agreement]
    replicators: dict[int, Replicator] = field(default_factory=dict)
    prefix: str = field(default_factory=lambda: f"kungfu/{secrets.token_hex(4)}/")  # of the keys of an etcd
    still: set[int] = field(default_factory=set)  # the leaders that stand still, and send nothing
    reported: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)  # what the leader's etcd is said to do

    def lead(self, host: int, *followers: int, term: int, version: int = 0) -> Replicator:
        """What the leader on a host sends to its followers."""
        replicator = self.replicators[host] = Replicator(
            QUICK, leader=host, term=term, clock=time.monotonic, put=lambda event: None, version=version,
            hangs=lambda: host in self.still,
        )  # fmt: skip
        for number in followers:
            incarnation = self.agents[number].consensus.incarnation
            replicator.add_follower(number, self.hosts[number], incarnation=incarnation)
        return replicator

    def acts_on(self, host: int, text: bytes) -> bool:
        """The leader on a host replicates a state; True if it may act on it."""
        replicator, agreement, cluster = self.replicators[host], self.agreements[host], parse_snapshot(text).cluster
        outcome = replicator.commit(text, is_quorum=lambda hosts: agreement.is_quorum([cluster], hosts))
        until = time.monotonic() + WITHIN_S
        while outcome != "no quorum" and (claim := agreement.claim(replicator.acknowledged_by)) == "unknown":
            assert time.monotonic() < until
            time.sleep(0.05)
        return outcome != "no quorum" and claim == "granted"

    def end(self, host: int) -> None:
        """The agent of a host ends, as if it were killed."""
        self.agents[host].stop()
        if host in self.replicators:
            self.replicators.pop(host).close()

    def elect(self, *candidates: int) -> dict[int, Elected | NoQuorum | None]:
        """The outcome of an election for each of the hosts, which have all lost their leader."""
        found: dict[int, Elected | NoQuorum | None] = {}

        def run(host: int) -> None:
            consensus, agreement = self.agents[host].consensus, self.agreements[host]
            while True:
                consensus.lose_leader()
                found[host] = came = elect(consensus, QUICK, agreement=agreement, how="lost")
                # Not a last message of the leader that was lost.
                if came is not None or consensus.leader in candidates:
                    break
            # The first message of the new leader.
            if isinstance(came, Elected):
                for other in set(candidates) - {host}:
                    message = pb.ReplicateRequest(
                        job=self.agents[host].consensus.job, term=came.term, leader=host, number=1
                    )
                    self.agents[other].consensus.append(message)

        threads = [threading.Thread(target=run, args=[host]) for host in candidates]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@contextmanager
def begun(server: EtcdServer | None, text: bytes, *, count: int = 3) -> Iterator[Job]:
    """A job whose founder, on host 0, has acted on a state that all hosts hold; ``server`` decides, or the agents."""
    with agents(count) as (hosts, made), ExitStack() as stack:
        agreements: list[Agreement] = []
        job = Job(hosts, made, agreements)
        for agent in made:
            if server is None:
                agreements.append(MajorityAgreement(agent.consensus, QUICK))
                continue
            etcd = Etcd(server.address, job.prefix, deadline_s=1.0)
            notify = job.reported.put if agent is made[0] else ignore
            agreements.append(StoreAgreement(etcd, agent.consensus, QUICK.deadlines, notify=notify))
            stack.callback(agreements[-1].close, is_over=False)
        stack.callback(lambda: [one.close() for one in job.replicators.values()])
        for agreement in agreements:
            agreement.open()
        term = wait_for(lambda: agreements[0].found("job", False, False))
        assert made[0].consensus.become_leader("job", term)
        job.lead(0, *range(1, count), term=term)
        assert job.acts_on(0, text)
        yield job
        agreements[0].close(is_over=True)


def ignore(error: str) -> None:
    """Of a follower nothing is looked at."""


def wait_for(look: Callable[[], T]) -> T:
    """What is looked for, once it is there."""
    until = time.monotonic() + WITHIN_S
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


both = pytest.mark.parametrize("kind", ["agents", pytest.param("etcd", marks=needs_etcd)])


def of(kind: str, request: pytest.FixtureRequest) -> EtcdServer | None:
    return request.getfixturevalue("server") if kind == "etcd" else None


@both
def test_one_leads_with_all_that_was_acted_on(kind: str, request: pytest.FixtureRequest) -> None:
    newer = state(0, 1, 2, 2, hosts=3, version=2)
    with begun(of(kind, request), state(0, 1, 2, hosts=3)) as job:
        assert job.acts_on(0, newer)
        first = job.agents[0].consensus.term
        job.end(0)
        found = job.elect(1, 2)
    (won,) = [one for one in found.values() if isinstance(one, Elected)]
    assert [one for one in found.values() if not isinstance(one, Elected)] == [None], "the other one follows it"
    assert won.term > first
    assert won.snapshot == parse_snapshot(newer)
    assert won.reached == {1, 2}


@both
def test_no_other_agent_founds_while_one_is_in_the_job(kind: str, request: pytest.FixtureRequest) -> None:
    with begun(of(kind, request), state(0, 1, hosts=2), count=2) as job:
        assert [one.found("other", True, False) for one in job.agreements] == [0, 0]


@both
def test_a_host_without_the_newest_state_does_not_lead(kind: str, request: pytest.FixtureRequest) -> None:
    """Host 2 was cut off while the others went on, and then all the others end."""
    with begun(of(kind, request), state(0, 1, 2, hosts=3)) as job:
        job.agents[2].stop()
        assert job.acts_on(0, state(0, 1, 2, 1, hosts=3, version=2))
        for host in (0, 1):
            job.end(host)
        assert isinstance(job.elect(2)[2], NoQuorum)


@both
def test_a_leader_that_was_replaced_acts_no_more(kind: str, request: pytest.FixtureRequest) -> None:
    """It stood still while the others elected, and wakes up."""
    with begun(of(kind, request), state(0, 1, 2, hosts=3)) as job:
        job.agents[0].stop()
        job.still.add(0)
        found = job.elect(1, 2)
        job.still.clear()
        assert any(isinstance(one, Elected) for one in found.values())
        assert not job.acts_on(0, state(0, 1, 2, 1, hosts=3, version=2))


@both
def test_the_next_leader_acts_and_is_replaced_in_turn(kind: str, request: pytest.FixtureRequest) -> None:
    with begun(of(kind, request), state(0, 1, 1, 2, 2, hosts=3)) as job:
        job.end(0)
        found = job.elect(1, 2)
        (leader, won) = next((host, one) for host, one in found.items() if isinstance(one, Elected))
        other = 3 - leader
        job.lead(leader, other, term=won.term, version=won.version)
        newer = state(1, 1, 2, 2, hosts=3, version=2, gone=frozenset({0}), first=1)
        assert job.acts_on(leader, newer)
        job.agents[leader].stop()
        job.replicators.pop(leader).close()
        # Of two equal halves the agents prefer the one with rank 0, and an etcd any holder.
        last = job.elect(other)[other]
    if kind == "agents" and other == 2:
        assert isinstance(last, NoQuorum)
    else:
        assert isinstance(last, Elected)
        assert (last.term > won.term, last.snapshot) == (True, parse_snapshot(newer))


# ---- an etcd alone -------------------------------------------------------------------------------------------------


def holders(server: EtcdServer, job: Job) -> list[int]:
    found: list[int] = msgspec.json.decode(server.keys(job.prefix)["holders"])["hosts"]
    return found


@needs_etcd
def test_a_leader_acts_only_after_a_lost_host_is_struck_from_the_set(tmp_path: Path) -> None:
    """The etcd stands still between the loss of the host and the strike."""
    acted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with etcd_server(tmp_path) as server, begun(server, state(0, 1, 2, hosts=3)) as job:
        assert holders(server, job) == [0, 1, 2]
        with server.frozen():
            job.agents[2].stop()
            text = state(0, 1, 1, hosts=3, version=2)
            leading = threading.Thread(target=lambda: acted.put(job.acts_on(0, text)))
            leading.start()
            assert "has not answered" in job.reported.get(timeout=WITHIN_S)
            job.agents[1].heard.get(timeout=WITHIN_S)
            assert acted.empty()
        assert acted.get(timeout=WITHIN_S)
        leading.join()
        assert holders(server, job) == [0, 1]


@needs_etcd
def test_a_leader_that_reaches_no_peer_strikes_no_host_that_runs_one(server: EtcdServer) -> None:
    """Host 1 goes on as long as it runs one of the peers; host 0, which leads, runs none."""
    with begun(server, state(1, 2, hosts=3)) as job:
        job.agents[2].stop()
        assert job.acts_on(0, state(1, 2, hosts=3, version=2))
        job.agents[1].stop()
        assert not job.acts_on(0, state(1, 1, hosts=3, version=3))
        assert holders(server, job) == [0, 1]


@needs_etcd
def test_what_all_holders_hold_is_acted_on_while_the_etcd_is_lost(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, begun(server, state(0, 1, hosts=2), count=2) as job:
        with server.frozen():
            assert job.acts_on(0, state(0, 1, 1, hosts=2, version=2))
        server.end()
        assert job.acts_on(0, state(0, 1, 1, 1, hosts=2, version=3))


@needs_etcd
def test_a_leader_whose_lease_has_ended_campaigns_anew_in_its_term(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, begun(server, state(0, 1, hosts=2), count=2) as job:
        reader = Etcd(server.address, job.prefix, deadline_s=5.0)
        before = reader.read()
        with server.frozen():
            time.sleep(2.5)  # longer than the lease: etcd has a clock of its own

        def campaigned() -> bool:
            assert job.agreements[0].claim(frozenset({0, 1})) != "refused"
            now = Etcd(server.address, job.prefix, deadline_s=5.0).read()
            return "leader" in now and now["leader"].lease != before["leader"].lease

        assert wait_for(campaigned)
        now = server.keys(job.prefix)
        assert {key: now[key] for key in ("leader", "holders")} == {
            key: before[key].value for key in ("leader", "holders")
        }
        assert job.acts_on(0, state(0, 1, 1, hosts=2, version=2))


@needs_etcd
def test_an_etcd_that_has_lost_its_data_strikes_no_host_any_more(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server, begun(server, state(0, 1, hosts=2), count=2) as job:
        server.lose_data()
        everybody, agreement = frozenset({0, 1}), job.agreements[0]
        assert wait_for(lambda: job.reported.empty() or "lost the keys" in job.reported.get())
        assert job.acts_on(0, state(0, 1, 1, hosts=2, version=2)), "every holder has acknowledged it"
        assert (agreement.claim(frozenset({0})), agreement.claim(everybody)) == ("unknown", "granted")


@needs_etcd
def test_no_job_is_founded_beside_one_whose_keys_are_lost(tmp_path: Path) -> None:
    """Its agents register again with their leases; the newcomer, which no list names, knows nobody else."""
    with etcd_server(tmp_path) as server, begun(server, state(0, 1, hosts=2), count=2) as job:
        server.lose_data()
        assert wait_for(lambda: "hosts/0" in server.keys(job.prefix))
        etcd, consensus = Etcd(server.address, job.prefix, deadline_s=5.0), ConsensusState(-1, {0: OWN})
        newcomer = StoreAgreement(etcd, consensus, QUICK.deadlines, notify=ignore)
        newcomer.open()
        assert newcomer.found("other", False, False) == 0
        assert "holders" not in server.keys(job.prefix)
        newcomer.close(is_over=False)


@needs_etcd
def test_an_etcd_that_is_full_is_lost_once_until_it_takes_writes_again(tmp_path: Path) -> None:
    """It renews leases all the while."""
    with (
        etcd_server(tmp_path, "--quota-backend-bytes", "200000") as server,
        begun(server, state(0, 1, hosts=2), count=2) as job,
    ):
        with suppress(StoreError):
            for _ in range(100):
                Etcd(server.address, "other/", deadline_s=5.0).swap({}, {"a": b"x" * 8000})
        agreement = job.agreements[0]
        assert isinstance(agreement, StoreAgreement)
        for _ in range(3):
            assert agreement.claim(frozenset({0})) == "unknown"
            agreement.keep_lease()
            assert agreement.claim(frozenset({0, 1})) == "granted", "every holder has acknowledged it"
        assert "free room" in job.reported.get(timeout=WITHIN_S)
        assert job.reported.empty()


@needs_etcd
def test_a_host_that_has_caught_up_is_a_holder_again(server: EtcdServer) -> None:
    with begun(server, state(0, 1, 2, hosts=3)) as job:
        assert job.agreements[0].claim(frozenset({0, 2})) == "granted"
        assert holders(server, job) == [0, 2]
        assert job.agreements[0].claim(frozenset({0, 1, 2})) == "granted"
        assert holders(server, job) == [0, 1, 2]


@needs_etcd
def test_a_job_is_founded_anew_once_the_leases_of_the_last_one_have_ended(server: EtcdServer) -> None:
    """All agents of the last one were killed: nobody has removed its keys."""
    etcd, name = Etcd(server.address, "kungfu/again/", deadline_s=5.0), "127.0.0.1:1"
    with agents(1) as ([_], [agent]):
        agent.consensus.hosts = {0: Host("127.0.0.1", 1, 1)}
        agreement = StoreAgreement(etcd, agent.consensus, QUICK.deadlines, notify=ignore)
        lease = etcd.grant(2)
        values = {
            "leader": {"job": "old", "host": 0, "address": name, "term": 3},
            "holders": {"job": "old", "term": 3, "hosts": [0, 1]},
        }
        put = {key: msgspec.json.encode(one) for key, one in values.items()}
        etcd.swap({}, put | {"hosts/1": b"old"}, leased={"leader": lease, "hosts/1": lease})
        agreement.open()
        assert agreement.found("new", False, False) == 0, "its leader may be alive"
        assert wait_for(lambda: agreement.found("new", False, False)) == 4
        assert agreement.found("new", False, False) == 4, "it has founded it already, if an answer was lost"
        assert msgspec.json.decode(server.keys("kungfu/again/")["holders"])["hosts"] == [0]
        assert agent.consensus.become_leader("new", 4)
        agreement.close(is_over=True)
        entries = etcd.read()
        assert [*entries] == ["holders"]
        assert entries["holders"].lease != 0
    with agents(1) as ([_], [agent]):
        agent.consensus.hosts = {0: Host("127.0.0.1", 1, 1)}
        third = StoreAgreement(etcd, agent.consensus, QUICK.deadlines, notify=ignore)
        third.open()
        assert third.found("third", False, False) == 5, "the last job has ended well, so nothing is waited for"
        third.close(is_over=True)


OWN = Host("127.0.0.9", 1, 9)


@pytest.mark.parametrize(
    ("number", "hosts"), [pytest.param(0, {0: OWN}, id="listed"), (-1, {0: OWN}), pytest.param(-1, {}, id="joiner")]
)
@needs_etcd
def test_a_leader_that_no_list_names_is_to_be_asked(server: EtcdServer, number: int, hosts: dict[int, Host]) -> None:
    """It may have joined later; or it leads another job, and refuses."""
    with begun(server, state(0, 1, hosts=2), count=2) as job:
        consensus = ConsensusState(number, hosts)
        etcd = Etcd(server.address, job.prefix, deadline_s=5.0)
        other = StoreAgreement(etcd, consensus, QUICK.deadlines, notify=ignore)
        assert other.leader() is None
        assert other.found("other", False, False) == 0
        assert other.leader() == ("job", job.hosts[0].address)


@needs_etcd
def test_a_host_without_a_number_registers_once_it_has_one_and_founds_as_number_0(server: EtcdServer) -> None:
    etcd, consensus = Etcd(server.address, "kungfu/unlisted/", deadline_s=5.0), ConsensusState(-1, {0: OWN})
    agreement = StoreAgreement(etcd, consensus, QUICK.deadlines, notify=ignore)
    agreement.open()
    agreement.keep_lease()
    assert etcd.read() == {}
    consensus.host = 7  # of a leader that is lost before it admits this host
    agreement.keep_lease()
    assert [*etcd.read()] == ["hosts/7"]
    assert agreement.found("job", False, False) == 1
    assert agreement.found("job", False, False) == 1, "it has founded it already, if an answer was lost"
    leader = {"job": "job", "host": 0, "address": OWN.address, "term": 1}
    assert msgspec.json.decode(etcd.read()["leader"].value) == leader
    consensus.host = 0
    assert consensus.become_leader("job", 1)
    agreement.keep_lease()
    assert {key: entry.value for key, entry in etcd.read().items() if key.startswith("hosts/")} == {"hosts/0": b"job"}
    assert msgspec.json.decode(etcd.read()["holders"].value)["hosts"] == [0]
    agreement.close(is_over=True)


@needs_etcd
def test_a_host_that_was_told_to_join_founds_no_job(server: EtcdServer) -> None:
    etcd, consensus = Etcd(server.address, "kungfu/joiner/", deadline_s=5.0), ConsensusState(-1)
    agreement = StoreAgreement(etcd, consensus, QUICK.deadlines, notify=ignore)
    agreement.open()
    consensus.hosts = {0: OWN}  # the list of a job that has asked for nothing yet
    assert agreement.found("job", False, False) == 0
    assert (agreement.leader(), etcd.read()) == (None, {})
    agreement.close(is_over=False)


@needs_etcd
def test_an_agent_whose_main_loop_hangs_lets_its_lease_end(server: EtcdServer) -> None:
    etcd, consensus = Etcd(server.address, "kungfu/hangs/", deadline_s=5.0), ConsensusState(0, patience_s=0.0)
    agreement = StoreAgreement(etcd, consensus, QUICK.deadlines, notify=ignore)
    agreement.open()
    assert "hosts/0" in etcd.read()
    with consensus.waiting():
        pass
    assert wait_for(lambda: "hosts/0" not in etcd.read())
    with consensus.waiting():
        assert wait_for(lambda: "hosts/0" in etcd.read()), "it registers again"
        agreement.close(is_over=False)
    assert etcd.read() == {}
