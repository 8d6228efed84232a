"""The agreement of the agents, whatever the network and the machines do: one leader, and nothing is lost that was done.

Hypothesis drives modelled agents (`modelled`) through histories of cut links, lost, late, doubled and reordered
messages, main loops that stop, and agents that end and begin anew.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kungfu.runtime.agent.consensus.commit import Outcome
from kungfu.runtime.agent.consensus.election_round import Action, ElectionRound, Stand
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.modelled import HEARTBEAT_S, STEP_S, TICK_S, Link, MainLoop, ModelledAgent, World
from tests.soak import SOAK

EXAMPLES = int(os.environ.get("KUNGFU_SOAK_EXAMPLES", "500"))
MOST = 5
HOST = st.integers(0, MOST - 1)
WHO = st.integers(-1, MOST - 1)  # -1: the host of a leader


class Agreement(RuleBasedStateMachine):
    """One history; hosts beyond those of the job are taken modulo their number."""

    kind: type[ModelledAgent] = ModelledAgent

    @initialize(
        hosts=st.sampled_from([3, 4, MOST, MOST]),
        placement=st.permutations(range(MOST)) | st.lists(HOST, min_size=1, max_size=6),
        seed=st.integers(0, 1 << 16), may_end=st.sampled_from([False, False, False, True]),
    )  # fmt: skip
    def begin(self, hosts: int, placement: list[int], seed: int, may_end: bool) -> None:
        self.may_end = may_end
        self.world = World(hosts, [host % hosts for host in placement], seed=seed, kind=self.kind)

    def host(self, who: int) -> int:
        """The number of a host of this job."""
        leaders = (host for host, agent in self.world.agents.items() if agent.is_up and agent.consensus.is_leader)
        hosts = sorted(self.world.agents)
        return next(leaders, hosts[0]) if who < 0 else hosts[who % len(hosts)]

    def of_leaders(self, action: Callable[[ModelledAgent], MainLoop]) -> None:
        for agent in self.world.agents.values():
            if agent.consensus.is_leader:
                agent.queue.append(partial(action, agent))

    @rule(one=WHO, others=st.sets(HOST, min_size=1, max_size=3), ways=st.sampled_from(["to", "from", "both"]))
    def cut(self, one: int, others: set[int], ways: str) -> None:
        for pair in [(self.host(one), self.host(other)) for other in others if self.host(other) != self.host(one)]:
            self.world.cut |= {pair} if ways == "to" else {pair[::-1]} if ways == "from" else {pair, pair[::-1]}

    @rule(one=WHO, other=HOST)
    def leave_one_link(self, one: int, other: int) -> None:
        self.cut(one, {host for host in self.world.agents if host != self.host(other)}, "both")

    @rule(some=st.sets(HOST, min_size=1, max_size=2))
    def part(self, some: set[int]) -> None:
        here = {self.host(host) for host in some}
        self.world.cut |= {(a, b) for a in self.world.agents for b in self.world.agents if (a in here) != (b in here)}

    @precondition(lambda self: self.world.cut)
    @rule(keep=st.integers(0, 3))
    def mend(self, keep: int) -> None:
        self.world.cut = set(sorted(self.world.cut)[:keep])

    @rule(
        loss=st.sampled_from([0.0, 0.1, 0.4]), delay_s=st.sampled_from([STEP_S, 0.25, 1.25]),
        doubled=st.sampled_from([0.0, 0.3]),
    )  # fmt: skip
    def disturb(self, loss: float, delay_s: float, doubled: float) -> None:
        self.world.loss, self.world.delay_s, self.world.doubled = loss, delay_s, doubled

    @rule(who=WHO)
    def stop_main_loop(self, who: int) -> None:
        self.world.agents[self.host(who)].stop()

    @rule()
    def continue_main_loops(self) -> None:
        for agent in self.world.agents.values():
            agent.go_on()

    @rule(who=WHO, is_followed=st.booleans())
    def end(self, who: int, is_followed: bool) -> None:
        host = self.host(who)
        if self.world.agents[host].is_up:
            self.world.agents[host].finish("killed")
        if is_followed:
            self.world.restart(host)

    @precondition(lambda self: any(not agent.is_up for agent in self.world.agents.values()))
    @rule()
    def begin_anew(self) -> None:
        for host, agent in [*self.world.agents.items()]:
            if not agent.is_up:
                self.world.restart(host)

    @rule(wish=st.lists(HOST, max_size=5))
    def place_peers(self, wish: list[int]) -> None:
        self.of_leaders(lambda agent: agent.place(wish))

    @precondition(lambda self: len(self.world.agents) < MOST + 2)
    @rule()
    def join(self) -> None:
        self.world.join()

    @rule(who=WHO)
    def release(self, who: int) -> None:
        self.of_leaders(lambda agent: agent.release(self.host(who)))

    @rule()
    def forget(self) -> None:
        self.of_leaders(lambda agent: agent.forget())

    @precondition(lambda self: self.may_end)
    @rule()
    def end_job(self) -> None:
        self.of_leaders(lambda agent: agent.end_job())

    @invariant()
    def time_passes(self) -> None:
        self.world.run(self.world.random.choice([0.0, 0.25, 1.0, 3.0, 6.0]))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_liveness()


def histories(kind: type[ModelledAgent], number: int, *phases: Phase) -> None:
    """Runs the machine on agents of this kind."""
    machine = type("Machine", (Agreement,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=number, stateful_step_count=10, phases=phases or tuple(Phase), database=None, deadline=None,
            report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_agents_agree_in_every_history() -> None:
    histories(ModelledAgent, EXAMPLES)


# ---- links of which only some are cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ends", [False, True])
def test_a_leader_that_hears_nobody_ends_nobody_and_loses_nobody_of_the_majority(seed: int, ends: bool) -> None:
    world = World(3, [0, 1, 2], seed=seed, kind=ModelledAgent)
    world.delay_s = 0.25  # so it loses one follower before the other one
    world.run(5.0 + seed / 4)
    world.cut = {(1, 0), (2, 0)}
    if ends:
        world.agents[0].queue.append(world.agents[0].end_job)
    while not world.ends:
        world.run(TICK_S)
    for host in (1, 2):
        held = world.agents[host].consensus.log.snapshot
        assert held is not None
        assert held.cluster.hosts.known == {0, 1, 2}
        assert not held.end
    world.check_liveness()
    assert [(agent.host, how) for _, agent, how in world.ends] == [(0, "left")]
    leader = world.leader_of({1, 2})
    assert leader is not None
    assert leader.cluster.hosts.known == {1, 2}


def test_a_link_that_is_cut_between_two_followers_changes_nothing() -> None:
    for cut in ({(1, 2)}, {(1, 2), (2, 1)}):
        world = World(3, [0, 1, 2], seed=1, kind=ModelledAgent)
        world.cut = cut
        world.run(60.0)
        assert (world.ends, [*world.leaders]) == ([], [1])
        assert world.agents[0].cluster.hosts.known == {0, 1, 2}


# ---- the faults that were mended -----------------------------------------------------------------------------------


class LowestStands(ModelledAgent):
    """Only the lowest host that answers may stand, and all stop after two heartbeats even if they are a quorum."""

    def next_action(self, at: ElectionRound) -> Action:
        action = super().next_action(at)
        if action != "fenced" and at.now > replace(at, quorate_at=at.began).deadline:
            return "no quorum"
        members = at.log.snapshot.cluster.hosts.known if at.log.snapshot else frozenset[int]()
        return "wait" if isinstance(action, Stand) and any(host < at.host for host in members & {*at.votes}) else action


class BeatsOn(ModelledAgent):
    """An agent is heard, and votes, although its main loop has stopped."""

    patience_s = math.inf


class EndsOthers(ModelledAgent):
    """A leader that has lost its quorum says that the job is over."""

    def farewell(self) -> pb.ReplicateRequest:
        return pb.ReplicateRequest(end=pb.JobEnd(code=4))


class WaitsLong(ModelledAgent):
    """A leader waits for late agents anew with each state, for two heartbeats."""

    def outcome(self, links: dict[int, Link], began: float) -> Outcome:
        late = [link for link in links.values() if not link.is_lost and link.acknowledged < self.version]
        return "wait" if late and self.world.now - began <= 2 * HEARTBEAT_S else super().outcome(links, began)


@SOAK
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (BeatsOn, "have no leader after"),
        (EndsOthers, "is told an end"),
        (WaitsLong, "waits for late agents no longer"),
    ],
)
def test_the_machine_finds_each_fault_that_was_mended(kind: type[ModelledAgent], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        histories(kind, 3000, Phase.generate)


@pytest.mark.parametrize("kind", [ModelledAgent, LowestStands])
def test_a_lower_host_that_hears_no_majority_keeps_nobody_from_an_election(kind: type[ModelledAgent]) -> None:
    """Some thousand random histories find the fault of agents that wait for it."""
    machine = Agreement()
    machine.kind = kind
    machine.begin(hosts=5, placement=[0, 1, 2, 3, 4], seed=0, may_end=False)
    machine.part({0})
    machine.cut(1, {3, 4}, "both")
    with nullcontext() if kind is ModelledAgent else pytest.raises(AssertionError, match="have no leader after"):
        machine.teardown()
