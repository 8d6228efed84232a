"""The state of a job from its events, in any order that a damaged record may hold."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

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
