"""Settings, shadows and notes, in words."""

from __future__ import annotations

import pytest

from kungfu.cli.report.sentence import sentence

SET = {"event": "set", "step": 40, "rule": "hybrid", "what": "learning rate", "to": 0.2, "over": 100.0, "unit": "steps"}
STOP = {"event": "set", "step": 9, "rule": "enough", "what": "stop", "to": None, "over": 0.0, "saw": {"loss": 0.5}}
SHADOW = {"event": "shadow", "step": 3, "rule": "shadow(gns)", "action": "Rescale", "asked": 4.0, "ranks": []}
NOTED = {"event": "noted", "step": 7, "rule": "slow", "action": "Evict", "asked": None, "ranks": [1, 3]}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (SET, "step 40: hybrid sets the learning rate to 0.200 over 100 steps"),
        (STOP, "step 9: enough ends training (loss 0.500)"),
        (SHADOW, "step 3: shadow(gns) would have asked for another size: 4"),
        (NOTED, "step 7: slow asks for the eviction of rank 1, 3; written down, not carried out"),
    ],
)
def test_a_decision_beside_the_size_is_one_sentence(event, text):
    assert sentence(event) == text
