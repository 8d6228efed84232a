"""What ``kungfu why --spans`` shows: trees of what took each peer how long."""

from __future__ import annotations

import io

from rich.console import Console

from kungfu.cli.why import span_trees
from kungfu.event_log.events import AnyEvent
from tests.cli.recorded import Events
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
