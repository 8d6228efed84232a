"""The control of a job: what is recorded of its peers, which failure is the root, and when the job ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from kungfu.runtime.agent.consensus.consensus_service import HostService
from kungfu.runtime.agent.context import AgentContext
from kungfu.runtime.agent.controller.job_controller import JobController, root_cause
from kungfu.runtime.core.cluster.cluster import Cluster, Departure
from kungfu.runtime.core.cluster.events import Fail, PeerProgressed, ProgramExiting
from kungfu.runtime.core.cluster.transitions import start_job
from kungfu.runtime.core.failure import NO_QUORUM_CODE, Exit, Failure
from kungfu.runtime.core.view import Peer
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.consensus.agents import HASTY, agents, state
from tests.runtime.agent.journal.test_journal import events_in
from tests.runtime.agent.test_leader import cluster_of, context_of

TRAINING = cluster_of(state(0, 0, 0, hosts=1))


@contextmanager
def context(folder: Path) -> Iterator[AgentContext]:
    """That of an agent alone."""
    with agents(1) as (hosts, (founder,)), context_of(founder, hosts, folder) as context:
        yield context


@contextmanager
def controlling(context: AgentContext, cluster: Cluster) -> Iterator[JobController]:
    controller = JobController(context, None)
    controller.cluster = cluster
    try:
        yield controller
    finally:
        controller.replicator.close()
        controller.executor.close()


def test_a_host_lost_as_the_first_view_begins_ends_no_job_with_a_majority(tmp_path: Path) -> None:
    with agents(3) as (hosts, (founder, one, two)), context_of(founder, hosts, tmp_path) as context:
        controller = JobController(context, None)
        for number in (1, 2):
            controller.replicator.add_follower(number, hosts[number])
        two.stop()  # so not all hold the first view, and the state before it may still count
        assert controller.apply((cluster_of(state(0, 1, 2, hosts=3)), [])) is None
        one.stop()
        ending = controller.apply((cluster_of(state(0, 1, 2, hosts=3, version=2)), []))
        controller.replicator.close()
    assert ending is not None
    assert ending.code == NO_QUORUM_CODE


class Unheard(HostService):
    """A follower that hears the leader, and whose replies are lost."""

    def Replicate(self, request: pb.ReplicateRequest, context: Any) -> pb.ReplicateReply:  # noqa: N802 - gRPC's name
        super().Replicate(request, context)
        time.sleep(0.05)
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the reply is lost")
        raise AssertionError


def test_a_leader_that_hears_nobody_ends_only_its_own_part_of_the_job(tmp_path: Path) -> None:
    unheard = dict.fromkeys((1, 2), Unheard)
    with agents(3, unheard) as (hosts, (founder, *others)), context_of(founder, hosts, tmp_path) as alone:
        three = cluster_of(state(0, 1, 2, hosts=3))
        with controlling(replace(alone, settings=HASTY), three) as controller:
            for number in (1, 2):
                controller.replicator.add_follower(number, hosts[number])
            ending = controller.fail(Fail(-1, "a deadline has expired", late=True))
        assert [agent.held.end for agent in others] == [b"", b""], "what they hold, the next leader would do"
    assert (ending.code, ending.leaves) == (NO_QUORUM_CODE, True)
    assert [line["code"] for line in events_in(tmp_path)] == [NO_QUORUM_CODE]


def test_the_end_of_a_program_is_recorded_once_with_the_number_that_train_on(tmp_path: Path) -> None:
    left, outside = ProgramExiting(1, Exit("loop", 5)), ProgramExiting(7, Exit("exit", 5))
    with context(tmp_path) as alone, controlling(alone, TRAINING) as controller:
        assert [controller.handle(event) for event in (left, left, outside)] == [None] * 3
    (ended,) = [one for one in events_in(tmp_path) if one["event"] == "program ended"]
    assert (ended["peer"], ended["rank"], ended["step"], ended["others"]) == (1, 1, 5, 2)


def end(peer: int, code: int, *tail: str) -> pb.HostEvent:
    return pb.HostEvent(kind=pb.HOST_EVENT_KIND_ENDED, peer=peer, code=code, tail=tail)


LOSS, CHOSEN = Fail(0, "exit code 1"), Fail(2, "exit code 7", code=7, chosen=True)
KILLED = "rank 2 (peer 2): killed by SIGKILL: MemoryError: 9 GB"
ENDS = (ProgramExiting(0, Exit("loss", 5)), end(1, 0), end(2, -9, "MemoryError: 9 GB"), end(3, 1))


@pytest.mark.parametrize(
    ("failed", "failure", "left"),
    [
        (LOSS, Failure(2, KILLED, 1, ("MemoryError: 9 GB",), is_loss=True), 1),
        # The cause is known, and only the last output of that peer is awaited.
        (CHOSEN, Failure(2, "rank 2 (peer 2): exit code 7", 7, ("MemoryError: 9 GB",), chosen=True), 1),
        # A deadline has expired: no process has ended, so nothing is awaited.
        (replace(LOSS, late=True), Failure(0, "rank 0 (peer 0): exit code 1", 3), 4),
    ],
)
def test_the_root_of_a_failure_may_end_after_the_peer_that_noticed_it(
    tmp_path: Path, failed: Fail, failure: Failure, left: int
) -> None:
    """A user who reads of the loss of other peers only would look for the error on the wrong peer."""
    with context(tmp_path) as alone:
        for event in ENDS:
            alone.put(event)
        assert root_cause(alone, failed, TRAINING, {}) == failure
        assert alone.events.qsize() == left, "it waits no longer than it has to"


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_program_keeps_its_exit_code_if_it_ends_after_those_that_have_lost_it(
    tmp_path: Path, is_reported: bool
) -> None:
    """``is_reported``: before the loss that ends the job."""
    left = Exit("exit", 2)
    exiting = {1: Departure(left, 0.0, trained=True)} if is_reported else {}
    cluster = replace(TRAINING, losses=replace(TRAINING.losses, exiting=exiting))
    with context(tmp_path) as alone:
        for event in (*(() if is_reported else (ProgramExiting(1, left),)), end(1, 7), end(2, 1)):
            alone.put(event)
        failure = root_cause(alone, Fail(0, "its program raised PeerFailure", kind="loss"), cluster, {})
    text = "rank 1 (peer 1): exit code 7: its program ended by itself after step 2, before the end of training"
    assert failure == Failure(1, text, 7, chosen=True)


@pytest.mark.parametrize(("phase", "recorded"), [(1, []), (2, [(2, 1, [0, 1])])])
def test_a_job_that_is_resumed_in_a_later_fit_begins_with_its_phase(
    tmp_path: Path, phase: int, recorded: list[Any]
) -> None:
    with agents(1) as (hosts, (founder,)), context_of(founder, hosts, tmp_path) as context:
        controller = JobController(context, None)
        controller.cluster, _ = start_job(2, limits=context.job.limits, now=0.0)
        for number in range(2):
            ready = PeerProgressed(Peer(number, "127.0.0.1:1"), ready=True, phase=phase)
            assert controller.handle(ready) is None
        controller.replicator.close()
    phases = [line for line in events_in(tmp_path) if line["event"] == "phase"]
    assert [(one["phase"], one["view"], one["peers"]) for one in phases] == recorded


@pytest.mark.parametrize(
    ("reported", "killed", "fails", "is_loss"),
    [
        ({}, {0, 1}, {}, True),
        ({1: "loss"}, {0}, {}, True),
        ({0: "exit"}, {0, 1}, {}, True),  # SIGTERM, which a program may answer with sys.exit(143)
        ({0: "exception"}, {0, 1}, {}, False),
        ({}, {0}, {}, False),  # the other ended by itself, without a word
        ({}, {0, 1}, {"late": True}, False),
        ({}, set(), {"is_loss": True}, True),
    ],
)
def test_a_failure_is_a_loss_if_no_program_is_at_fault(
    tmp_path: Path, reported: dict[int, Any], killed: set[int], fails: dict[str, Any], is_loss: bool
) -> None:
    exiting = {peer: Departure(Exit(kind), 0.0) for peer, kind in reported.items()}
    losses = replace(TRAINING.losses, exiting=exiting, killed=frozenset(killed))
    cluster = replace(TRAINING, losses=losses, processes=replace(TRAINING.processes, alive=frozenset()))
    with context(tmp_path) as alone:
        failure = root_cause(alone, Fail(0, "killed by SIGKILL", others={1: "gone"}, **fails), cluster, {})
    assert failure.is_loss is is_loss
