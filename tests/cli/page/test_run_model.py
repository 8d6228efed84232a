"""A run as its page shows it: how far it is, and texts of any length."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kungfu.cli.page.run_model import RunModel, as_text
from kungfu.event_log.events import EndedEvent
from kungfu.event_log.record_follower import NewRecords
from tests.cli.recorded import GROWN, measured
from tests.event_log.made import KINDS, made


def test_how_far_the_job_is_is_told_with_the_time_left_as_long_as_it_runs() -> None:
    model = RunModel("a")
    for step in range(1, 11):
        left = {"samples_left": 32 * (100 - step), "steps_left": 100 - step}
        told = {"samples": 32 * step, "epoch": 2, "epochs": 5, **left}
        model.add(NewRecords(rows=(measured(step, progress=told),), events=GROWN[:1] if step == 1 else ()))
    assert model.whole()["run"]["progress"] == {**told, "fit": None, "time_left": "2 min"}
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


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_FIELDS = st.sampled_from([*measured(1), "learning_rate", "straggler_fractions", "progress"])


@given(st.lists(st.dictionaries(_FIELDS | st.text(max_size=4), _VALUES, max_size=8), max_size=8))
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
