"""``evaluate`` and ``predict`` that the peers of a job share, each sample once, whoever is lost over it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.jobs.harness import left_in, ran

SAMPLES, BATCHES = 70, 12


def test_peers_share_evaluation_and_do_the_part_of_one_that_is_killed(tmp_path):
    """Peers share validation, `evaluate` and `predict`, and do the part of one that is killed."""
    ended = ran(
        tmp_path, "-np", 3, "--min", 1, "--max", 3, program="keras_evaluate.py", arguments=[tmp_path], deadline_s=280.0
    )
    assert ended.sizes[:2] == [3, 2]
    one, other = left_in(tmp_path).values()
    in_epoch_0 = sorted(one["batches 0"] + other["batches 0"])
    assert len(in_epoch_0) == 8, "a third of 12 each"
    assert len(set(in_epoch_0)) == 8
    for when in ("1", "2", "after"):
        assert sorted(one[f"batches {when}"] + other[f"batches {when}"]) == list(range(BATCHES)), when
        assert one[f"seen {when}"] == other[f"seen {when}"] == [1.0] * SAMPLES, "each sample once"
        assert one[f"loss {when}"] == other[f"loss {when}"]
    assert sorted(one["batches 1"][:4] + other["batches 1"][:4]) == in_epoch_0, "what they had done is not done again"
    for plain, shared in one["at the end"]:
        assert shared == pytest.approx(plain, rel=1e-12)
    assert one["history"] == other["history"]

    names = [name for name in one["plain"] if name != "loss"]
    for found in (one, other):
        assert found["after"] == one["after"], "equal numbers on all peers"
        assert found["dataset"] == one["dataset"]
        np.testing.assert_allclose(found["after"][0], found["plain"]["loss"], rtol=1e-12)
        for name in ("loss", *names):
            np.testing.assert_allclose(found["dataset"][name], found["plain"][name], rtol=1e-12)
        for name in ("predict", "predict dataset"):
            assert found[name] == one["predict"]
            np.testing.assert_allclose(found[name], found["plain predict"], rtol=1e-12)
    assert one["few"] == pytest.approx(other["few"], rel=1e-12)
    # Other data on each peer: each evaluates its own, and is told.
    assert one["others"] != other["others"]
    assert ended.output.count("model.evaluate() was done by each peer alone: not all called it, or they gave it") == 2
    # Called on one peer only: it is told that the other has left, and does not hang.
    leader = one if one["rank"] == 0 else other
    assert leader["alone"] == pytest.approx(leader["plain"], rel=1e-12)
    assert re.search(r"model.evaluate\(\) is not shared among the peers from here on, .* rank=1 left", ended.output)
