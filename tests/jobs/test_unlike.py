"""Jobs whose peers are not alike: refused where they compute something else, evened out where they only round."""

from __future__ import annotations

import pytest

from tests.jobs.harness import lines_of, ran, started

pytestmark = pytest.mark.slow


def test_peers_whose_policies_differ_by_the_order_of_a_sum_do_not_train(tmp_path):
    ended = ran(tmp_path, "-np", 2, program="unlike.py", arguments=["order"])
    assert ended.code == 2, ended.output
    (failed,) = ended.all_of("failed")
    assert "policies: peer 0 has c = a + b in rule summed [unlike.py:" in failed["error"]
    assert "peer 1 has c = b + a in rule summed [unlike.py:" in failed["error"]
    assert failed["error"] in ended.output
    assert ended.metrics == []


def test_a_joiner_whose_policy_was_edited_is_refused_once_and_the_others_train_on(tmp_path):
    file = tmp_path / "enough"
    options = ("-np", 2, "--max", 3)
    with started(tmp_path, *options, program="unlike.py", arguments=["joiner", file]) as job:
        dismissed = job.event("dismissed", peer=2)
        refused = job.event("refused")
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 20)
        file.touch()
        ended = job.end()
    assert ended.code == 0, ended.output
    assert "peer 0 has ((step % 5) == 0) & " in dismissed["reason"]
    assert "peer 2 has ((step % 7) == 0) & " in dismissed["reason"]
    assert "in rule summed [unlike.py:" in dismissed["reason"]
    assert refused["asked"] == 3
    assert [event["peer"] for event in ended.all_of("spawned")] == [0, 1, 2], "nobody comes in its place"
    assert ended.sizes == [2]
