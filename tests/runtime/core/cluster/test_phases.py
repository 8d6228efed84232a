"""What the agent decides where a program trains several times: one phase after the other."""

from __future__ import annotations

import pytest

from kungfu.runtime.core.cluster import events
from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, JobLimits, ReplacementLimits
from kungfu.runtime.core.cluster.placement import free_slots
from kungfu.runtime.core.failure import Exit
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.view import View
from tests.runtime.core.cluster.cluster_steps import (
    JOB_LIMITS,
    after,
    all_of,
    formed,
    one_of,
    peer,
    ready,
    sole,
    started,
    training,
    wants,
)


def over(*ids: int, phase: int = 1) -> list[events.TrainingFinished]:
    return [events.TrainingFinished(id_, False, phase) for id_ in ids]


def ended(*ids: int) -> list[events.ProcessEnded]:
    return [events.ProcessEnded(id_, 0) for id_ in ids]


def first_of_phase(*ids: int, version: int) -> View:
    return View(version, tuple(peer(id_) for id_ in ids), begins_phase=True)


def in_second(*ids: int, limits: JobLimits = JOB_LIMITS) -> Cluster:
    """These peers train the second phase."""
    cluster, commands = after(training(*ids, limits=limits), *over(*ids), *(ready(id_, 2) for id_ in ids))
    return after(cluster, events.ViewStarted(sole(events.AdmitPhase, commands).view))[0]


def test_former_members_form_the_next_first_view_when_the_last_one_is_ready() -> None:
    cluster, commands = after(training(0, 1, 2), *over(0, 1, 2), ready(1, 2), ready(0, 2))
    assert commands == []
    cluster, commands = after(cluster, ready(2, 2))
    assert commands == [events.AdmitPhase(first_of_phase(0, 1, 2, version=2), 2, 0)]
    assert cluster.phases.number == 2
    assert cluster.phases.is_forming
    cluster, commands = after(cluster, events.ViewStarted(first_of_phase(0, 1, 2, version=2)))
    assert commands == []
    assert cluster.members == (0, 1, 2)
    assert not cluster.phases.is_forming


def test_nobody_begins_before_the_last_member_has_come_to_the_end_of_its_phase() -> None:
    cluster, commands = after(training(0, 1), *over(0), ready(0, 2), events.TrainingFinished(0, False, 1))
    assert commands == []
    _, commands = after(cluster, *over(1), ready(1, 2))
    assert all_of(events.AdmitPhase, commands)


def test_a_job_whose_peers_train_no_more_is_done() -> None:
    cluster, commands = after(training(0, 1), *over(0, 1), events.ProcessEnded(0, 0))
    assert commands == []
    assert after(cluster, events.ProcessEnded(1, 0))[1] == [events.Done()]
    assert after(in_second(0, 1), *over(0, 1, phase=2), *ended(0, 1))[1] == [events.Done()]


def joining(*, is_ready: bool) -> Cluster:
    """Two peers train, and a third one is on its way."""
    cluster = after(training(0, 1), wants(3))[0]
    return after(cluster, ready(2, 1))[0] if is_ready else cluster


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_joiner_at_the_end_of_a_phase_comes_in_with_the_next_one(is_ready) -> None:
    cluster, commands = after(joining(is_ready=is_ready), *over(0, 1), ready(2, 1))
    assert not all_of(events.Kill, commands), "nobody knows that there is no other phase"
    cluster, commands = after(cluster, ready(0, 2), ready(2, 2), ready(1, 2))
    view = first_of_phase(0, 1, 2, version=2)
    assert commands == [events.AdmitPhase(view, 2, 0)]
    cluster, commands = after(cluster, events.ViewStarted(view))
    assert commands == []
    assert not cluster.starting


def test_a_joiner_that_is_not_ready_keeps_nobody_waiting_and_is_offered_later() -> None:
    cluster, commands = after(joining(is_ready=False), *over(0, 1), ready(0, 2), ready(1, 2))
    view = first_of_phase(0, 1, version=2)
    assert commands == [events.AdmitPhase(view, 2, 3)], "the size that the job had been told to have"
    cluster, commands = after(cluster, events.ViewStarted(view), ready(2, 1))
    assert commands == [], "it has not found out that the first phase is over"
    _, commands = after(cluster, ready(2, 2))
    offer = sole(JoinerOffer, commands)
    assert [one.id for one in offer.ready] == [2]


def test_a_joiner_that_passed_through_the_last_phase_is_not_started_again() -> None:
    cluster, commands = after(joining(is_ready=False), *over(0, 1), events.ProcessEnded(2, 0))
    assert commands == []
    assert after(cluster, *ended(0, 1))[1] == [events.Done()]


