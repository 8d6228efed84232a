"""Command lines, programs and policies that cannot work: exit code 2, one screen that says what to do, nothing left."""

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
