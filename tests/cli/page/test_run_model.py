"""A run as its page shows it: how far it is, and texts of any length."""

from __future__ import annotations

import json

from kungfu.cli.export.record_follower import NewRecords
from kungfu.cli.page.run_model import RunModel, as_text
from kungfu.event_log.events import EndedEvent
from tests.cli.recorded import GROWN, measured


def test_how_far_the_job_is_is_told_with_the_time_left_as_long_as_it_runs() -> None:
    model = RunModel("a")
    for step in range(1, 11):
        told = {
            "samples": 32 * step,
            "epoch": 2,
            "epochs": 5,
            "samples_left": 32 * (100 - step),
            "steps_left": 100 - step,
        }
        model.add(NewRecords(rows=(measured(step, progress=told),), events=GROWN[:1] if step == 1 else ()))
    assert model.whole()["run"]["progress"] == {
        "samples": 320, "epoch": 2, "epochs": 5, "samples_left": 2880, "steps_left": 90, "fit": None,
        "time_left": "2 min",
    }  # fmt: skip
    model.add(NewRecords(rows=(), events=(EndedEvent(time=200.0, reason="training is over"),)))
    assert model.changes()["run"]["progress"]["time_left"] == ""


def test_of_a_very_long_text_the_beginning_is_sent_and_of_the_plan_all() -> None:
    sent = json.loads(as_text({"items": [{"headline": "w" * 30_000}], "plan": {"text": "p" * 30_000}, "loss": None}))
    assert sent["items"][0]["headline"] == "w" * 800 + "… (30,000 characters)"
    assert len(sent["plan"]["text"]) == 30_000
