"""Checkpoints, in words."""

from __future__ import annotations

from kungfu.cli.report import tell
from kungfu.cli.report.sentence import sentence

KEPT = {
    "time": 8.0, "event": "checkpoint", "step": 40, "rule": "keeping", "path": "c/step-00000040", "bytes": 999,
    "seconds": 0.25, "stop_s": 0.002,
}  # fmt: skip
FAILED = {"event": "checkpoint", "step": 41, "rule": "keeping", "path": "c", "error": "No space left", "seconds": 0.1}


def test_a_checkpoint_is_one_sentence():
    assert sentence(KEPT) == "step 40: a checkpoint of 999 bytes is in c/step-00000040, as keeping asked"
    assert sentence(FAILED) == "step 41: no checkpoint could be written to c: No space left"


def test_the_story_says_how_long_it_took_and_that_training_went_on_without_one():
    first, second, *_ = tell([KEPT, FAILED])
    assert first.details == ("rank 0 held the others for 2 ms, and wrote for 250 ms while all trained on",)
    assert second.details == ("training went on without it; what was there before is as it was",)
