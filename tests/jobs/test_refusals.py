"""Command lines, programs, policies and peers that cannot work: one screen that says what to do, and nothing left."""

from __future__ import annotations

import pytest

from tests.jobs.harness import PROGRAMS, Ended, ran
from tests.soak import SOAK

SCREEN_LINES = 40


def refused(ended: Ended, *words: str) -> None:
    """An error of one screen with these words."""
    printed = ended.output[ended.output.rindex("kungfu-run: ") :]  # what the peers printed by themselves stands above
    for word in words:
        assert word in printed, ended.output
    assert len(printed.splitlines()) <= SCREEN_LINES, printed


def test_a_script_that_does_not_exist_is_refused_before_anything_starts(tmp_path):
    """One line as a process of its own; the other ones that cannot work are in tests/cli/test_run.py."""
    ended = ran(tmp_path, "-np", 2, program=tmp_path / "missing.py", code=2)
    refused(ended, "missing.py", "no such script")
    assert not ended.folder.exists()


@pytest.mark.parametrize(
    ("how", "size", "words"),
    [
        ("no-attach", 2, ("kf.attach()", "without calling")),
        ("no-step", 1, ("@training.step", "never called")),
        ("before-attach", 1, ("PolicyError", "every 0 steps")),
        ("local-target", 1, ("PolicyError", "all_reduce")),
        ("one-thread", 1, ("UsageError", "inter_op_parallelism_threads")),
        ("small-batch", 2, ("batch_size=1", "2 peers")),
    ],
)
def test_a_program_that_cannot_work_ends_the_job_with_the_message(tmp_path, how, size, words):
    options = ("-np", size, "--deadline", 10)
    ended = ran(tmp_path, *options, program="failing.py", arguments=[how], executed=how == "no-attach", code=2)
    refused(ended, *words)
    assert ended.all_of("failed")[0]["code"] == 2


def test_a_conflict_with_the_command_line_is_told_once_with_both_places(tmp_path):
    options = ("--deadline", 10, "--policy", "schedule({20: 2})", "--policy", "linear_scaling()")
    ended = ran(tmp_path, "-np", 2, *options, program="failing.py", arguments=["two-targets"], code=2)
    refused(ended, "PolicyError: policies 'schedule', 'schedule' all rescale the cluster", "kf.at_most(schedule, ")
    line = 1 + (PROGRAMS / "failing.py").read_text().splitlines().index('    "two-targets": [schedule({10: 1})],')
    assert f"({PROGRAMS / 'failing.py'}:{line}; kungfu-run --policy 'schedule({{20: 2}})')" in ended.output
    assert ended.output.count("nothing says which one wins") == 1
    assert "Traceback" not in ended.output


@SOAK
def test_the_policies_of_the_command_line_join_those_of_the_program(tmp_path):
    policy = tmp_path / "shrinking.py"
    policy.write_text(
        "import kungfu as kf\n\n\n"
        "@kf.policy\n"
        "def from_step(training, first, *, peers):\n"
        "    return kf.control.always().when(training.step >= first).rescale(peers)\n"
    )
    spec = f"{policy}:from_step(3, peers=1)"
    arguments = ["--results", tmp_path / "results", "--epochs", 2]
    options = ("--policy", spec, "--policy", "linear_scaling()")
    ended = ran(tmp_path, "-np", 2, *options, program="network.py", arguments=arguments)
    assert ended.sizes == [2, 1]
    assert ended.all_of("decision")[0]["rule"] == "from_step"
    assert ended.all_of("decision")[0]["step"] == 3
    assert [event["rule"] for event in ended.all_of("set")] == ["linear_scaling"]


@pytest.mark.parametrize(
    ("how", "fitted", "words"),
    [
        ("never", 0, ("has not loaded kungfu", "each peer would train a model of its own")),
        ("around", 2, ("on the model that kf.attach() was given", "goes around training.step")),
    ],
)
def test_fit_of_keras_is_told_at_its_start_where_it_would_train_the_peers_apart(tmp_path, how, fitted, words):
    # What is forked has loaded kungfu.
    ended = ran(tmp_path, "-np", 1, program="fitting.py", arguments=[how], executed=how == "never", code=2)
    refused(ended, "UsageError: model.fit() was called", *words, "write the loop with kf.attach()")
    printed = (ended.folder / "peers" / "peer-0.log").read_text()
    assert printed.count("fit is over\n") == fitted
    assert printed.count("kungfu: model.fit() before kf.attach(): each peer trains this model apart") == bool(fitted)


# ---- peers that are not alike: evened out where they only round ------------------------------------------------------


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
