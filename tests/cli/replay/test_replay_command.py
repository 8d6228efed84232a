"""``kungfu replay``: what it prints, draws and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kungfu as kf
from kungfu.compiler import compile_policies
from kungfu.policies import gns_batch
from tests.cli.conftest import Printed
from tests.cli.recorded import written as with_events
from tests.event_log.made import made
from tests.trace.recorded import recorded, written

PLAN = compile_policies([gns_batch(max_peers=8, every=4, decay=0.5, min_estimates=2)])
EVENTS = [made(**fields) for fields in (
    {
        "event": "decision", "step": 4, "rule": "gns_batch", "saw": {"noise_scale": 20.0}, "size": 2, "asked": 3,
        "done": "1 more is being prepared",
    },
    {"event": "rescale", "step": 6, "rule": "gns_batch", "from": 2, "to": 3, "joined": [2], "left": [], "stop_s": 0.1},
    {"event": "decision", "step": 5, "rule": "unknown", "saw": {}, "size": 2, "asked": 7, "done": "nothing"},
)]  # fmt: skip


def run(tmp_path: Path, *, changed: bool = False) -> Path:
    """The folder of an invented run, whose record of step 8 may be false."""
    lines = recorded(PLAN)
    if changed:
        next(one for one in lines if one.get("step") == 8 and one["rank"] == 0)["fired"] = {"gns_batch": 2.0}
    return written(with_events(tmp_path, EVENTS), lines)


def test_the_timeline_shows_what_the_replay_decides_beside_what_happened(tmp_path: Path, printed: Printed) -> None:
    text = printed("replay", run(tmp_path))
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]  # below the names of the columns
    assert text.startswith("steps 1 to 18 of 2 to 3 peers, its own policies replayed")
    assert "gns_batch" in rows[0]
    assert "wanted 3 peers; 1 more is being prepared" in rows[0]
    assert any("2 -> 3 peers" in row for row in rows), "a rescale stands in the column of the run"
    assert any("unknown" in row and "wanted 7 peers" in row for row in rows), "what only the run did stands too"
    assert "the replay decides as the run did" in text


def test_held_back_and_fruitless_requests_stand_in_the_column_of_the_run(tmp_path: Path, printed: Printed) -> None:
    held = made(event="held", step=6, rule="held(grow)", action="Rescale", asked=3.0, budget="1 rescale in 9 steps")
    passed_over = made(event="superseded", step=7, rule="hook", asked=5, by="grow")
    folder = written(with_events(tmp_path, [held, passed_over]), recorded(PLAN))
    text = " ".join(printed("replay", folder).replace("|", " ").split())
    assert "held: 1 rescale in 9 steps is used up" in text
    assert "nothing came of it, since grow came before it" in text
    told = json.loads(printed("replay", folder, "--json"))
    assert [one["event"] for one in told["run"]] == ["held", "superseded"]


def test_where_the_run_differs_it_says_so(tmp_path: Path, printed: Printed) -> None:
    text = printed("replay", run(tmp_path, changed=True))
    assert "differs: step 8: gns_batch" in text
    assert "decides as the run did" not in text


def test_another_policy_says_what_its_decisions_cannot_do(tmp_path: Path, printed: Printed) -> None:
    text = printed("replay", run(tmp_path), "--policy", "kungfu.policies:schedule({2: 5})")
    assert "wants 5 peers" in text
    assert "17 times up to step 18" in text, "what it repeats is one row"
    assert "changes neither the sizes nor the batches and losses that it sees" in text


def test_json_holds_decisions_differences_and_what_the_run_did(tmp_path: Path, printed: Printed) -> None:
    told = json.loads(printed("replay", run(tmp_path), "--json", "--from", 9))
    assert told["steps"] == [1, 18]
    assert told["decisions"]
    assert all(one["step"] >= 9 and one["action"] == "rescale" for one in told["decisions"])
    assert [one["step"] for one in told["run"]] == [4, 5]
    assert told["differences"] == []
    assert "forecast" not in told, "the run's own policies are not compared with themselves"


@kf.policy
def stops_on_nan(training: kf.TrainingSignals) -> kf.Rule:
    return kf.control.every(4).when(~kf.ops.is_finite(training.mean_loss)).stop()


def test_json_names_a_number_that_is_not_finite_as_the_events_do(tmp_path: Path, printed: Printed) -> None:
    lines = recorded(compile_policies([stops_on_nan()]))
    eighth = next(one for one in lines if one.get("step") == 8 and one["rank"] == 0)
    eighth["agreed"]["mean_loss"], eighth["fired"] = None, {"stops_on_nan": None}
    folder = written(with_events(tmp_path, [made(event="called", step=8, rule="x", saw={"loss": "NaN"})]), lines)
    told = json.loads(printed("replay", folder, "--json"))
    [decision] = told["decisions"]
    assert decision["saw"]["mean_loss"] == "NaN", "a value that is there, and is no number"
    assert decision["value"] is None, "a stop asks for no number"
    assert [one["saw"] for one in told["run"]] == [{"loss": "NaN"}]


@pytest.mark.slow
def test_plot_draws_a_picture(tmp_path: Path, printed: Printed) -> None:
    folder = run(tmp_path)
    printed("replay", folder, "--plot")
    printed("replay", folder, "--plot", tmp_path / "other.png")
    assert (folder / "replay.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "other.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_that_is_not_in_the_record_has_to_be_named(tmp_path: Path, printed: Printed) -> None:
    written(tmp_path, [{**recorded(PLAN)[0], "plan": None}, *recorded(PLAN)[1:]])
    assert "does not hold the plan that ran; name its policies, as in --policy" in printed("replay", tmp_path, code=2)


def test_a_run_that_was_started_with_a_policy_is_replayed_with_it(tmp_path: Path, printed: Printed) -> None:
    spec = "kungfu.policies:gns_batch(max_peers=8, every=4, decay=0.5, min_estimates=2)"
    written(tmp_path, [{**recorded(PLAN)[0], "plan": None, "policies": [spec]}, *recorded(PLAN)[1:]])
    assert "the replay decides as the run did" in printed("replay", tmp_path)
