"""``kungfu why``: trees of the durations on each peer (``--spans``), remarks on steps never reported, and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kungfu.cli.why import missing_steps, span_trees
from kungfu.event_log.events import AnyEvent
from tests.cli.conftest import Printed
from tests.cli.recorded import GROWN, Events, written
from tests.event_log.made import made

PARTS = [{"name": "barrier", "s": 0.02, "parts": [{"name": "digest", "s": 0.015}]}, {"name": "attach", "s": 0.01}]


def span(peer: int, what: str, seconds: float, *, view: int = 2) -> AnyEvent:
    return made(event="span", what=what, peer=peer, view=view, step=40, s=seconds, parts=PARTS)


def shown(events: Events) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    for tree in span_trees(events):
        console.print(tree)
    return console.export_text()


def test_the_slowest_peer_comes_first_and_who_joined_last() -> None:
    text = shown([span(0, "rescale", 0.03), span(2, "join", 9.0), span(1, "rescale", 0.05), made(event="view")])
    assert [line.split(",")[0][-1] for line in text.splitlines() if "peer" in line] == ["1", "0", "2"]
    assert "peer 1, rescale: 50 ms" in text


def test_a_part_is_shown_within_the_part_that_has_it() -> None:
    lines = shown([span(0, "rescale", 0.03)]).splitlines()
    assert lines[0] == "view 2, after step 40"
    assert lines[2].index("barrier 20 ms") < lines[3].index("digest 15 ms")
    assert lines[4].index("attach 10 ms") == lines[2].index("barrier 20 ms")


def test_each_view_has_a_tree_of_its_own() -> None:
    assert len(list(span_trees([span(0, "rescale", 0.03), span(0, "recovery", 0.1, view=4)]))) == 2
    assert list(span_trees([made(event="view", version=1)])) == []


# ---- missing steps ---------------------------------------------------------------------------------------------------


def rows(*steps: int) -> list[dict[str, int]]:
    return [{"step": step} for step in steps]


def test_a_record_that_is_whole_has_no_gap() -> None:
    again = [made(event="recovered", step=3), made(event="finished", steps=5)]
    resumed = rows(2, 3, 3, 4, 5)  # a run that was resumed begins later, and a step may be done twice
    assert missing_steps(again, resumed) == missing_steps(again, []) == []


def test_the_steps_between_two_averages_of_models_are_no_gap() -> None:
    measured = [{"step": step, "steps_since_average": since} for step, since in ((4, 4), (8, 4), (9, 1), (16, 4))]
    assert missing_steps([], measured) == ["steps 10 to 12 are not in metrics.jsonl"]


def test_every_row_is_named_with_what_is_known_of_it_up_to_the_last_step() -> None:
    events = [made(event="recovered", step=5), made(event="finished", steps=12)]
    assert missing_steps(events, rows(4, 6, 7, 9, 10)) == [
        "step 5 is not in metrics.jsonl: rank 0 was lost before it reported it",
        "step 8 is not in metrics.jsonl",
        "steps 11 to 12 are not in metrics.jsonl",
    ]
    undone = [made(event="recovered", step=6)]  # a step that was redone is told by the next rank 0
    lost = "steps 5 to 7 are not in metrics.jsonl: rank 0 was lost before it reported them"
    assert missing_steps(undone, rows(4, 8)) == [lost]


def test_steps_that_could_not_be_written_are_told_apart_from_those_of_a_lost_rank_0() -> None:
    timed = [{"step": step, "time": 100.0 + step} for step in (1, 2, 6, 7, 9)]
    full = {"event": "gap", "file": "metrics.jsonl", "from": 104.5, "to": 105.5, "lines": 3, "error": "No space left"}
    elsewhere, unwritten = {**full, "file": "trace.jsonl", "from": 100.0, "to": 200.0}, "could not be written"
    assert missing_steps([made(**elsewhere), made(**full), made(event="finished", steps=12)], timed) == [
        f"steps 3 to 5 are not in metrics.jsonl: their figures {unwritten} (No space left)",
        "step 8 is not in metrics.jsonl",
        "steps 10 to 12 are not in metrics.jsonl",
    ]
    last = missing_steps([made(**{**full, "to": 112.0}), made(event="finished", steps=4)], timed[:1])
    assert last == [f"steps 2 to 4 are not in metrics.jsonl: their figures {unwritten} (No space left)"]


def test_a_damaged_line_with_an_enormous_step_makes_one_gap_at_once() -> None:
    found = missing_steps([made(event="recovered", step=10**15)], [{"step": 1}, {"step": 10**17}])
    assert found == [f"steps 2 to {10**17 - 1} are not in metrics.jsonl: rank 0 was lost before it reported them"]


# ---- as data ---------------------------------------------------------------------------------------------------------


def test_the_narrative_as_data_has_the_paragraphs_of_the_text_with_their_events(
    tmp_path: Path, printed: Printed
) -> None:
    rate = {"event": "set", "rule": "decay", "what": "learning rate", "to": float("nan"), "saw": {}, "unit": "steps"}
    settings = [made(**rate, time=115.0, step=step) for step in (60, 61, 62)]
    run = written(tmp_path, (*GROWN[:6], *settings, *GROWN[6:]))
    given, text = json.loads(printed("why", run, "--json")), printed("why", run)
    assert (given["folder"], given["is_running"], given["notes"]) == (str(run), False, [])
    for one in given["paragraphs"]:
        assert all(line in text for line in (one["headline"], *one["details"])), one
    kinds = [one["event"] and one["event"].get("event", "repeated") for one in given["paragraphs"]]
    assert kinds[:4] == ["started", "view", "decision", "repeated"]
    decision, repeated, last = (given["paragraphs"][index] for index in (2, 3, -1))
    assert (decision["at_s"], decision["event"]["saw"]["noise_scale"]) == (10.0, 50.65517)
    assert (repeated["event"]["times"], repeated["event"]["last"]["to"]) == (3, "NaN")
    assert (last["event"], last["at_s"]) == (None, None)
    assert given["totals"] == {
        "training_s": pytest.approx(20.0), "stopped_s": pytest.approx(0.2), "rescales": 2, "recoveries": 0,
        "lost_peers": 0, "unrecorded": 0,
    }  # fmt: skip


def test_spans_and_notes_as_data_are_those_of_the_text(tmp_path: Path, printed: Printed) -> None:
    run = written(tmp_path, [span(0, "rescale", 0.03), span(2, "join", 9.0), span(1, "rescale", 0.05)])
    with (run / "events.jsonl").open("a") as file:
        file.write('{"half')
    given = json.loads(printed("why", run, "--spans", "--json"))
    [view] = given["views"]
    assert (view["view"], view["step"], [one["peer"] for one in view["spans"]]) == (2, 40, [1, 0, 2])
    assert view["spans"][0]["parts"][0]["parts"] == [{"name": "digest", "s": 0.015}]
    assert [one.split(":")[0] for one in given["notes"]] == ["line 5 of events.jsonl is half-written"]
