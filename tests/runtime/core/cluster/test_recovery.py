"""What the agent decides when members are lost: who lives, whose state counts, who is replaced, and when it is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits, ReplacementLimits
from kungfu.runtime.core.cluster.events import (
    AdmitSurvivors,
    AnnounceFailure,
    Command,
    CoordinatorUnreachable,
    Done,
    Fail,
    Kill,
    LossReport,
    PeerNoticed,
    PeersLost,
    ProcessEnded,
    Spawn,
    Tick,
    TrainingFinished,
    ViewStarted,
)
from kungfu.runtime.core.cluster.transitions import start_job
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import AGENT, Asked, Leave
from tests.runtime.core.cluster.cluster_steps import (
    JOB_LIMITS,
    after,
    all_of,
    one_of,
    ready,
    sole,
    training,
    view_of,
    wants,
)

DIED = "peer rank=1 died during gradients"


def lost(
    id_: int, *, at: int = 40, version: int = 1, suspects: tuple[int, ...] = (), error: str = DIED, **more: int
) -> PeersLost:
    return PeersLost(id_, LossReport(version, at, True, error, suspects, **more))


def regrouped(cluster: Cluster, dead: int, *survivors: int) -> tuple[Cluster, AdmitSurvivors]:
    """The cluster when one of its peers has been killed and the others have reported it."""
    assert cluster.view is not None
    version = cluster.view.version
    cluster, commands = after(cluster, ProcessEnded(dead, -9), *(lost(id_, version=version) for id_ in survivors))
    lead = one_of(AdmitSurvivors, commands)
    return cluster, lead


def test_the_survivors_regroup_when_all_of_them_have_reported_in_their_old_order() -> None:
    cluster, commands = after(training(0, 1, 2), ProcessEnded(1, -9))
    assert commands == [AnnounceFailure(1, 1, "killed by SIGKILL")]
    cluster, commands = after(cluster, lost(2))
    assert not any(isinstance(command, AdmitSurvivors) for command in commands)
    _, commands = after(cluster, lost(0))
    assert commands == [AdmitSurvivors(view_of(0, 2, version=3), (0, 1), 3, {1: "killed by SIGKILL"})]


def test_it_does_not_matter_who_is_heard_first() -> None:
    cluster, commands = after(training(0, 1, 2), lost(0), lost(2))
    assert commands == [AnnounceFailure(-1, 1, DIED)]
    _, commands = after(cluster, ProcessEnded(1, -9))
    assert commands == [
        AnnounceFailure(1, 1, "killed by SIGKILL"),
        AdmitSurvivors(view_of(0, 2, version=3), (0, 1), 3, {1: "killed by SIGKILL"}),
    ]


@pytest.mark.parametrize(
    ("reports", "sources"),
    [
        ([{"at": 40}, {"at": 41}], (1,)),
        # in the barrier of a step, and right after it, all have done the same
        ([{"stage": 0}] * 2, (0, 1)),
        ([{"stage": 1}] * 2, (0, 1)),
        # later what each did may differ: one has come through it, nobody has, both have, one had none
        ([{"stage": 3, "digest": 1}, {"stage": 4, "digest": 2}], (1,)),
        ([{"stage": 3, "digest": 1}, {"stage": 3, "digest": 2}], (0,)),
        ([{"stage": 2, "digest": 1}, {"stage": 2, "digest": 2}], (0,)),
        ([{"stage": 3, "digest": 1}, {"stage": 0, "digest": 2}], (0,)),
        ([{"stage": 0, "digest": 1}, {"stage": 1, "digest": 2}], (1,)),
        ([{"stage": 1, "digest": 1}, {"stage": 2, "digest": 2}], (1,)),
        # all that hold the very same state can give it, so that one more may be lost
        ([{"stage": 3, "digest": 5}, {"stage": 3, "digest": 6}, {"stage": 3, "digest": 5}], (0, 2)),
        # a step more counts for more than what is done between two
        ([{"at": 40, "stage": 5}, {"at": 41}], (1,)),
    ],
)
def test_the_state_is_that_of_the_survivors_who_have_come_furthest(
    reports: list[dict[str, int]], sources: tuple[int, ...]
) -> None:
    told = [lost(peer, **one) for peer, one in enumerate(reports, start=1)]
    _, commands = after(training(*range(len(told) + 1)), ProcessEnded(0, -9), *told)
    view = view_of(*range(1, len(told) + 1), version=3)
    assert commands[-1] == AdmitSurvivors(view, sources, len(told) + 1, {0: "killed by SIGKILL"})


def test_replacements_are_started_when_the_survivors_train_again() -> None:
    cluster, lead = regrouped(training(0, 1, 2), 1, 0, 2)
    assert after(cluster, lost(2, version=1)) == (cluster, []), "a report of the view before"
    cluster, commands = after(cluster, ViewStarted(lead.view))
    assert commands == [Spawn(3)]
    assert cluster.regrouping is None
    _, commands = after(cluster, ready(3))
    assert [type(command) for command in commands] == [JoinerOffer]


def test_two_that_die_in_the_same_step_are_both_replaced() -> None:
    cluster, commands = after(training(0, 1, 2), ProcessEnded(0, -9), ProcessEnded(2, -9), lost(1))
    lead = commands[-1]
    assert lead == AdmitSurvivors(view_of(1, version=3), (0,), 3, {0: "killed by SIGKILL", 2: "killed by SIGKILL"})
    assert after(cluster, ViewStarted(lead.view))[1] == [Spawn(3), Spawn(4)]


def test_a_survivor_that_dies_while_they_regroup_makes_them_report_anew() -> None:
    cluster, lead = regrouped(training(0, 1, 2, 3), 1, 0, 2, 3)
    version = lead.view.version
    cluster, commands = after(cluster, ProcessEnded(0, -9))
    assert commands == [AnnounceFailure(0, version, "killed by SIGKILL")]
    cluster, commands = after(cluster, lost(2, version=version), lost(3, version=version))
    assert commands[-1] == AdmitSurvivors(
        view_of(2, 3, version=version + 2), (0, 1), 4, {1: "killed by SIGKILL", 0: "killed by SIGKILL"}
    )


def test_when_the_one_who_is_to_lead_is_gone_another_one_leads() -> None:
    cluster, lead = regrouped(training(0, 1, 2), 1, 0, 2)
    cluster, _ = after(cluster, ProcessEnded(0, -9))
    cluster, commands = after(cluster, CoordinatorUnreachable(lead.view))
    assert commands == []
    _, commands = after(cluster, Tick())
    assert one_of(AdmitSurvivors, commands).view.ids == (2,)


def test_a_peer_that_does_not_answer_when_it_is_to_lead_is_ended() -> None:
    cluster, lead = regrouped(training(0, 1, 2), 1, 0, 2)
    cluster, commands = after(cluster, CoordinatorUnreachable(lead.view), CoordinatorUnreachable(lead.view), Tick())
    kill = sole(Kill, commands)
    assert (kill.peer, kill.reason) == (0, "it did not answer when it was to lead view 3")
    _, commands = after(cluster, ProcessEnded(0, -9))
    assert one_of(AdmitSurvivors, commands).view.ids == (2,)


def test_who_does_not_report_is_killed_sooner_when_an_error_names_it() -> None:
    named, _ = after(training(0, 1, 2), lost(0, suspects=(1,)), lost(2, suspects=(1,)), now=5.0)
    assert after(named, Tick(), now=6.9)[1] == []
    kill = sole(Kill, after(named, Tick(), Tick(), now=7.1)[1])
    assert kill.peer == 1
    assert DIED in kill.reason
    unnamed, _ = after(training(0, 1, 2), lost(0), lost(2), now=5.0)
    assert after(unnamed, Tick(), now=14.9)[1] == []
    assert [command.peer for command in after(unnamed, Tick(), now=15.1)[1]] == [1]


def test_nobody_is_killed_for_being_late_while_nobody_has_lost_anybody() -> None:
    cluster, _ = after(training(0, 1, 2), ProcessEnded(1, -9), now=5.0)
    assert after(cluster, Tick(), now=1e6)[1] == [], "the others may be far from their next step"


def test_without_a_survivor_the_job_fails_for_the_first_and_tells_of_all() -> None:
    _, commands = after(training(0, 1), ProcessEnded(0, 1), ProcessEnded(1, 1))
    assert commands[-1] == Fail(0, "exit code 1", others={1: "exit code 1"})


def test_a_survivor_that_holds_no_state_cannot_go_on() -> None:
    cluster, _ = after(training(0, 1), ProcessEnded(0, -9))
    _, commands = after(cluster, PeersLost(1, LossReport(1, 0, False, DIED)))
    failed = one_of(Fail, commands)
    assert failed.peer == 0
    assert failed.reason.startswith("killed by SIGKILL, and no survivor holds the state of the job: ")


def test_a_loss_before_the_first_view_fails_the_job() -> None:
    cluster, _ = start_job(2, limits=JOB_LIMITS, now=0.0)
    assert after(cluster, lost(0, version=0, error="no room"))[1] == [Fail(0, "no room", kind="loss")]


# ---- budgets --------------------------------------------------------------------------------------------------------


def test_fewer_than_the_minimum_with_the_budget_spent_ends_the_job() -> None:
    limits = JobLimits(JOB_LIMITS.deadlines, ReplacementLimits(failures=0), minimum=3)
    _, commands = after(training(0, 1, 2, limits=limits), ProcessEnded(1, -9), lost(0), lost(2))
    assert one_of(Fail, commands).reason == (
        "killed by SIGKILL; 2 peers would be left, fewer than --min 3, and the budget for replacements is spent"
    )


@pytest.mark.parametrize(("code", "target", "spawns"), [(-9, 0, []), (-15, 3, [Spawn(3)])])
def test_failures_and_preemptions_have_budgets_of_their_own(code: int, target: int, spawns: list[Command]) -> None:
    limits = JobLimits(JOB_LIMITS.deadlines, ReplacementLimits(failures=0, preemptions=1))
    cluster, commands = after(training(0, 1, 2, limits=limits), ProcessEnded(1, code), lost(0), lost(2))
    lead = one_of(AdmitSurvivors, commands)
    assert (lead.target, after(cluster, ViewStarted(lead.view))[1]) == (target, spawns), "SIGTERM is a preemption"


def test_a_replacement_that_never_trains_is_started_thrice_and_no_more() -> None:
    cluster, lead = regrouped(training(0, 1), 1, 0)
    cluster, commands = after(cluster, ViewStarted(lead.view))
    for id_ in (2, 3):
        assert commands == [Spawn(id_)]
        cluster, commands = after(cluster, ProcessEnded(id_, 1))
        commands = [command for command in commands if not isinstance(command, AnnounceFailure)]
    cluster, commands = after(cluster, ProcessEnded(4, 1))
    offer = one_of(JoinerOffer, commands)
    assert offer.missing == (4,)
    assert "3 replacements in a row never trained" in offer.reason


def test_views_that_break_before_they_train_are_not_formed_for_ever() -> None:
    cluster, lead = regrouped(training(0, 1, 2), 1, 0, 2)
    commands: list[Command] = [lead]
    for _ in range(10):
        if not isinstance(commands[-1], AdmitSurvivors):
            break
        version = commands[-1].view.version
        cluster, commands = after(cluster, lost(0, version=version), lost(2, version=version))
    assert "6 views in a row broke before they trained" in one_of(Fail, commands).reason


def test_views_that_nobody_could_be_admitted_to_did_not_break() -> None:
    cluster, lead = regrouped(training(*range(10)), 9, *range(9))
    for dead in range(8):  # each of them dies when it is to lead
        cluster, commands = after(cluster, ProcessEnded(dead, -9), CoordinatorUnreachable(lead.view), Tick())
        lead = one_of(AdmitSurvivors, commands)
    assert lead.view.ids == (8,)


# ---- preemption -----------------------------------------------------------------------------------------------------


def test_a_peer_that_is_given_notice_is_let_go_by_the_coordinator_and_replaced() -> None:
    cluster, commands = after(training(0, 1, 2), PeerNoticed(1), PeerNoticed(1))
    assert commands == [Asked(Leave((1,), "noticed", 3), "preemption notice", id=AGENT)]
    _, commands = after(cluster, wants(4))
    assert commands == [Spawn(3)], "the coordinator counts the one who leaves"


def test_a_notice_is_told_again_to_those_who_have_lost_their_coordinator() -> None:
    cluster, _ = after(training(0, 1, 2), PeerNoticed(1), ProcessEnded(0, -9))
    cluster, commands = after(cluster, lost(1), lost(2))
    _, commands = after(cluster, ViewStarted(one_of(AdmitSurvivors, commands).view))
    assert [type(command) for command in commands] == [Spawn, Asked]


def test_a_peer_that_dies_after_its_notice_is_counted_once() -> None:
    cluster, _ = after(training(0, 1), PeerNoticed(1), ProcessEnded(1, -9), lost(0))
    assert (cluster.losses.preemptions, cluster.losses.failures) == (1, 0)


# ---- scripts that end -----------------------------------------------------------------------------------------------


def test_a_script_that_ends_while_the_others_train_is_lost_to_them() -> None:
    cluster, commands = after(training(0, 1, 2), ProcessEnded(1, 0))
    assert [type(command) for command in commands] == [AnnounceFailure]
    assert cluster.regrouping is None, "the others may end together with it"
    cluster, _ = after(cluster, lost(0), lost(2))
    assert cluster.regrouping is not None
    assert cluster.regrouping.lost == {1: "its script ended (exit code 0) while the others trained"}
    assert cluster.losses.failures == 1


# ---- the last barrier -----------------------------------------------------------------------------------------------


def test_a_coordinator_that_dies_when_the_others_are_through_fails_no_job() -> None:
    through = [TrainingFinished(id_, leaving=False) for id_ in (1, 2)]
    cluster, commands = after(training(0, 1, 2), *through, ProcessEnded(0, -9))
    assert commands == [AnnounceFailure(0, 1, "killed by SIGKILL")]
    assert after(cluster, ProcessEnded(1, 0), ProcessEnded(2, 0))[1] == [Done()]
    alone, _ = after(training(0, 1), TrainingFinished(1, leaving=False), ProcessEnded(1, 0))
    assert after(alone, ProcessEnded(0, -9))[1][-1] == Done()
    assert after(alone, ProcessEnded(0, 1))[1][-1] == Fail(0, "exit code 1, after its training was over"), (
        "its script failed"
    )


NO_FAILURES = JobLimits(JOB_LIMITS.deadlines, ReplacementLimits(failures=0), minimum=2)


@pytest.mark.parametrize("limits", [JOB_LIMITS, NO_FAILURES])
def test_a_peer_that_missed_the_leaders_last_word_ends_alone_and_nobody_is_replaced(limits: JobLimits) -> None:
    cluster, _ = after(training(0, 1, 2, limits=limits), ProcessEnded(0, -9), lost(2))
    cluster, commands = after(cluster, TrainingFinished(1, leaving=False), Tick())
    assert commands == [AdmitSurvivors(view_of(2, version=3), (0,), 0, {0: "killed by SIGKILL"})]
    assert after(cluster, ViewStarted(view_of(2, version=3)))[1] == []


# ---- any history ----------------------------------------------------------------------------------------------------


@given(st.data(), st.integers(2, 5))
def test_whatever_is_killed_whenever_somebody_leads_or_the_job_ends(data: st.DataObject, size: int) -> None:
    cluster, alive = training(*range(size)), set(range(size))
    waiting: dict[int, int] = dict.fromkeys(alive, 1)  # the version that a peer trains in or tries to enter
    view, leads = view_of(*alive), list[AdmitSurvivors]()
    for id_ in data.draw(st.lists(st.sampled_from(sorted(alive)), min_size=1, unique=True)):
        cluster, commands = after(cluster, ProcessEnded(id_, -9))
        alive.discard(id_)
        leads += all_of(AdmitSurvivors, commands)
        if not alive:
            assert isinstance(commands[-1], Fail)
            return
        if not data.draw(st.booleans()):
            continue
        for survivor in data.draw(st.permutations(sorted(alive))):
            version = leads[-1].view.version if leads and survivor in leads[-1].view.ids else waiting[survivor]
            cluster, commands = after(cluster, lost(survivor, version=version))
            leads += all_of(AdmitSurvivors, commands)
        assert set(leads[-1].view.ids) == alive
        assert leads[-1].view.version > view.version
        assert [lead.view.version for lead in leads] == sorted({lead.view.version for lead in leads})
    if leads and set(leads[-1].view.ids) == alive:
        cluster, commands = after(cluster, ViewStarted(leads[-1].view))
        assert len(all_of(Spawn, commands)) == size - len(alive)


@pytest.mark.parametrize("suspects", [(), (1,)])
def test_a_report_of_somebody_who_is_not_in_the_view_changes_nothing(suspects: tuple[int, ...]) -> None:
    cluster, _ = after(training(0, 1), wants(3), ready(2))
    assert after(cluster, PeersLost(2, LossReport(2, 0, False, DIED, suspects))) == (cluster, [])


def test_a_joiner_that_holds_a_view_up_until_its_deadline_is_ended() -> None:
    cluster, _ = after(training(0, 1), wants(3), ready(2))
    late = LossReport(1, 40, True, "waited 10 s for peer 2, about to join and had no answer", (2,), late=True)
    cluster, commands = after(cluster, PeersLost(0, late))
    assert Kill(2, late.error) in commands
    cluster, commands = after(cluster, PeersLost(1, late))
    lead = sole(AdmitSurvivors, commands)
    assert (lead.view.ids, lead.target) == ((0, 1), 0)
    cluster, commands = after(cluster, ViewStarted(lead.view), ProcessEnded(2, -9))
    offer = sole(JoinerOffer, commands)
    assert offer.ready == ()
    assert offer.missing == (2,), "the coordinator hears that nobody comes"


def test_a_replacement_that_stalls_is_replaced_itself() -> None:
    cluster, lead = regrouped(training(0, 1), 1, 0)
    cluster, _ = after(cluster, ViewStarted(lead.view), ready(2))
    late = LossReport(lead.view.version + 1, 40, True, "waited 10 s for rank 1", (2,), late=True)
    cluster, commands = after(cluster, PeersLost(0, late))
    assert [one for one in commands if isinstance(one, Kill | Spawn)] == [Kill(2, late.error), Spawn(3, leaving=(2,))]


def test_a_peer_that_dies_when_it_was_just_let_go_breaks_no_view() -> None:
    cluster, _ = after(training(0, 1, 2), ProcessEnded(2, -9))
    cluster, _ = after(cluster, ViewStarted(view_of(0, 1, version=2)))
    assert cluster.regrouping is None, "nobody of the view without it will ever report"
    _, commands = after(cluster, wants(3), ready(3))
    assert [type(command) for command in commands] == [Spawn, JoinerOffer]
