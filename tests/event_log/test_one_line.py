"""Events in words: in one line, in a line of status, and which policy won, where several share one job."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kungfu.event_log.events import DecisionEvent, RefusedEvent
from tests.event_log.made import KINDS, made

# What another event says better, or what is shown only when a run is looked at afterwards.
SILENT = ("record", "phase", "spawned", "offered", "peer ended", "span", "rules")
REQUEST = {"event": "request", "id": "r", "request": "resize 3", "seconds": 4.2}
GAP = {"event": "gap", "file": "metrics.jsonl", "from": 10.0, "to": 22.5, "lines": 50, "error": "Input/output error"}
KEPT = {
    "event": "checkpoint", "step": 40, "rule": "keeping", "path": "c/step-40", "bytes": 999, "seconds": 0.25,
    "stop_s": 0.002,
}  # fmt: skip
SET = {"event": "set", "step": 40, "rule": "hybrid", "what": "learning rate", "to": 0.2, "over": 100.0, "unit": "steps"}
HELD = {"event": "held", "step": 7, "rule": "held(slow)", "action": "Evict", "asked": None, "ranks": [1, 3],
        "budget": "2 rescales in 500 steps"}  # fmt: skip
REFUSED = {"event": "refused", "rule": "grow", "asked": 8, "size": 6, "reason": "no slot"}
DECISION = {"event": "decision", "step": 9, "rule": "slow", "size": 2, "asked": 2}
FINISHED = {"event": "finished", "peer": 2, "steps": 9, "traces": 1}
STARTED = {"event": "started", "job": "j", "command": ["python", "train.py"]}
SPARE = {"event": "spare", "peer": 4}
LATE = {"event": "late", "in": "gradients", "step": 811, "waited_s": 15.0}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_event_has_a_line_or_is_silent(kind: str) -> None:
    assert bool(made(event=kind).one_line()) == (kind not in SILENT)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({**REQUEST, "state": "accepted"}, "kungfu resize 3: accepted"),
        ({**REQUEST, "state": "carried out"}, "kungfu resize 3: carried out after 4.2 s"),
        (
            {**REQUEST, "state": "carried out", "reason": "it was so already"},
            "kungfu resize 3: carried out after 4.2 s (it was so already)",
        ),
        ({**REQUEST, "state": "refused", "reason": "it is over"}, "kungfu resize 3: refused (it is over)"),
        (
            {"event": "unrecorded", "file": "events.jsonl", "error": "No space left on device"},
            "events.jsonl cannot be written (No space left on device): training continues, and so does the record when "
            "it can be written again",
        ),
        (GAP, "metrics.jsonl lacks 50 lines of 12.5 s, which could not be written (Input/output error)"),
        (KEPT, "step 40: a checkpoint of 999 bytes is in c/step-40, as keeping asked"),
        ({**KEPT, "bytes": 1234567}, "step 40: a checkpoint of 1.2 MB is in c/step-40, as keeping asked"),
        ({**KEPT, "bytes": 2_500_000_000}, "step 40: a checkpoint of 2.5 GB is in c/step-40, as keeping asked"),
        ({**KEPT, "bytes": None}, "step 40: a checkpoint of unknown size is in c/step-40, as keeping asked"),
        ({**KEPT, "error": "No space left"}, "step 40: no checkpoint could be written to c/step-40: No space left"),
        (SET, "step 40: hybrid sets the learning rate to 0.200 over 100 steps"),
        (
            {**SET, "over": 0.0, "decided_at": 12},
            "step 40: hybrid sets the learning rate to 0.200, as decided at step 12",
        ),
        (
            {**DECISION, "rule": "grow", "asked": 4, "settings": "a learning rate of 0.4", "done": "2 more come"},
            "step 9: grow wants 4 peers instead of 2 with a learning rate of 0.4; 2 more come",
        ),
        (
            {"event": "superseded", "step": 9, "rule": "grow", "asked": 4, "by": "hook", "settings": "a batch of 8"},
            "step 9: grow wanted 4 peers with a batch of 8; nothing came of it, since hook came before it",
        ),
        (
            {**REFUSED, "settings": "a learning rate of 0.4", "global_batch_size": 384},
            "grow wanted 8 peers, which cannot be had: no slot; training continues with 6 and a batch of 384, without "
            "a learning rate of 0.4",
        ),
        ({**SET, "what": "stop", "to": None, "saw": {"loss": 0.5}}, "step 40: hybrid ends training (loss 0.500)"),
        (
            {"event": "shadow", "step": 3, "rule": "shadow(gns)", "action": "Rescale", "asked": 4.0, "ranks": []},
            "step 3: shadow(gns) would have asked for another size: 4",
        ),
        (HELD, "step 7: slow asks for the eviction of rank 1, 3; held: 2 rescales in 500 steps are used up"),
        (DECISION, "step 9: slow wants to stay at 2 peers"),
        ({**DECISION, "peers": [1], "when": "replaced"}, "step 9: slow wants peer 1 replaced"),
        (
            {**DECISION, "event": "superseded", "peers": [1], "when": "replaced", "by": "the loss of peers"},
            "step 9: slow wanted peer 1 replaced; nothing came of it, since the loss of peers came before it",
        ),
        ({**FINISHED, "leaving": False}, "peer 2 has trained to the end after 9 steps"),
        ({**FINISHED, "leaving": False, "phase": 2}, "peer 2 has trained to the end of fit 2 after 9 steps"),
        ({**FINISHED, "leaving": True, "phase": 2}, "peer 2 has left the job after 9 steps"),
        ({**STARTED, "size": 1}, "1 peer starts: python train.py"),
        ({**STARTED, "size": 2}, "2 peers start: python train.py"),
        (
            {**STARTED, "size": 2, "spares": 2},
            "2 peers start: python train.py (2 spares follow: each needs the memory of a peer)",
        ),
        (
            {**STARTED, "size": 1, "spares": 1, "spare_level": "loaded"},
            "1 peer starts: python train.py (1 spare follows: it needs the memory of a process with TensorFlow, and no "
            "device)",
        ),
        ({**SPARE, "state": "ready", "memory_bytes": 412345678}, "peer 4 waits as a spare, with 412.3 MB of memory"),
        ({**SPARE, "state": "wanted"}, "peer 4, a spare, is wanted"),
        (
            {**SPARE, "state": "lost", "how": "exit code 1", "retry_s": 4.0},
            "peer 4, a spare, has ended (exit code 1); another starts in 4.0 s",
        ),
        ({**LATE, "ranks": [1]}, "rank 1 is late in gradients after step 811: 15.0 s so far, but it is alive"),
        (
            {**LATE, "ranks": [1, 3]},
            "ranks 1 and 3 are late in gradients after step 811: 15.0 s so far, but they are alive",
        ),
        (
            {"event": "shadow dissent", "view": 3, "shadows": {"0": "shadow(grow) asks for 2 at step 50", "1": ""}},
            "rules in the shadow differ between the peers of view 3: rank 0: shadow(grow) asks for 2 at step 50; "
            "rank 1: nothing",
        ),
    ],
)
def test_an_event_is_one_line(event: dict[str, Any], text: str) -> None:
    assert made(**event).one_line() == text


@pytest.mark.parametrize(
    ("error", "details"), [("no memory", ["its last error: no memory"]), ("exit code 1", []), ("", [])]
)
def test_the_last_error_of_a_lost_peer_is_shown_unless_its_end_says_it(error: str, details: list[str]) -> None:
    event = made(event="lost", peer=2, rank=1, how="it ended with exit code 1", error=error)
    assert event.one_line() == "rank 1 (peer 2) is lost: it ended with exit code 1" + " (no memory)" * bool(details)
    assert [*event.details()] == [*details, "what it printed is in peers/peer-2.log"]


@pytest.mark.parametrize(
    ("version", "peers", "headline"),
    [
        (1, [0, 1], "training begins with 2 peers: peers 0 and 1"),
        (2, [0], "view 2 is in force, 1 peer: peer 0"),
    ],
)
def test_training_begins_with_the_first_view_only(version: int, peers: list[int], headline: str) -> None:
    """A person who reads what happened looks for the loss or the join before a later view."""
    assert made(event="view", version=version, peers=peers).headline() == headline


def test_parts_of_a_rescale_are_shown_in_their_phases() -> None:
    parts = {"later_s": 0.1, "spawn_s": 4.6, "barrier_s": 0.03, "first_step_s": 0.2}
    rescale = made(event="rescale", stop_s=0.5, global_batch_size=8, parts=parts)
    assert [*rescale.details()] == [
        "made ready while training continued: spawn 4.6 s",
        "training stood still for 500 ms (barrier 30 ms, later 100 ms)",
        "the first step after it took 200 ms; the batch is now 8 samples",
    ]


@pytest.mark.parametrize(
    ("rule", "won", "lost", "saw", "words"),
    [
        # What the record says counts, whatever the rule is called.
        *((rule, ["b"], ["a", "c"], {"a": 4.0, "b": 2.0, "c": 3.0}, "a wanted 4, b wanted 2, c wanted 3: b won")
          for rule in ("at_most(a, b, c)", "at_least(a, b, c)", "first(a, b, c)", "my own name")),
        ("at_most(a, b)", ["a", "b"], [], {"a": 2.0, "b": 2.0}, "a wanted 2, b wanted 2: a and b won"),
        # A policy that has no target yet takes no part.
        ("first(a, b, c)", ["b"], ["c"], {"a": math.nan, "b": 3.0, "c": 4.0}, "b wanted 3, c wanted 4: b won"),
        ("at_most(a, b)", [], ["a"], {"a": 4.0, "b": math.nan}, "a wanted 4: none won"),
        # Policies of one name are distinguished by a number.
        ("at_most(a, a)", ["a_2"], ["a"], {"a": 4.0, "a_2": 3.0}, "a wanted 4, a_2 wanted 3: a_2 won"),
        ("gns_batch", [], [], {"size": 2.0}, ""),
        ("at_most(a, b)", [], [], {"a": 2.0}, ""),
        ("first(at_most(a, b), c)", ["at_most(a, b)"], ["c"], {"at_most(a, b)": 2.0, "c": 5.0},
         "at_most(a, b) wanted 2, c wanted 5: at_most(a, b) won"),
    ],
)  # fmt: skip
def test_a_contest_is_shown_with_who_won_and_a_plain_rule_has_none(
    rule: str, won: list[str], lost: list[str], saw: dict[str, float], words: str
) -> None:
    event = made(event="decision", rule=rule, saw=saw, won=won, lost=lost)
    assert isinstance(event, DecisionEvent)
    assert event.contest() == [words] * bool(words)


@pytest.mark.parametrize(
    ("asked", "peers", "words"),
    [
        (4, (), "4 peers"),
        (3, (1,), "others in place of peer 1"),
        (4, (0, 1), "4 peers and others in place of peers 0 and 1"),
        (3, (), "3 peers"),
    ],
)
def test_a_refusal_says_the_size_and_the_peers_for_whom_nobody_came(
    asked: int, peers: tuple[int, ...], words: str
) -> None:
    event = made(event="refused", rule="slow", asked=asked, size=3, reason="no host has a free slot", peers=peers)
    assert isinstance(event, RefusedEvent)
    assert event.requested() == words
    assert event.one_line() == (
        f"slow wanted {words}, which cannot be had: no host has a free slot; training continues with 3"
    )
