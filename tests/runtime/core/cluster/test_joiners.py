"""Peers that run another program than the job: never in a view, and never started again and again."""

from __future__ import annotations

from kungfu.runtime.core.cluster.events import (
    AdmitFirstView,
    AnnounceFailure,
    ComparePrograms,
    Fail,
    Kill,
    LeaderTookOver,
    LossReport,
    PeersLost,
    ProcessEnded,
    ProgramDiffers,
    ReportMachines,
    Spawn,
    Tick,
    ViewStarted,
)
from kungfu.runtime.core.cluster.transitions import react
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.view import View
from tests.runtime.core.cluster.cluster_steps import USUAL, after, peer, ready, sole, started, training, wants

WHY = "its program is not that of the job"


def test_first_peers_that_differ_are_compared_and_the_job_ends_with_2_and_the_reason() -> None:
    cluster, commands = after(started(3), ready(1), ready(2, program="other"), ready(0))
    assert commands == [ComparePrograms((peer(0),), peer(2))], "with the first peer, when all are ready"
    failed = sole(Fail, after(cluster, ProgramDiffers(2, "policies: peer 0 has a + b, peer 2 has b + a"))[1])
    assert failed.code == 2
    assert failed.reason == (
        "the peers of this job must run the same program: policies: peer 0 has a + b, peer 2 has b + a"
    )


def test_machines_that_differ_are_told_with_the_first_view() -> None:
    _, commands = after(started(3), ready(0), ready(1, machine="4 threads"), ready(2))
    assert commands == [ReportMachines(USUAL, {1: "4 threads"}), AdmitFirstView(View(1, (peer(0), peer(1), peer(2))))]


def test_a_joiner_that_differs_is_compared_with_the_members_and_not_offered() -> None:
    cluster, commands = after(training(0, 1), wants(3), ready(2, program="other"))
    assert commands == [Spawn(2), ComparePrograms((peer(0), peer(1)), peer(2))]
    assert after(cluster, Tick())[1] == []
    assert ComparePrograms((peer(0), peer(1)), peer(2)) in after(cluster, LeaderTookOver())[1]
    late = react(cluster, Tick(), 102.0)[1]
    assert [type(one) for one in late] == [Kill, JoinerOffer], "never compared"


def test_it_is_dismissed_with_the_reason_and_the_coordinator_goes_on_without_it() -> None:
    cluster, _ = after(training(0, 1), wants(4), ready(2, program="other"), ready(3))
    cluster, commands = after(cluster, ProgramDiffers(2, "model: peer 0 has x, peer 2 has y"))
    kill, offer = commands
    assert kill == Kill(2, f"{WHY}: model: peer 0 has x, peer 2 has y")
    assert isinstance(offer, JoinerOffer)
    assert offer == JoinerOffer((peer(3),), (2,), f"peer 2: {WHY}", offer.parts)
    cluster, commands = after(cluster, ProcessEnded(2, -9))
    assert commands == [], "nobody waits for it, and nobody comes in its place"
    assert after(cluster, wants(4))[1] == [Spawn(4)], "who asks again gets another try"


def test_a_replacement_that_differs_is_not_replaced_again() -> None:
    """The job lost peer 1, and its policy file was edited since it began."""
    report = LossReport(1, 5, holds=True, error="lost rank 1")
    cluster, commands = after(training(0, 1), ProcessEnded(1, -9), PeersLost(0, report))
    assert isinstance(commands[0], AnnounceFailure)
    cluster, commands = after(cluster, ViewStarted(View(3, (peer(0),))))
    assert commands == [Spawn(2)]
    cluster, commands = after(cluster, ready(2, program="edited"), ProgramDiffers(2, "how"))
    assert [type(one) for one in commands] == [ComparePrograms, Kill, JoinerOffer]
    assert after(cluster, ProcessEnded(2, -9), Tick())[1] == []


def test_a_joiner_that_ends_while_it_is_compared_is_missing_as_any_other_is() -> None:
    cluster, _ = after(training(0, 1), wants(3), ready(2, program="other"))
    cluster, commands = after(cluster, ProcessEnded(2, 1))
    assert [type(one) for one in commands] == [AnnounceFailure, JoinerOffer]
    assert after(cluster, ProgramDiffers(2, "how"))[1] == []


def test_a_joiner_of_another_machine_is_told_and_joins() -> None:
    cluster, _ = after(training(0, 1), wants(3))
    remark, offer = after(cluster, ready(2, machine="8 threads"))[1]
    assert remark == ReportMachines(USUAL, {2: "8 threads"})
    assert isinstance(offer, JoinerOffer)