def test_joiners_are_killed_when_nobody_who_trained_lives() -> None:
    cluster, commands = after(joining(is_ready=False), *over(0, 1), *ended(0, 1))
    assert [one.peer for one in all_of(events.Kill, commands)] == [2]
    assert after(cluster, events.ProcessEnded(2, -9))[1] == [events.Done()]


def test_a_job_that_is_resumed_may_begin_with_a_later_phase() -> None:
    cluster, commands = after(started(2), ready(0, 3), ready(1, 3))
    assert all_of(events.AdmitFirstView, commands)
    assert cluster.phases.number == 3


def test_peers_between_two_phases_keep_their_slots() -> None:
    cluster = training(0, 1, hosts=Hosts({0: 3}))
    assert free_slots(after(cluster, *over(0, 1))[0]) == {0: 1}


def test_a_peer_killed_between_two_phases_is_replaced_once_the_next_one_trains() -> None:
    cluster, commands = after(training(0, 1, 2), *over(0, 1, 2), ready(1, 2), events.ProcessEnded(0, -9))
    assert commands == []
    cluster, commands = after(cluster, ready(2, 2))
    view = first_of_phase(1, 2, version=2)
    assert commands == [events.AdmitPhase(view, 2, 3)]
    cluster, commands = after(cluster, events.ViewStarted(view))
    assert [one.peer for one in all_of(events.Spawn, commands)] == [3]
    assert cluster.losses.failures == 1
    commands = after(cluster, events.ProcessEnded(3, -9), *over(1, 2, phase=2), *ended(1, 2))[1]
    assert not all_of(events.Fail, commands), "its loss was made good"


def test_one_whose_program_ended_between_two_phases_is_not_waited_for() -> None:
    _, commands = after(training(0, 1), *over(0, 1), ready(1, 2), events.ProcessEnded(0, 0))
    assert commands == [events.AdmitPhase(first_of_phase(1, version=2), 2, 0)]


def test_the_job_fails_where_fewer_are_left_than_it_may_have() -> None:
    limits = JobLimits(JOB_LIMITS.deadlines, replacements=ReplacementLimits(failures=0), minimum=2)
    _, commands = after(training(0, 1, limits=limits), *over(0, 1), ready(1, 2), events.ProcessEnded(0, -9))
    fail = sole(events.Fail, commands)
    assert "1 peer came to phase 2, fewer than --min 2" in fail.reason
    assert fail.peer == 0


def test_a_loss_in_the_last_barrier_of_a_phase_does_not_stop_the_next_phase() -> None:
    cluster, _ = after(training(0, 1), *over(0), ready(0, 2))
    cluster, commands = after(cluster, events.ProcessEnded(1, -9))
    admission = one_of(events.AdmitPhase, commands)
    assert (admission.view, admission.target) == (first_of_phase(0, version=2), 2)
    assert [one.peer for one in all_of(events.Spawn, after(cluster, events.ViewStarted(admission.view))[1])] == [2]


def test_one_that_does_not_come_to_the_next_phase_in_time_is_killed_once() -> None:
    cluster = after(training(0, 1), *over(0, 1), ready(0, 2), now=1.0)[0]
    assert after(cluster, events.Tick(), now=100.0)[1] == []
    cluster, commands = after(cluster, events.Tick(), events.Tick(), now=102.0)
    kill = sole(events.Kill, commands)
    assert kill.peer == 1
    assert "to begin phase 2" in kill.reason
    assert all_of(events.AdmitPhase, after(cluster, events.ProcessEnded(1, -9))[1])


def test_former_members_whose_programs_differ_end_the_job() -> None:
    cluster, commands = after(training(0, 1), *over(0, 1), ready(0, 2, "epochs 3"), ready(1, 2, "epochs 4"))
    assert commands == [events.ComparePrograms((peer(0),), peer(1))]
    fail = sole(events.Fail, after(cluster, events.ProgramDiffers(1, "the call of fit"))[1])
    assert fail.code == 2


def test_a_joiner_whose_program_differs_is_left_out_and_dismissed() -> None:
    cluster = after(joining(is_ready=False), *over(0, 1), ready(0, 2), ready(2, 2, "another"))[0]
    cluster, commands = after(cluster, ready(1, 2))
    admission = events.AdmitPhase(first_of_phase(0, 1, version=2), 2, 3)
    assert commands == [events.ComparePrograms((peer(0),), peer(2)), admission]
    assert [one.peer for one in all_of(events.Kill, after(cluster, events.ProgramDiffers(2, "the model"))[1])] == [2]


