"""The present of a job in words: what has changed it and why, and for whom it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kungfu.cli.report.present import decision_words, waiting_words
from kungfu.event_log.events import AnyEvent
from kungfu.event_log.job import fold
from tests.cli.recorded import FAILED, GROWN
from tests.event_log.made import made

LOSS = {"event": "recovered", "step": 47, "from": 3, "to": 2, "lost": {"1": "killed"}, "stop_s": 11.8}
CAME = {"event": "rescale", "step": 1319, "from": 1, "to": 2, "joined": [2], "stop_s": 0.04}
SAW = "(noise scale 50.7, local batch size 16)"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([GROWN[5]], f"step 50, gns_batch: 2 -> 3 peers, under way {SAW}"),
        ([GROWN[5], GROWN[-1]], f"step 50, gns_batch: 2 -> 3 peers {SAW}"),
        (GROWN[5:8], f"step 163, gns_batch: 2 -> 3 peers, stood still for 135 ms {SAW}"),
        (GROWN[:12], "step 301, at_most(gns_batch, schedule): 3 -> 2 peers, stood still for 65 ms (noise scale 83.1)"),
        ([GROWN[5], made(event="refused", rule="gns_batch", asked=3, reason="x")], f"gns_batch: 3 peers refused {SAW}"),
        ([FAILED[5]], "grow: 3 peers refused"),
        ([made(event="decision", step=9, rule="cap", saw={}, size=2, asked=2)], "step 9, cap: stays at 2 peers"),
        (
            [made(event="decision", step=9, rule="swap", saw={}, size=2, asked=2, done="", when="replaced", peers=[1])],
            "step 9, swap: peer 1 replaced, under way",
        ),
        ([made(event="regrouping")], ""),
        ([made(**LOSS)], "step 47, after the loss of 1 peer: 3 -> 2 peers, stood still for 11.8 s"),
        ([made(**CAME)], "step 1,319, in place of lost peers: 1 -> 2 peers, stood still for 40 ms"),
    ],
)
def test_the_newest_change_is_told_with_what_the_rule_behind_it_saw(events: Sequence[AnyEvent], words: str) -> None:
    assert decision_words(fold(events)) == words


def waits(*events: dict[str, Any]) -> str:
    begun = ({"event": "spawned", "peer": 0, "pid": 1}, {"event": "view", "version": 1, "peers": [0]})
    return waiting_words(fold(made(time=float(time), **one) for time, one in enumerate((*begun, *events))), now=43.0)


def test_a_job_waits_for_joiners_and_replacements_and_at_its_end_for_nobody() -> None:
    spawned = [{"event": "spawned", "peer": peer, "pid": 9} for peer in (1, 2, 3)]
    assert waits() == ""
    assert waits(*spawned) == "3 starting for 40 s"
    ready = (*spawned, {"event": "offered", "peers": [2]})
    assert waits(*ready) == "2 starting for 40 s, 1 ready for 40 s"
    assert waits(*ready, {"event": "view", "version": 2, "peers": [0, 1, 2]}) == "1 starting for 40 s"
    assert waits(*ready, {"event": "ended", "reason": "training is over"}) == ""
    lost = {"event": "regrouping", "version": 2, "peers": [0], "target": 3}
    assert waits(lost) == "2 replacements to come"
    assert waits(lost, spawned[0]) == "1 starting for 40 s, 1 replacement to come"
    assert waits(lost, {"event": "missing", "peers": [1], "reason": "x"}) == ""
