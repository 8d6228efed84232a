"""What the agent decides of the peers it started: the table of the module by hand, then any order of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.cluster.cluster import Cluster, SpareLimits
from kungfu.runtime.core.cluster.events import (
    AdmitFirstView,
    AdmitSurvivors,
    AnnounceFailure,
    Command,
    ComparePrograms,
    Done,
    Event,
    Fail,
    Kill,
    LeaderTookOver,
    LossReport,
    PeerProgressed,
    PeersLost,
    ProcessEnded,
    ProgramDiffers,
    ReportMachines,
    Spawn,
    Tick,
    TrainingFinished,
    ViewStarted,
)
from kungfu.runtime.core.cluster.transitions import react, start_job
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from tests.runtime.core.cluster.cluster_steps import (
    JOB_LIMITS,
    USUAL,
    after,
    all_of,
    peer,
    ready,
    sole,
    started,
    training,
    view_of,
    wants,
)


def attached(id_: int) -> PeerProgressed:
    return PeerProgressed(peer(id_), ready=False)


def growing(size: int, target: int) -> Cluster:
    return after(training(*range(size)), wants(target), now=10.0)[0]


# ---- the first view -------------------------------------------------------------------------------------------------


def test_the_first_view_forms_when_the_last_one_is_ready_in_the_order_of_ids() -> None:
    cluster, commands = after(started(3), attached(2), ready(2), ready(0))
    assert commands == []
    assert after(cluster, ready(1))[1] == [AdmitFirstView(view_of(0, 1, 2))]


def test_a_peer_that_says_it_is_ready_twice_forms_no_second_view() -> None:
    cluster, _ = after(started(2), ready(0), ready(1))
    assert after(cluster, ready(1), attached(0))[1] == []
    assert react(cluster, Tick(), 1e6)[1] == [], "and is never late"


@pytest.mark.parametrize(
    ("seen", "code", "failed"),
    [
        ([], 0, Fail(0, "the script ended without calling kf.attach(): nothing was trained under kungfu-run", code=2)),
        (
            [attached(0)], 0,
            Fail(0, "the script called kf.attach() but never called a function marked @training.step", code=2),
        ),
        ([], -9, Fail(0, "killed by SIGKILL")),
        ([], 3, Fail(0, "exit code 3")),
    ],
)  # fmt: skip
def test_a_first_peer_that_ends_fails_the_job(seen: list[Event], code: int, failed: Fail) -> None:
    assert after(started(2), *seen, ProcessEnded(0, code))[1] == [failed]


def test_a_first_peer_that_is_never_ready_fails_the_job_at_the_deadline() -> None:
    cluster, _ = after(started(2), ready(0), attached(1))
    assert react(cluster, Tick(), 100.0)[1] == []
    why = "waited 100 s for peer 1 to get ready; it has called kf.attach() and not yet finished its first step"
    assert react(cluster, Tick(), 100.1)[1] == [Fail(1, why, late=True)]


def test_a_peer_that_says_that_it_reads_data_is_on_its_way() -> None:
    cluster = after(started(2), ready(0), attached(1))[0]
    for now in (60.0, 120.0, 180.0):
        cluster, commands = after(cluster, attached(1), Tick(), now=now)
        assert commands == []
    assert cluster.starting[1].attached == 1.0, "when it called attach"
    assert not react(cluster, Tick(), 280.0)[1]
    assert isinstance(react(cluster, Tick(), 280.1)[1][0], Fail)


def test_nobody_can_ask_for_a_size_before_there_is_a_coordinator() -> None:
    cluster = started(2)
    assert react(cluster, wants(5), 1.0) == (cluster, [])


# ---- joiners --------------------------------------------------------------------------------------------------------


def test_joiners_are_spawned_under_new_ids_and_offered_together() -> None:
    cluster, commands = after(training(0, 1), wants(4), now=10.0)
    assert commands == [Spawn(2), Spawn(3)]
    cluster, commands = after(cluster, attached(2), attached(3), now=12.0)
    cluster, more = after(cluster, ready(3), now=13.0)
    assert commands == more == []
    cluster, commands = after(cluster, ready(2), now=15.0)
    assert commands == [JoinerOffer((peer(2), peer(3)), parts={"spawn": 2.0, "ready": 3.0})]
    terms = Terms(64, 16.0, max_global_batch=100)
    cluster, commands = after(cluster, ViewStarted(view_of(0, 1, 2, 3, version=2), terms))
    assert (commands, dict(cluster.starting), cluster.terms) == ([], {}, terms)


def test_who_was_started_and_not_needed_is_dismissed_when_the_others_train() -> None:
    cluster, _ = after(growing(2, 4), ready(2), ready(3))
    cluster, commands = after(cluster, ViewStarted(view_of(0, 1, 2, version=2)))
    assert commands == [Kill(3, "the job has as many peers as it wanted")]
    assert after(cluster, ProcessEnded(3, -9)) == (
        replace(cluster, processes=replace(cluster.processes, alive={0, 1, 2})),
        [],
    )


@pytest.mark.parametrize("code", [0, 1])
def test_a_joiner_that_ends_is_missing_in_the_offer_of_the_others(code: int) -> None:
    cluster, commands = after(growing(2, 4), ready(3), now=12.0)
    assert commands == []
    _, commands = after(cluster, ProcessEnded(2, code), now=14.0)
    offer = JoinerOffer((peer(3),), (2,), f"peer 2: ended (exit code {code}) 4.0 s after its start")
    heard = AnnounceFailure(2, 0, f"exit code {code}")
    assert commands == [heard, offer], "who waits for it in a view to be hears of it"


def test_a_joiner_that_is_late_is_killed_and_its_end_means_nothing_more() -> None:
    cluster, _ = after(growing(2, 4), ready(2), now=12.0)
    cluster, commands = react(cluster, Tick(), 110.1)
    why = "waited 100 s for peer 3 to get ready; it has started and not yet finished its first step"
    assert commands == [Kill(3, why), JoinerOffer((peer(2),), (3,), f"peer 3: {why}")]
    assert after(cluster, ProcessEnded(3, -9))[1] == []


def test_what_was_missing_once_is_not_told_twice() -> None:
    cluster, _ = after(growing(2, 3), ProcessEnded(2, 1))
    cluster, commands = after(cluster, wants(3), ready(3))
    assert commands == [Spawn(3), JoinerOffer((peer(3),))]


@pytest.mark.parametrize(
    ("target", "ready_ones", "size", "commands"),
    [
        (5, [3], 4, [Kill(4, "the job wants 4 peers now")]),  # the one that came least far
        (4, [2, 3], 3, [Kill(3, "the job wants 3 peers now"), JoinerOffer((peer(2),))]),
        (4, [2, 3], 4, [JoinerOffer((peer(2), peer(3)))]),  # asked again, offered again
        (3, [], 2, [Kill(2, "the job wants 2 peers now")]),  # without an offer
        (3, [], 1, [Kill(2, "the job wants 1 peer now")]),
        (4, [], 5, [Spawn(4)]),  # only the rest
    ],
)
def test_a_newer_size_is_reached_from_those_on_their_way(
    target: int, ready_ones: list[int], size: int, commands: list[Command]
) -> None:
    cluster, _ = after(growing(2, target), *map(ready, ready_ones))
    assert after(cluster, wants(size))[1] == commands


def test_a_dismissed_joiner_is_not_heard_any_more() -> None:
    cluster, _ = after(growing(2, 3), wants(2))
    assert after(cluster, attached(2), ready(2), ProcessEnded(2, -9))[1] == []


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_a_script_that_fails_after_its_training_fails_the_job() -> None:
    cluster, commands = after(
        training(0, 1), TrainingFinished(0, leaving=False), TrainingFinished(1, leaving=False), ProcessEnded(0, 1)
    )
    assert commands == [], "the others come to their end"
    assert after(cluster, ProcessEnded(1, 0))[1] == [Fail(0, "exit code 1, after its training was over")]


def test_a_peer_that_left_by_decision_may_end_as_it_likes() -> None:
    cluster, commands = after(growing(3, 4), TrainingFinished(2, leaving=True))
    assert (commands, set(cluster.starting)) == ([], {3}), "and dismisses nobody"
    left = ViewStarted(view_of(0, 1, version=2))
    assert after(cluster, left, ProcessEnded(2, 1))[1] == []


def test_who_finishes_dismisses_those_who_would_still_join() -> None:
    cluster, commands = after(growing(2, 4), ready(2), TrainingFinished(0, leaving=False))
    assert commands == [Kill(2, "training is over"), Kill(3, "training is over")]
    killed, commands = after(cluster, ProcessEnded(2, -9), ProcessEnded(3, -9))
    assert commands == []
    _, commands = after(killed, TrainingFinished(1, leaving=False), ProcessEnded(1, 0), ProcessEnded(0, 0))
    assert commands == [Done()]


def test_joiners_do_not_wait_for_members_that_are_gone() -> None:
    cluster, commands = after(growing(2, 3), ProcessEnded(0, 0), ProcessEnded(1, 0))
    assert commands[-1] == Kill(2, "no peer that trains is left")
    for code in (-9, 1):
        assert after(cluster, ProcessEnded(2, code))[1] == [Done()], "the very last process, whoever it was"


@pytest.mark.parametrize("left", [1, 2])
def test_the_job_fails_if_its_peers_were_let_go_and_none_came_to_an_end(left: int) -> None:
    cluster, _ = after(growing(left, left + 1), ready(left))
    for id_ in range(left):
        cluster, _ = after(cluster, TrainingFinished(id_, leaving=True), ProcessEnded(id_, 0))
    _, commands = after(cluster, ProcessEnded(left, 1))
    failed = sole(Fail, [command for command in commands if isinstance(command, Done | Fail)])
    assert "without a peer that came to the end of its program" in failed.reason


def test_a_waiting_joiner_is_offered_to_the_next_coordinator() -> None:
    cluster, _ = after(growing(2, 3), ready(2))
    left, commands = after(cluster, ViewStarted(view_of(1, version=2)))
    offer = sole(JoinerOffer, commands)
    assert left.view is not None
    assert (left.view.ids, [one.id for one in offer.ready]) == ((1,), [2])
    assert after(cluster, ViewStarted(view_of(0, version=2)))[1] == [], "the coordinator has heard of them"


# ---- programs that differ -------------------------------------------------------------------------------------------

WHY = "its program is not that of the job"


def test_first_peers_that_differ_are_compared_and_the_job_ends_with_2_and_the_reason() -> None:
    cluster, commands = after(started(3), ready(1), ready(2, program="other"), ready(0))
    assert commands == [ComparePrograms((peer(0),), peer(2))], "with the first peer, when all are ready"
    how = "policies: peer 0 has a + b, peer 2 has b + a"
    failed = Fail(-1, f"the peers of this job must run the same program: {how}", code=2)
    assert after(cluster, ProgramDiffers(2, how))[1] == [failed]


def test_machines_that_differ_are_told_with_the_first_view() -> None:
    _, commands = after(started(3), ready(0), ready(1, machine="4 threads"), ready(2))
    assert commands == [ReportMachines(USUAL, {1: "4 threads"}), AdmitFirstView(view_of(0, 1, 2))]


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
    kill = Kill(2, f"{WHY}: model: peer 0 has x, peer 2 has y")
    assert commands == [kill, JoinerOffer((peer(3),), (2,), f"peer 2: {WHY}")]
    cluster, commands = after(cluster, ProcessEnded(2, -9))
    assert commands == [], "nobody waits for it, and nobody comes in its place"
    assert after(cluster, wants(4))[1] == [Spawn(4)], "who asks again gets another try"


def test_a_replacement_that_differs_is_not_replaced_again() -> None:
    """The job lost peer 1, and its policy file was edited since it began."""
    report = LossReport(1, 5, holds=True, error="lost rank 1")
    cluster, commands = after(training(0, 1), ProcessEnded(1, -9), PeersLost(0, report))
    assert isinstance(commands[0], AnnounceFailure)
    cluster, commands = after(cluster, ViewStarted(view_of(0, version=3)))
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
    commands = after(cluster, ready(2, machine="8 threads"))[1]
    assert commands == [ReportMachines(USUAL, {2: "8 threads"}), JoinerOffer((peer(2),))]


# ---- any order of events --------------------------------------------------------------------------------------------

ids = st.integers(0, 7)
events = st.one_of(
    st.builds(PeerProgressed, st.builds(peer, ids), st.booleans()),
    st.builds(wants, st.integers(1, 6)),
    st.builds(TrainingFinished, ids, st.booleans()),
    st.builds(ProcessEnded, ids, st.sampled_from([0, 1, -9])),
    st.just(Tick()),
    st.just("in force"),
)


def possible(cluster: Cluster, event: object, formed: Iterable[AdmitFirstView]) -> Event | None:
    """The event as the world could send it to this cluster: only processes that run end, only formed views train."""
    if event == "in force":
        views = [form.view for form in formed]
        return ViewStarted(views[0]) if views and cluster.view is None else None
    if isinstance(event, ProcessEnded | TrainingFinished) and event.peer not in cluster.alive:
        return None
    if isinstance(event, PeerProgressed) and event.peer.id not in cluster.alive:
        return None
    assert isinstance(event, PeerProgressed | Decision | TrainingFinished | ProcessEnded | Tick)
    return event


@given(
    st.integers(1, 4),
    st.lists(st.tuples(events, st.sampled_from([0.0, 1.0, 60.0])), max_size=60),
    st.sampled_from([0, 0, 2]),
)
def test_any_order_of_events_keeps_account_of_every_process(
    size: int, history: list[tuple[object, float]], spares: int
) -> None:
    cluster, commands = start_job(size, limits=replace(JOB_LIMITS, spares=SpareLimits(spares)), now=0.0)
    spawned, killed, formed, now = {command.peer for command in commands}, set[int](), list[AdmitFirstView](), 0.0
    for drawn, seconds in history:
        now += seconds
        event = possible(cluster, drawn, formed)
        if event is None:
            continue
        before = cluster
        cluster, commands = react(cluster, event, now)
        fresh = [command.peer for command in all_of(Spawn, commands)]
        members = cluster.view.size if cluster.view else 0
        dying = [command.peer for command in all_of(Kill, commands)]
        formed += all_of(AdmitFirstView, commands)
        assert not spawned & set(fresh)
        assert set(dying) <= {*before.starting, *before.spares.waiting}
        assert not killed & set(dying)
        spawned |= set(fresh)
        killed |= set(dying)
        assert len(formed) <= 1
        waiting = cluster.spares.waiting.keys()
        assert not killed & {*cluster.starting, *waiting}
        assert len(waiting) <= spares
        assert {*waiting} <= cluster.alive
        wanted = set(fresh) - waiting
        assert not wanted or (isinstance(event, Decision) and members + len(cluster.starting) == event.prepare)
        has_failed = any(isinstance(command, Fail) for command in commands)
        assert (Done() in commands) == (not cluster.wanted and not has_failed)
        if has_failed or not cluster.wanted:
            return
        assert set(cluster.starting) <= cluster.alive
        assert cluster.alive | set(cluster.starting) | cluster.processes.released <= set(
            range(cluster.processes.next_id)
        )


# ---- a job that is started again ------------------------------------------------------------------------------------


def test_a_job_that_is_started_again_numbers_its_peers_and_views_on() -> None:
    cluster, commands = start_job(2, limits=JOB_LIMITS, now=0.0, first_peer=5, first_view=7)
    assert commands == [Spawn(5, joins=False), Spawn(6, joins=False)]
    cluster, _ = after(cluster, ready(5))
    cluster, commands = after(cluster, ready(6))
    assert commands == [AdmitFirstView(View(7, (peer(5), peer(6)), begins_phase=True))]
    cluster, _ = after(cluster, ViewStarted(View(7, (peer(5), peer(6)), begins_phase=True)))
    assert (cluster.members, after(cluster, wants(3))[1]) == ((5, 6), [Spawn(7)])


def test_peers_that_a_signal_has_ended_are_known_until_the_others_train_without_them() -> None:
    cluster = training(0, 1, 2)
    assert after(cluster, ProcessEnded(1, 3))[0].losses.killed == frozenset()
    lost, _ = after(cluster, ProcessEnded(1, -9), ProcessEnded(2, 143))
    assert lost.losses.killed == {1, 2}
    lost, commands = after(lost, PeersLost(0, LossReport(1, 5, True, "lost")))
    formed = next(one.view for one in commands if isinstance(one, AdmitSurvivors))
    assert after(lost, ViewStarted(formed))[0].losses.killed == frozenset()