@pytest.mark.parametrize("dead", [1, 2])
def test_a_peer_lost_while_the_view_of_a_phase_forms_leaves_it_to_the_others(dead) -> None:
    cluster, _ = after(joining(is_ready=False), *over(0, 1), ready(0, 2), ready(2, 2), ready(1, 2))
    cluster, commands = after(cluster, events.ProcessEnded(dead, -9))
    smaller = first_of_phase(*({0, 1, 2} - {dead}), version=3)
    assert isinstance(commands[0], events.AnnounceFailure)
    assert commands[0].version == 2
    assert commands[1] == events.AdmitPhase(smaller, 2, 3 if dead == 1 else 0)
    report = events.PeersLost(0, events.LossReport(2, 0, True, "lost", (dead,)))
    assert after(cluster, report)[1] == [], "it was admitted to another view meanwhile"
    assert after(cluster, events.ViewStarted(smaller))[0].view == smaller


def test_one_with_a_notice_that_is_lost_while_a_phase_forms_counts_once() -> None:
    noticed = after(training(0, 1), *over(0, 1), events.PeerNoticed(1), ready(0, 2), ready(1, 2))[0]
    losses = after(noticed, events.ProcessEnded(1, -9))[0].losses
    assert (losses.preemptions, losses.failures) == (1, 0)


def test_without_the_peer_whose_state_all_take_the_phase_cannot_begin() -> None:
    cluster, _ = after(training(0, 1), *over(0, 1), ready(0, 2), ready(1, 2))
    fail = sole(events.Fail, after(cluster, events.ProcessEnded(0, -9))[1])
    assert "--resume" in fail.reason


def test_a_view_that_does_not_begin_ends_those_who_stand_still_and_at_last_the_job() -> None:
    cluster, _ = after(training(0, 1), *over(0, 1), ready(0, 2), ready(1, 2))
    late = events.PeersLost(0, events.LossReport(2, 0, True, "waited 10 s for peer 1", (1,), late=True))
    assert [one.peer for one in all_of(events.Kill, after(cluster, late)[1])] == [1]
    fail = sole(events.Fail, after(cluster, events.Tick(), now=40.0)[1])
    assert fail.late


@pytest.mark.parametrize("kind", ["exit", "exception"])
def test_those_who_wait_for_a_peer_whose_program_ends_as_a_phase_begins_are_told_so(kind) -> None:
    """Else they wait for it until their deadline expires. Its process may take long to end after its program."""
    cluster, _ = after(training(0, 1, 2), *over(0, 1, 2), *(ready(id_, 2) for id_ in range(3)))
    left = events.ProgramExiting(1, Exit(kind, 4, "ValueError", "ValueError: no data", "train.py:7"))
    (told,) = after(cluster, left)[1]
    assert isinstance(told, events.AnnounceFailure)
    assert (told.peer, told.version) == (1, cluster.view.version)


@pytest.mark.parametrize(("kind", "code"), [("usage", 2), ("exception", None)])
def test_an_error_between_two_phases(kind, code) -> None:
    cluster = after(training(0, 1), *over(0, 1))[0]
    error = Exit(kind, 4, "ValueError", "ValueError: of the user's", "train.py:7")
    cluster, commands = after(cluster, events.ProgramExiting(0, error))
    assert [one.code for one in all_of(events.Fail, commands)] == ([] if code is None else [code])
    if kind == "exception":
        (fail,) = after(cluster, events.ProgramExiting(1, error))[1]
        assert isinstance(fail, events.Fail)
        assert "as peer 0 did before: it would happen to every peer" in fail.reason


def test_the_agent_that_takes_over_admits_to_the_phase_again() -> None:
    cluster, commands = after(training(0, 1), *over(0, 1), ready(0, 2), ready(1, 2))
    assert after(cluster, events.LeaderTookOver())[1] == commands
    waiting = after(training(0, 1), *over(0, 1), ready(0, 2))[0]
    assert after(waiting, events.LeaderTookOver())[1] == []


def test_a_loss_in_a_later_phase_is_recovered_from_as_in_the_first() -> None:
    report = events.LossReport(2, 40, True, "died", (0,))
    cluster, commands = after(in_second(0, 1), events.ProcessEnded(0, -9), events.PeersLost(1, report))
    assert cluster.regrouping is not None
    assert formed(cluster) == View(4, (peer(1),))
    assert not all_of(Asked, commands)
