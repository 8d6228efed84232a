"""A run as its page shows it: how far it is, texts of any length, and the job and its peers from the record alone."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kungfu.cli.page.run_model import RunModel, as_text, job_summary, peer_rows
from kungfu.event_log.events import EndedEvent
from kungfu.event_log.job import Job, fold
from kungfu.event_log.record_follower import NewRecords
from tests.cli.recorded import GROWN, measured
from tests.cli.report.test_reader import JSON
from tests.event_log.made import KINDS, made


def test_how_far_the_job_is_is_told_with_the_time_left_as_long_as_it_runs() -> None:
    model = RunModel("a")
    for step in range(1, 11):
        left = {"samples_left": 32 * (100 - step), "steps_left": 100 - step}
        progress = {"samples": 32 * step, "epoch": 2, "epochs": 5, **left}
        model.add(NewRecords(rows=(measured(step, progress=progress),), events=GROWN[:1] if step == 1 else ()))
    assert model.whole()["run"]["progress"] == {**progress, "fit": None, "time_left": "2 min", "fraction": 0.1}
    model.add(NewRecords(rows=(), events=(EndedEvent(time=200.0, reason="training is over"),)))
    assert model.changes()["run"]["progress"]["time_left"] == ""


def test_the_batch_on_top_is_that_of_whole_steps() -> None:
    model = RunModel("a")
    model.add(NewRecords(rows=(measured(1, batch=256), measured(2, batch=157))))
    assert model.whole()["run"]["newest"]["batch"] == 256
    model.add(NewRecords(rows=(measured(3, epoch=1, batch=128),)))
    assert model.whole()["run"]["newest"]["batch"] == 128


def test_of_a_very_long_text_the_beginning_is_sent_and_of_the_plan_all() -> None:
    sent = json.loads(as_text({"items": [{"headline": "w" * 30_000}], "plan": {"text": "p" * 30_000}, "loss": None}))
    assert sent["items"][0]["headline"] == "w" * 800 + "… (30,000 characters)"
    assert len(sent["plan"]["text"]) == 30_000


_FIELDS = st.sampled_from([*measured(1), "learning_rate", "straggler_fractions", "progress"])


@given(st.lists(st.dictionaries(_FIELDS | st.text(max_size=4), JSON, max_size=8), max_size=8))
def test_no_line_that_is_json_breaks_a_page(rows: list[dict[str, Any]]) -> None:
    model = RunModel("a")
    for row in rows:
        model.add(NewRecords(rows=(row,)))
        json.loads(as_text(model.changes()))
    json.loads(as_text(model.whole()))
    model.measured()


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(), st.floats(allow_nan=False)), max_size=12))
def test_no_event_that_can_be_read_breaks_a_page(events: list[tuple[str, int, float]]) -> None:
    model = RunModel("a")
    for kind, number, time in events:
        event = made(event=kind, time=time)
        names = ("peer", "step", "version", "host")
        known = {name: number for name in names if isinstance(getattr(event, name, None), int)}
        model.add(NewRecords(events=(msgspec.structs.replace(event, **known),)))
        json.loads(as_text(model.changes()))
    json.loads(as_text(model.whole()))


def test_a_part_that_stays_is_sent_once_and_one_that_changes_again() -> None:
    model = RunModel("a")
    plan = {"nodes": [], "text": "p"}
    model.put(plan=plan, membership={"size": 2})
    assert {"plan", "membership"} <= model.changes().keys()
    model.put(membership={"size": 2})
    assert model.changes() == {}
    model.put(membership={"size": 3})
    assert model.changes() == {"membership": {"size": 3}}


# ---- the job and its peers -------------------------------------------------------------------------------------------


def facts(*events: dict[str, Any]) -> Job:
    return fold(made(time=float(time), **fields) for time, fields in enumerate(events))


def shown(job: Job) -> list[tuple[Any, ...]]:
    return [(row["id"], row["rank"], row["host"], row["state"]) for row in peer_rows(job)]


BEGUN = (
    {"event": "host", "host": 0, "name": "a", "pid": 1},
    {"event": "host", "host": 1, "name": "b", "pid": 2},
    {"event": "started", "job": "j", "size": 2, "command": ["python", "train.py"]},
    {"event": "spawned", "peer": 0, "pid": 10, "host": 0},
    {"event": "spawned", "peer": 1, "pid": 11, "host": 1},
    {"event": "view", "version": 1, "peers": [0, 1]},
)


def test_peers_come_train_and_go() -> None:
    assert shown(facts(*BEGUN)) == [(0, 0, "a", "training"), (1, 1, "b", "training")]
    grown = (*BEGUN, {"event": "spawned", "peer": 2, "pid": 12, "host": 1}, {"event": "offered", "peers": [2]})
    assert shown(facts(*grown))[2:] == [(2, None, "b", "ready")]
    lost = (
        *grown, {"event": "lost", "peer": 0, "how": "killed by SIGKILL"},
        {"event": "peer ended", "peer": 0, "how": "killed by SIGKILL"},
        {"event": "view", "version": 2, "peers": [1, 2]},
    )  # fmt: skip
    found = facts(*lost)
    assert shown(found) == [
        (1, 0, "b", "training"), (2, 1, "b", "training"), (0, None, "a", "ended: killed by SIGKILL")
    ]  # fmt: skip
    assert [row["since"] for row in peer_rows(found)] == [5.0, 10.0, 8.0]
    assert job_summary(found)["view"] == 2


def test_a_joiner_that_is_no_longer_wanted_is_dismissed_whatever_ended_it() -> None:
    found = facts(
        *BEGUN, {"event": "spawned", "peer": 2, "pid": 12, "host": 1}, {"event": "dismissed", "peer": 2, "reason": "x"},
        {"event": "peer ended", "peer": 2, "how": "killed by SIGKILL"},
    )  # fmt: skip
    assert shown(found)[2:] == [(2, None, "b", "ended: dismissed")]


def test_a_host_that_is_lost_and_one_that_leads_are_known() -> None:
    found = facts(
        *BEGUN, {"event": "host lost", "host": 0, "name": "a", "why": "x"}, {"event": "head", "host": 1, "name": "b"}
    )
    assert (job_summary(found)["hosts"], job_summary(found)["leader"]) == (["b"], "b")
    assert shown(found)[-1] == (0, None, "a", "ended: its host was lost")
    ended = job_summary(facts(*BEGUN, {"event": "failed", "peer": 1, "error": "rank 1: x", "code": 1}))
    assert (ended["job"], ended["command"], ended["ended"], ended["how"]) == ("j", "python train.py", 6.0, "rank 1: x")


def test_speeds_are_those_of_the_newest_step_that_tells_them() -> None:
    found = facts(*BEGUN)
    fractions = {"0": 1.0, "1": 0.5, "x": 1.0, "9" * 5000: 1.0, "2": "NaN"}
    found = found.after_step({"step": 1, "straggler_fractions": fractions}).after_step({"step": 2})
    assert [(row["speed"], row["is_slow"]) for row in peer_rows(found)] == [(1.0, False), (0.5, True)]


def test_only_the_last_processes_that_ended_are_shown() -> None:
    events = [
        event for peer in range(40) for event in (
            {"event": "spawned", "peer": peer, "pid": peer}, {"event": "peer ended", "peer": peer, "how": "exit code 0"}
        )
    ]  # fmt: skip
    assert [row["id"] for row in peer_rows(facts(*events))] == list(range(32, 40))
