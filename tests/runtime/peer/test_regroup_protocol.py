"""Survivors of a loss: what they report, and how they come to the view that follows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from kungfu.errors import KungfuError, PeerFailure
from kungfu.runtime.core.barrier import BarrierResult
from kungfu.runtime.core.cluster.events import LossReport
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.peer.failed_peers import NoticedLoss
from tests.runtime.peer.running import TERMS, Job, Member, admit, barrier, job, tell


def noticed(terms: Terms = TERMS) -> NoticedLoss:
    """What a survivor of view 1 knows when rank 0 has died in step 8."""
    return NoticedLoss(PeerFailure("in step 8: peer rank=0 died during gradients", ranks=[0], view=1), 7, terms)


def recover(running: Job, member: Member, lost: NoticedLoss) -> Future[BarrierResult]:
    return running.threads.submit(member.membership.recover, member.state, lost)


def surviving(
    running: Job, *knows: Terms, version: int = 3, sources: Sequence[int] = (0, 1), target: int = 3
) -> tuple[list[LossReport], list[BarrierResult]]:
    """The reports of the peers that outlive rank 0, each with the terms that it knows of, and what becomes of them."""
    waits = [recover(running, one, noticed(terms)) for one, terms in zip(running.members[1:], knows, strict=True)]
    reports = sorted((running.agent.losses.get(timeout=180.0) for _ in waits), key=lambda one: one.peer)
    assert [(one.peer, one.report.step) for one in reports] == [(1, 7), (2, 7)]
    admit(View(version, running.agent.in_force[0].peers[1:]), sources=sources, target=target)
    return [one.report for one in reports], [wait.result(timeout=180.0) for wait in waits]


def recovers_alone(running: Job, lost: KungfuError) -> LossReport:
    """The report of peer 1 about a loss, once it is admitted to a view of its own."""
    one, view = running.members[1], running.agent.in_force[0]
    wait = recover(running, one, NoticedLoss(lost, 7, TERMS))
    report = running.agent.losses.get(timeout=180.0).report
    admit(View(3, view.peers[1:2]))
    assert wait.result(timeout=180.0).rank == 0
    return report


def test_survivors_report_wait_and_go_on_in_the_view_that_they_are_admitted_to() -> None:
    with job(b"state", b"state", b"state") as running:
        reports, results = surviving(running, Terms(96, 32.0), Terms(96, 32.0))
        assert [(report.holds, report.suspects) for report in reports] == [(True, (0,))] * 2
        assert [result.rank for result in results] == [0, 1]
        assert {result.after.terms for result in results} == {Terms(96, 32.0, target_size=3)}, "the batch is kept"
        assert running.agent.in_force[-1] == results[0].after.view


def test_a_survivor_that_waits_reports_again_if_another_peer_stands_still() -> None:
    with job(b"state", b"state", b"state") as running:
        one = running.members[1]
        wait = recover(running, one, noticed())
        assert running.agent.losses.get(timeout=180.0).report.suspects == (0,)
        one.socket.stopped.append(2)
        again = running.agent.losses.get(timeout=180.0).report
        assert again.suspects == (0, 2)
        assert again.error == "in step 8: peer rank=0 died during gradients; rank 2 shows no life"
        admit(View(3, running.agent.in_force[0].peers[1:2]))
        assert wait.result(timeout=180.0).rank == 0
        assert running.agent.losses.empty(), "once for each"


@pytest.mark.parametrize(
    ("gone", "how"),
    [
        (0, "its program raised ValueError: rank 2 has no data, ask peer 7 (train.py:3) after step 7"),
        (2, "killed by SIGKILL"),
    ],
)
def test_only_the_peer_that_is_gone_is_a_suspect_whoever_leads_or_is_spoken_of(gone: int, how: str) -> None:
    with job(b"state", b"state", b"state") as running:
        one, view = running.members[1], running.agent.in_force[0]
        tell(view.peers[1], "AnnounceFailure", pb.FailureAnnouncement(peer=gone, version=1, how=how))
        assert one.socket.looks == 1, "a message under way may end"
        text = re.escape(f"leading barrier 0 of view 1: rank {gone} (peer {gone}) is gone: {how}")
        with pytest.raises(PeerFailure, match=text) as lost:
            barrier()(one)
        report = recovers_alone(running, lost.value)
    assert (report.suspects, lost.value.ranks) == ((gone,), (gone,))
    assert how in report.error


def test_a_coordinator_that_is_gone_is_the_suspect_of_those_who_follow() -> None:
    with job(b"state", b"state") as running:
        one = running.members[1]
        running.members[0].membership.close()
        with pytest.raises(PeerFailure, match="leading barrier 0 of view 1") as lost:
            barrier()(one)
        report = recovers_alone(running, lost.value)
    assert list(report.suspects) == [0]


@pytest.mark.parametrize("heard", [0, 1], ids=["who-leads", "who-follows"])
def test_training_that_has_ended_for_one_survivor_has_ended_for_all(heard: int) -> None:
    with job(b"state", b"state", b"state") as running:
        knows = [Terms(96, 32.0, stopped=rank == heard) for rank in (0, 1)]
        assert [result.after.terms.stopped for result in surviving(running, *knows)[1]] == [True, True]


# ---- who holds the state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("complete", [False, True], ids=["before its registered values", "after them"])
def test_who_joined_counts_as_a_holder_when_all_that_belongs_to_the_state_has_come(complete: bool) -> None:
    with job(b"state") as running:
        results, joining = running.grow(b"blank")
        after, joiner = joining.result(180.0), running.members[1]
        assert after.sources == results[0].sources == (0,), "who was there before"
        if complete:
            joiner.membership.mark_state_complete()
        wait = recover(running, joiner, noticed(after.after.terms))
        lost = running.agent.losses.get(timeout=180.0)
        assert (lost.peer, lost.report.step, lost.report.holds) == (1, 7, complete)
        admit(View(4, running.agent.in_force[-1].peers[1:]))
        wait.result(timeout=180.0)


def test_who_is_behind_after_a_loss_holds_the_state_again_when_all_of_it_has_come() -> None:
    with job(b"state", b"state", b"state") as running:
        for version, holds in ((3, [True, True]), (5, [True, False])):
            reports, _ = surviving(running, TERMS, TERMS, version=version, sources=[0])
            assert [report.holds for report in reports] == holds
