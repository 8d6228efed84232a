"""The table of decisions, and trees of what took each peer how long."""

from __future__ import annotations

import io

from rich.console import Console

from kungfu.cli.report import decisions_table, span_trees
from kungfu.event_log.events import AnyEvent
from tests.cli.recorded import FAILED, GROWN, Events
from tests.event_log.made import made


def printed(events: Events, *, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(decisions_table(events))
    return out.getvalue()


def test_each_decision_and_rescale_has_a_row_and_nothing_else_has() -> None:
    table = decisions_table(GROWN)
    assert table.row_count == 4
    assert "gns_batch" in printed(GROWN)
    assert "noise scale 50.7" in printed(GROWN)
    assert "135 ms" in printed(GROWN)


def test_a_combined_rule_says_who_won() -> None:
    assert "at_most(gns_batch, schedule): schedule won" in printed(GROWN, width=200)


def test_a_refusal_has_a_row_with_its_reason() -> None:
    assert "refused: peer 2: waited 300 s" in printed(FAILED)


def test_no_events_and_values_that_are_not_known_leave_a_table() -> None:
    assert decisions_table([]).row_count == 0
    assert "-" in printed([made(event="decision", saw={"loss": None}), made(event="rescale", decided_at=None)])


def test_a_narrow_terminal_holds_it() -> None:
    assert max(len(line) for line in printed(GROWN, width=40).splitlines()) <= 40


# ---- spans -----------------------------------------------------------------------------------------------------------

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
