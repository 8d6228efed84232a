"""The state of a job from its events, in any order that a damaged record may hold."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kungfu.cli.report.narrative import decision_words
from kungfu.event_log.job import Job, fold
from tests.event_log.made import KINDS, made

GROWTH = {"event": "decision", "rule": "grow", "step": 10, "size": 2, "asked": 3, "done": ""}


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 3), st.booleans()), max_size=40))
def test_any_order_of_events_is_a_job_whose_parts_agree(events: list[tuple[str, int, bool]]) -> None:
    job = Job()
    for kind, number, truth in events:
        event = made(event=kind)
        of_types = ((int, number), (bool, truth), (tuple, (number,)))
        fields = {
            name: value for name in event.__struct_fields__ for type_, value in of_types
            if type(getattr(event, name)) is type_ and name not in ("won", "lost", "also", "command", "parts", "widest",
                                                                    "policies", "devices")
        }  # fmt: skip
        job = job.after(msgspec.structs.replace(event, **fields)).after_step({"step": number, "size": number})
    assert sum(job.tally.counts.values()) == len(events)
    assert {*job.members} <= {*(job.view.peers if job.view else ())}
    assert {*job.members}.isdisjoint(job.joiners)
    assert {*job.members, *job.joiners} <= {*job.peers}
    assert all(job.peers[peer].rank == rank for rank, peer in enumerate(job.view.peers) if peer in job.members) \
        if job.view else job.members == ()  # fmt: skip
    assert all(one.is_open or not one.is_waiting for one in job.decisions)


def test_a_decision_waits_until_its_joiners_have_come_or_will_not() -> None:
    waiting = fold([made(**GROWTH)])
    assert [one.rule for one in waiting.waiting] == ["grow"]
    assert waiting.after(made(event="recovered", lost={"1": "killed by SIGKILL"})).waiting, "a loss delays it"
    for fields in (
        {"event": "rescale", "rule": "grow", "decided_at": 10, "joined": [2]},
        {"event": "refused", "rule": "grow", "asked": 3},
        {"event": "superseded", "rule": "grow", "step": 10, "asked": 3, "by": "stop_on_nan", "later": 12},
        {"event": "ended"}, {"event": "failed"},
    ):  # fmt: skip
        assert waiting.after(made(**fields)).waiting == ()


def test_a_spare_is_no_joiner_until_it_is_wanted() -> None:
    job = fold([made(event="started", size=1), made(event="spawned", peer=0), made(event="view", version=1, peers=[0])])
    job = job.after(made(event="spawned", peer=1, spare=True))
    assert (job.peer(1).state, job.spares, job.joiners) == ("starting spare", (1,), ())
    ready = job.after(made(event="spare", peer=1, state="ready"))
    assert (ready.peer(1).state, ready.spares) == ("spare", (1,))
    assert ready.after(made(event="phase", phase=2)).peer(1).state == "starting spare"
    for before, state in ((job, "starting"), (ready, "ready")):
        wanted = before.after(made(event="spare", peer=1, state="wanted"))
        assert (wanted.peer(1).state, wanted.spares, wanted.joiners) == (state, (), (1,))
    lost = ready.after(made(event="peer ended", peer=1, how="killed by SIGKILL"))
    assert (lost.peer(1).state, lost.spares, lost.joiners) == ("ended", (), ())


def test_a_spare_that_has_only_loaded_waits_over_the_end_of_a_fit() -> None:
    events = [{"event": "started", "spare_level": "loaded"}, {"event": "spawned", "peer": 1, "spare": True}]
    events += [{"event": "spare", "peer": 1, "state": "ready"}, {"event": "phase", "phase": 2}]
    assert fold(made(**one) for one in events).peer(1).state == "spare"


def test_a_size_out_of_reach_is_neither_under_way_nor_wanted() -> None:
    job = fold([made(event="started", size=2), made(**GROWTH, has_no_effect=True)])
    assert (job.waiting, job.decisions[-1].is_open, job.wanted) == ((), False, 2)
    assert decision_words(job) == "step 10, grow: 2 -> 3 peers"


def test_a_decision_is_closed_by_the_event_that_names_its_rule_and_its_step() -> None:
    job = fold([made(**GROWTH), made(**{**GROWTH, "step": 20}), made(**{**GROWTH, "rule": "other"})])
    closed = job.after(made(event="rescale", rule="grow", decided_at=10, joined=[2]))
    assert [one.outcome is not None for one in closed.decisions] == [True, False, False]
    both = job.after(made(event="rescale", rule="grow and other", decided_at=10, joined=[2]))
    assert [one.outcome is not None for one in both.decisions] == [False, True, True]


def test_a_job_of_a_week_keeps_the_newest_of_what_repeats() -> None:
    kinds = ("spawned", "peer ended", "request", "not finite")
    events = [made(event=kind, peer=at, id=str(at)) for at in range(300) for kind in kinds]
    job = fold([*events, *(made(**{**GROWTH, "step": at}) for at in range(300))])
    assert (len(job.peers), len(job.requests), len(job.decisions), len(job.troubles)) == (64, 200, 200, 8)
    assert job.decisions[-1].event.step == 299


def test_what_the_job_wants_is_its_newest_decision_and_a_loss_changes_nothing() -> None:
    started = made(event="started", size=2)
    refused = {"event": "refused", "asked": 3, "size": 2}
    for fields, wanted in (
        ([], 2),
        ([GROWTH], 3),
        ([GROWTH, {"event": "rescale", "rule": "grow", "decided_at": 10, "to": 3, "joined": [2]}], 3),
        ([GROWTH, {**refused, "rule": "grow"}], 2),
        ([{"event": "recovered", "from": 2, "to": 1, "target": 2}, {**refused, "asked": 2, "size": 1}], 2),
        ([{"event": "recovered", "to": 1, "target": 2}, {"event": "missing", "peers": [2]}], 2),
        ([GROWTH, {**GROWTH, "step": 20, "size": 3, "asked": 1}], 1),
        ([GROWTH, {**GROWTH, "step": 20, "size": 2, "asked": 2}], 3),  # asks for nothing new
    ):
        assert fold([started, *(made(**one) for one in fields)]).wanted == wanted, fields


def test_the_first_host_leads_until_another_is_elected() -> None:
    job = fold([made(event="host", host=0, name="a")])
    assert (job.is_led_by(0), job.is_led_by(1)) == (True, False)
    job = job.after(made(event="started", size=2)).after(made(event="view", peers=[0]))
    assert job.is_led_by(0)
    elected = job.after(made(event="head", host=1, name="b", term=2))
    assert (elected.is_led_by(0), elected.is_led_by(1)) == (False, True)
    assert not fold([made(event="view", peers=[3])]).is_led_by(0), "it is back in a job that goes on"


def test_a_job_that_was_started_again_has_its_history_and_none_of_its_processes() -> None:
    before = fold([
        made(event="started", job="a", size=2), made(event="host", host=0, name="h", pid=7),
        made(event="spawned", peer=0, pid=8), made(event="spawned", peer=1, pid=9),
        made(event="view", time=5.0, version=1, peers=[0, 1]), made(event="decision", rule="grow", size=2, asked=3),
        made(event="request", id="r", state="accepted"), made(event="request", id="s", state="refused"),
        made(event="failed", peer=0, error="killed", code=1),
    ])  # fmt: skip
    undone = [{"step": step, "view": 1, "size": 2} for step in (80, 100)]
    anew = made(event="restarted", why="killed", path="c/step-80", step=80, steps_again=20, size=2, first_peer=2,
                first_view=3)  # fmt: skip
    job = before.after_step(undone[0]).after_step(undone[1]).after(anew)
    assert (job.steps, job.size, job.members, job.joiners, job.ending, job.hosts) == (80, 0, (), (), None, {})
    assert {peer: (one.state, one.how) for peer, one in job.peers.items()} == dict.fromkeys(
        (0, 1), ("ended", "the job was started again")
    )
    assert ([*job.requests], job.waiting, job.tally.steps_again, job.trained_at) == (["s"], (), 20, 5.0)
    assert job.change is None, "the decision before is not under way any more"

    job = job.after(made(event="started", job="b", size=2)).after(made(event="spawned", peer=2, pid=10))
    job = job.after(made(event="view", time=9.0, version=3, peers=[2])).after_step({"step": 81, "view": 3})
    assert (job.steps, job.members, job.names, job.trained_at) == (81, (2,), ("a", "b"), 5.0)
    assert job.after_step({"step": 99, "view": 1}).steps == 81, "a line that came late"

    # The page reads the steps of a part of the record before its events.
    first = Job().after_step(undone[1]).after_step({"step": 81, "view": 3})
    assert first.after(anew).steps == first.steps == 81
