"""Jobs whose peers are not alike: refused where they compute something else, evened out where they only round."""

from __future__ import annotations

import pytest

from tests.jobs.harness import ran
from tests.soak import SOAK


def test_peers_whose_policies_differ_by_the_order_of_a_sum_do_not_train(tmp_path):
    """Nor do those that have drawn a number of their optimizer."""
    ended = ran(tmp_path, "-np", 2, program="unlike.py", arguments=["order"], code=2)
    (failed,) = ended.all_of("failed")
    assert "policies: peer 0 has c = a + b in rule summed [unlike.py:" in failed["error"]
    assert "peer 1 has c = b + a in rule summed [unlike.py:" in failed["error"]
    assert "optimizers: peer 0 has SGD.momentum = 0.91, peer 1 has SGD.momentum = 0.87" in failed["error"]
    assert failed["error"] in ended.output
    assert ended.metrics == []


@pytest.mark.parametrize("how", ["rate", "noise", "graph"])
def test_a_change_on_one_peer_between_two_steps_ends_the_job_at_the_next_comparison(tmp_path, how):
    code = 1 if how == "graph" else 2  # what is raised in a loop in the graph is TensorFlow's exception to the program
    ended = ran(tmp_path, "-np", 2, "--compare-every", 6, program="unlike.py", arguments=[how], code=code)
    assert "model/sequential/dense/kernel of rank 1 is not that of rank 0, by up to " in ended.output
    assert ("; optimizer/sgd/learning_rate too;" in ended.output) == (how == "rate")
    assert "a callback or the program has changed it on one peer only" in ended.output
    done = (ended.folder / "peers" / "peer-0.log").read_text().count("step done")
    before = 1 if how == "graph" else 0  # the first step is called from Python
    assert done == 6 - before, "the checksum of the states before step 7 rides on its message"


@SOAK
def test_peers_that_round_in_another_way_train_on_with_what_rank_0_has(tmp_path):
    """Prebuilt gns_batch, whose folds hold norms, and weights that follow from a norm, with 1 and 4 threads."""
    options = ("-np", 2, "--failures", 0, "--attachment", "horovod")
    ended = ran(tmp_path, *options, program="unlike.py", arguments=["clipped"])
    (machines,) = ended.all_of("machines differ")
    assert machines["usual"].startswith("1 thread, ")
    assert machines["others"]["1"].startswith("4 threads, ")
    rounded = ended.all_of("rounded")
    assert rounded, "else nothing was tried"
    names = {one["name"] for event in rounded for one in event["widest"]}
    assert names & {"policy/kungfu/fold_0/0", "model/sequential/dense/kernel"}
    assert all(one["difference"] <= 1e-4 * one["largest"] for event in rounded for one in event["widest"])
    assert "differed by rounding" in ended.output
