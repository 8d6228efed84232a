"""Policies that name peers: exchanged for ones that are ready, and let go, the lowest rank each time."""

from __future__ import annotations

import json

import pytest

from tests.jobs.harness import ran
from tests.soak import SOAK

pytestmark = pytest.mark.slow


@SOAK
def test_the_lowest_rank_is_replaced_and_the_next_one_evicted_while_the_others_train(tmp_path):
    results = tmp_path / "results"
    ended = ran(tmp_path, "-np", 2, program="naming.py", arguments=[results])
    assert ended.code == 0, ended.output
    assert [event["peers"] for event in ended.all_of("view")] == [[0, 1], [1, 2], [2]]
    decisions = [(event["rule"], event["peers"], event["when"]) for event in ended.all_of("decision")]
    assert [(peers, when) for _, peers, when in decisions] == [([0], "replaced"), ([1], "now")]
    exchanged, evicted = ended.all_of("rescale")
    assert (exchanged["joined"], exchanged["left"], exchanged["global_batch_size"]) == ([2], [0], 6)
    assert (evicted["joined"], evicted["left"], evicted["global_batch_size"]) == ([], [1], 3)
    found = {int(path.stem): json.loads(path.read_text()) for path in results.iterdir()}
    assert {peer: (one["left"], one["stopped"]) for peer, one in found.items()} == {
        0: (True, False),
        1: (True, False),
        2: (False, True),
    }
    assert {one["traces"] for one in found.values()} == {1}


@SOAK
def test_a_replacement_for_a_growing_job_comes_with_the_same_wave(tmp_path):
    """A replacement that is asked for while the job grows comes with the same wave."""
    results = tmp_path / "results"
    ended = ran(tmp_path, "-np", 2, "--max", 3, program="naming.py", arguments=[results, "growing"], deadline_s=180.0)
    assert ended.code == 0, ended.output
    # The third peer was on its way when the fourth was asked for: both come in one view, and rank 0 leaves with it.
    assert [event["peers"] for event in ended.all_of("view")] == [[0, 1], [1, 2, 3]]
    grown, replaced = ended.all_of("decision")
    assert (grown["asked"], replaced["peers"], replaced["when"]) == (3, [0], "replaced")
    assert grown["step"] < replaced["step"]
    (rescale,) = ended.all_of("rescale")
    assert (rescale["rule"], rescale["decided_at"]) == (f"{grown['rule']} and {replaced['rule']}", grown["step"])
    assert (rescale["joined"], rescale["left"], rescale["global_batch_size"]) == ([2, 3], [0], 9)
    assert not ended.all_of("superseded") + ended.all_of("dismissed") + ended.all_of("refused")
    found = {int(path.stem): json.loads(path.read_text()) for path in results.iterdir()}
    assert {peer: one["left"] for peer, one in found.items()} == {0: True, 1: False, 2: False, 3: False}
    assert len({one["weights"] for one in found.values() if not one["left"]}) == 1
