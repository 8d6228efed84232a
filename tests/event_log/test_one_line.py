"""One event in one line."""

from __future__ import annotations

import pytest

from tests.event_log.made import KINDS, made


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("accepted", "", "kungfu resize 3: accepted"),
        ("carried out", "", "kungfu resize 3: carried out after 4.2 s"),
        ("carried out", "it was so already", "kungfu resize 3: carried out after 4.2 s (it was so already)"),
        ("refused", "training is over", "kungfu resize 3: refused (training is over)"),
    ],
)
def test_a_request_from_outside_is_told_with_what_came_of_it(state: str, reason: str, text: str) -> None:
    event = {"event": "request", "id": "r", "request": "resize 3", "state": state, "reason": reason, "seconds": 4.2}
    assert made(**event).one_line() == text


def test_a_record_with_a_gap_says_what_it_lacks_and_why() -> None:
    lost = {"event": "unrecorded", "file": "events.jsonl", "error": "No space left on device"}
    gap = {
        "event": "gap",
        "file": "metrics.jsonl",
        "from": 10.0,
        "to": 22.5,
        "lines": 50,
        "error": "Input/output error",
    }
    assert made(**lost).one_line() == (
        "events.jsonl cannot be written (No space left on device): training goes on, and so does the record when it "
        "can be written again"
    )
    assert (
        made(**gap).one_line()
        == "metrics.jsonl lacks 50 lines of 12.5 s, which could not be written (Input/output error)"
    )


# What another event says better, or what is told only when a run is looked at afterwards.
SILENT = ("record", "spawned", "offered", "peer ended", "span", "rules")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_event_has_a_line_or_is_silent(kind: str) -> None:
    assert bool(made(event=kind).one_line()) == (kind not in SILENT)


KEPT = {
    "event": "checkpoint", "step": 40, "rule": "keeping", "path": "c/step-00000040", "bytes": 999, "seconds": 0.25,
    "stop_s": 0.002,
}  # fmt: skip
FAILED = {"event": "checkpoint", "step": 41, "rule": "keeping", "path": "c", "error": "No space left", "seconds": 0.1}


@pytest.mark.parametrize(
    ("size", "words"), [(999, "999 bytes"), (1234567, "1.2 MB"), (2_500_000_000, "2.5 GB"), (None, "unknown size")]
)
def test_a_checkpoint_is_one_line(size: int | None, words: str) -> None:
    line = made(**{**KEPT, "bytes": size}).one_line()
    assert line == f"step 40: a checkpoint of {words} is in c/step-00000040, as keeping asked"
    assert made(**FAILED).one_line() == "step 41: no checkpoint could be written to c: No space left"


SET = {"event": "set", "step": 40, "rule": "hybrid", "what": "learning rate", "to": 0.2, "over": 100.0, "unit": "steps"}
STOP = {"event": "set", "step": 9, "rule": "enough", "what": "stop", "to": None, "over": 0.0, "saw": {"loss": 0.5}}
SHADOW = {"event": "shadow", "step": 3, "rule": "shadow(gns)", "action": "Rescale", "asked": 4.0, "ranks": []}
HELD = {"event": "held", "step": 7, "rule": "held(slow)", "action": "Evict", "asked": None, "ranks": [1, 3]}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (SET, "step 40: hybrid sets the learning rate to 0.200 over 100 steps"),
        (STOP, "step 9: enough ends training (loss 0.500)"),
        (SHADOW, "step 3: shadow(gns) would have asked for another size: 4"),
        (
            HELD,
            "step 7: slow asks for the eviction of rank 1, 3; held back, for its budget of rescales is used up",
        ),
    ],
)
def test_a_decision_beside_the_size_is_one_line(event: dict[str, object], text: str) -> None:
    assert made(**event).one_line() == text


def test_a_decision_that_names_peers_says_whom_and_one_that_keeps_the_size_says_so() -> None:
    decision = {"event": "decision", "step": 9, "rule": "slow", "size": 2, "asked": 2}
    assert made(**decision).one_line() == "step 9: slow wants to stay at 2 peers"
    assert made(**decision, peers=[1], when="replaced").one_line() == "step 9: slow wants peer 1 replaced"


def test_a_superseded_request_for_peers_says_which_and_what_came_before_it() -> None:
    superseded = {"event": "superseded", "step": 50, "rule": "slow", "peers": [1], "when": "replaced"}
    text = "step 50: slow wanted peer 1 replaced; nothing came of it, since the loss of peers came before it"
    assert made(**superseded, by="the loss of peers").one_line() == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"leaving": False}, "peer 2 has trained to the end after 9 steps"),
        ({"leaving": False, "phase": 2}, "peer 2 has trained to the end of fit 2 after 9 steps"),
        ({"leaving": True, "phase": 2}, "peer 2 has left the job after 9 steps"),
    ],
)
def test_a_peer_at_its_end_is_one_line(fields: dict[str, object], text: str) -> None:
    assert made(event="finished", peer=2, steps=9, traces=1, **fields).one_line() == text


def test_parts_of_a_rescale_are_told_in_their_phases() -> None:
    parts = {"later_s": 0.1, "spawn_s": 4.6, "barrier_s": 0.03, "first_step_s": 0.2}
    rescale = made(event="rescale", stop_s=0.5, global_batch_size=8, parts=parts)
    assert [*rescale.details()] == [
        "made ready while training went on: spawn 4.6 s",
        "training stood still for 500 ms (barrier 30 ms, later 100 ms)",
        "the first step after it took 200 ms; the batch is now 8 samples",
    ]
