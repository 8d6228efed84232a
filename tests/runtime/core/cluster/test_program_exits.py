"""What follows where a peer's program ends by itself while the others train: the table of the module, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.events import (
    AdmitSurvivors,
    AnnounceFailure,
    Command,
    Done,
    Fail,
    Kill,
    LeaderTookOver,
    LossReport,
    PeerNoticed,
    PeerProgressed,
    PeersLost,
    ProcessEnded,
    ProgramExiting,
    Spawn,
    Tick,
    TrainingFinished,
    ViewStarted,
)
from kungfu.runtime.core.failure import Exit
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.view import View
from tests.runtime.core.cluster.cluster_steps import (
    after,
    all_of,
    one_of,
    peer,
    ready,
    sole,
    started,
    training,
    view_of,
    wants,
)

RAISED = Exit("exception", 5, "OSError", "OSError: disk", "train.py:42")
USAGE = Exit("usage", 5, "UsageError", "UsageError: a batch of 3", "train.py:7")
ENDED = Exit("exit", 5)
LOOP = Exit("loop", 5)


def missing(id_: int, other: int, *, version: int = 1, step: int = 5) -> PeersLost:
    return PeersLost(id_, LossReport(version, step, True, f"peer rank={other} left", (other,)))


def view_led(commands: list[Command]) -> View:
    return one_of(AdmitSurvivors, commands).view


def replaced(cluster: Cluster, commands: list[Command]) -> tuple[Cluster, int]:
    """The cluster once the survivors train and whoever replaces the lost one has begun to train, and its id."""
    view = view_led(commands)
    cluster, spawns = after(cluster, ViewStarted(view))
    spawn = one_of(Spawn, spawns)
    grown = View(view.version + 1, (*view.peers, peer(spawn.peer)))
    return after(cluster, PeerProgressed(peer(spawn.peer), ready=True), ViewStarted(grown))[0], spawn.peer


# ---- ends of the job ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
def test_a_usage_error_of_one_peer_ends_the_job_with_2(size: int) -> None:
    _, commands = after(training(*range(size)), ProgramExiting(0, USAGE))
    how = "its program raised UsageError: a batch of 3 (train.py:7) after step 5"
    assert commands == [Fail(0, how, code=2)]


@pytest.mark.parametrize("size", [1, 3])
def test_a_program_that_chooses_its_exit_code_ends_the_job_with_it(size: int) -> None:
    cluster, commands = after(training(*range(size)), ProgramExiting(0, ENDED))
    assert commands == [AnnounceFailure(0, 0, "its program ended by itself after step 5, before the end of training")]
    how = "exit code 7: its program ended by itself after step 5, before the end of training"
    assert after(cluster, ProcessEnded(0, 7))[1] == [Fail(0, how, code=7, chosen=True)]


def test_it_does_so_though_the_others_have_a_view_without_it_or_are_through() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, ENDED), missing(0, 1))
    cluster, _ = after(cluster, ViewStarted(view_led(commands)))
    through, _ = after(cluster, TrainingFinished(0, leaving=False), ProgramExiting(0, ENDED))
    through, commands = after(through, ProcessEnded(2, -9), ProcessEnded(0, 0))  # its replacement is not needed
    assert (cluster.view, commands) == (view_of(0, version=3), [])
    for one in (cluster, through):
        failed = sole(Fail, after(one, ProcessEnded(1, 3))[1])
        assert (failed.peer, failed.code, failed.chosen) == (1, 3, True)


def test_an_exit_code_alone_is_a_lost_peer() -> None:
    cluster, commands = after(training(0, 1), ProcessEnded(1, 2))
    assert commands == [AnnounceFailure(1, 1, "exit code 2")]
    assert (cluster.losses.failures, dict(cluster.losses.raised)) == (1, {})


def test_a_program_that_ends_by_itself_at_sigterm_was_preempted() -> None:
    unmissed = after(training(0, 1), ProgramExiting(1, ENDED), ProcessEnded(1, 143))[0].losses
    cluster, commands = after(training(0, 1), ProgramExiting(1, ENDED), missing(0, 1))
    early = after(cluster, ProcessEnded(1, 143), ViewStarted(view_led(commands)))[0].losses
    late = after(cluster, ViewStarted(view_led(commands)), ProcessEnded(1, 143))[0].losses
    for losses in (unmissed, early, late):
        assert (losses.preemptions, losses.failures, losses.noticed) == (1, 0, {1})


@pytest.mark.parametrize("exit", [ENDED, LOOP, RAISED], ids=lambda exit: exit.kind)
def test_who_was_given_notice_and_ends_before_it_was_let_go_counts_once(exit: Exit) -> None:
    cluster, _ = after(training(0, 1), PeerNoticed(1), ProgramExiting(1, exit), missing(0, 1), now=10.0)
    cluster, _ = after(cluster, Tick(), now=12.1)
    assert cluster.regrouping is not None
    assert set(cluster.regrouping.lost) == {1}
    assert (cluster.losses.preemptions, cluster.losses.failures) == (1, 0)


def test_a_program_that_chooses_an_exit_code_after_its_training_ends_the_job_with_it() -> None:
    finishing = [TrainingFinished(id_, leaving=False) for id_ in (0, 1)]
    cluster, commands = after(
        training(0, 1), *finishing, ProgramExiting(0, ENDED), ProgramExiting(1, ENDED), ProcessEnded(0, 7)
    )
    assert commands == []
    assert after(cluster, ProcessEnded(1, 0))[1] == [
        Fail(0, "exit code 7, after its training was over", code=7, chosen=True),
    ]


def test_a_usage_error_before_the_first_view_ends_the_job_with_2() -> None:
    cluster, commands = after(started(2), ProgramExiting(1, USAGE))
    assert commands == []
    assert after(cluster, ProcessEnded(1, 1))[1] == [Fail(1, "exit code 1: UsageError: a batch of 3", code=2)]


# ---- exceptions -----------------------------------------------------------------------------------------------------


def test_an_exception_is_a_lost_peer_at_once_and_its_process_may_take_its_time() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, RAISED), missing(0, 1))
    how = "its program raised OSError: disk (train.py:42) after step 5"
    assert commands[0] == AnnounceFailure(1, 1, how)
    assert view_led(commands).ids == (0,)
    assert (cluster.losses.failures, dict(cluster.losses.raised)) == (1, {1: RAISED})
    assert after(cluster, ProgramExiting(1, RAISED)) == (cluster, []), "told twice, counted once"
    cluster, _ = replaced(cluster, commands)
    assert after(cluster, Tick(), now=30.0)[1] == []
    cluster, commands = after(cluster, ProcessEnded(1, 1))
    assert (commands, cluster.losses.failures) == ([], 1)


def test_the_same_exception_in_the_replacement_ends_the_job_with_1() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, RAISED), ProcessEnded(1, 1), missing(0, 1))
    cluster, other = replaced(cluster, commands)
    how = (
        "its program raised OSError: disk (train.py:42) after step 9, as peer 1 did before: it would happen to every "
        "peer"
    )
    assert after(cluster, ProgramExiting(other, replace(RAISED, step=9)))[1] == [Fail(other, how, code=1)]


def test_the_same_exception_in_an_untrained_replacement_ends_the_job_too() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, RAISED), ProcessEnded(1, 1), missing(0, 1))
    cluster, _ = after(cluster, ViewStarted(view_led(commands)))
    (failed,) = after(cluster, ProgramExiting(2, replace(RAISED, step=0)))[1]
    assert (failed.peer, failed.code) == (2, 1)


def test_the_same_exception_in_two_peers_at_the_same_time_ends_the_job() -> None:
    _, commands = after(training(0, 1, 2), ProgramExiting(1, RAISED), ProgramExiting(2, RAISED))
    assert [type(command) for command in commands] == [AnnounceFailure, Fail]
    assert commands[1].code == 1


@pytest.mark.parametrize(
    "other", [replace(RAISED, where="train.py:43"), replace(RAISED, name="ValueError"), Exit("loss", 5, "PeerFailure")]
)
def test_another_exception_or_one_at_another_line_is_a_loss_of_its_own(other: Exit) -> None:
    cluster, commands = after(training(0, 1, 2), ProgramExiting(1, RAISED), ProgramExiting(2, other))
    assert [type(command) for command in commands] == [AnnounceFailure, AnnounceFailure]
    assert cluster.losses.failures == 2


def test_the_last_peer_that_raises_fails_the_job_with_its_exception() -> None:
    assert after(training(0), ProgramExiting(0, RAISED))[1] == [
        Fail(0, "its program raised OSError: disk (train.py:42) after step 5")
    ]


def test_a_joiner_that_fails_is_no_peer_that_trains() -> None:
    cluster, _ = after(training(0, 1), wants(3))
    cluster, commands = after(cluster, ProgramExiting(2, USAGE))
    assert commands == []
    assert after(cluster, ProcessEnded(2, 1))[0].missing == {}
    assert set(cluster.members) == {0, 1}


# ---- break, and a slow end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit", [RAISED, USAGE, ENDED], ids=lambda exit: exit.kind)
def test_a_joiner_whose_program_is_over_is_offered_to_nobody_though_its_process_runs(exit: Exit) -> None:
    cluster, _ = after(training(0), wants(3), ready(1))
    cluster, kills = after(cluster, ProgramExiting(1, exit))
    assert [command.peer for command in all_of(Kill, kills)] == [1]
    cluster, commands = after(cluster, ready(2))
    offer = one_of(JoinerOffer, commands)
    assert ([one.id for one in offer.ready], offer.missing) == ([2], (1,))
    assert offer.reason.startswith("peer 1: its program ")
    assert after(cluster, ProcessEnded(1, -9))[1] == []


def test_a_program_that_ends_alone_is_lost_as_soon_as_the_others_miss_it() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, ENDED), missing(0, 1))
    assert view_led(commands).ids == (0,)
    lead = one_of(AdmitSurvivors, commands)
    assert dict(lead.lost) == {1: "its program ended by itself after step 5, before the end of training"}
    assert lead.target == 2
    assert after(cluster, ProcessEnded(1, 0))[1] == []


def test_programs_that_all_end_by_themselves_are_the_end_of_the_job() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(0, ENDED), ProgramExiting(1, ENDED), ProcessEnded(0, 0))
    assert [type(command) for command in commands] == [AnnounceFailure, AnnounceFailure]
    assert after(cluster, ProcessEnded(1, 0))[1] == [Done()]


def test_a_peer_that_left_its_loop_is_lost_when_the_others_miss_it() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, LOOP))
    assert (commands, cluster.members) == ([], (0, 1))
    assert after(cluster, Tick(), now=1e4)[1] == [], "it may come back"
    cluster, _ = after(cluster, missing(0, 1), now=10.0)
    assert after(cluster, Tick(), now=12.0)[1] == []
    cluster, commands = after(cluster, Tick(), now=12.1)
    assert view_led(commands).ids == (0,)
    assert not all_of(Kill, commands)
    assert cluster.losses.failures == 1
    (kill,) = after(cluster, Tick(), now=42.2)[1]
    assert kill.peer == 1


def test_who_left_its_loop_and_reports_with_the_others_is_one_of_them() -> None:
    _, commands = after(training(0, 1), ProgramExiting(1, LOOP), missing(0, 1), missing(1, 0))
    assert view_led(commands).ids == (0, 1)


def test_a_program_that_has_ended_is_killed_if_its_process_outstays_the_grace() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, RAISED), missing(0, 1), now=1.0)
    cluster, _ = after(cluster, ViewStarted(view_led(commands)), now=2.0)
    assert after(cluster, Tick(), now=31.0)[1] == []
    cluster, commands = after(cluster, Tick(), now=31.1)
    how = (
        "its program raised OSError: disk (train.py:42) after step 5, and its process had not ended 30 s later "
        "(--grace)"
    )
    assert commands == [Kill(1, how)]
    assert [kill.peer for kill in all_of(Kill, after(cluster, LeaderTookOver(), now=32.0)[1])] == [1], "once more"
    cluster, commands = after(cluster, Tick(), ProcessEnded(1, -9), now=40.0)
    assert commands == []


def test_who_is_through_with_training_or_was_let_go_ends_as_slowly_as_it_likes() -> None:
    left = TrainingFinished(2, leaving=True), ViewStarted(view_of(0, 1, version=2)), ProgramExiting(2, ENDED)
    through = [TrainingFinished(id_, leaving=False) for id_ in (0, 1)]
    cluster, _ = after(training(0, 1, 2), *left, *through, ProgramExiting(0, ENDED))
    assert after(cluster, Tick(), now=1e4)[1] == []


def test_what_was_said_is_forgotten_with_the_view() -> None:
    cluster, commands = after(training(0, 1), ProgramExiting(1, RAISED), missing(0, 1))
    cluster, _ = after(cluster, ViewStarted(view_led(commands)))
    assert set(cluster.losses.exiting) == {1}, "its process still runs"
    cluster, _ = after(cluster, ProcessEnded(1, 1), ViewStarted(view_of(0, 2, version=4)))
    assert set(cluster.losses.exiting) == set()
