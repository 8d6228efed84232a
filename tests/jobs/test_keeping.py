"""Registered values, hooks and checkpoints of whole jobs."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from kungfu.cli.main import main
from kungfu.cli.run import main as kungfu_run
from kungfu.runtime.checkpoints.folder import find
from kungfu.runtime.checkpoints.manifest import read_manifest
from kungfu.trace import read_trace, replay
from tests.jobs.harness import QUICKLY_S, ROOT, left_in, lines_of, ran, started
from tests.soak import SOAK

SAMPLES = 4000


def steps_reported(results: Path) -> list[tuple[int, list[int]]]:
    """The steps done and the samples taken, by every peer in every step."""
    lines = [line for path in results.iterdir() for line in lines_of(path)]
    return [(line[0], line[1]) for line in lines if isinstance(line, list)]


def endings(results: Path) -> list[dict]:
    return [line for path in sorted(results.iterdir()) for line in lines_of(path) if isinstance(line, dict)]


def test_a_job_killed_while_it_writes_continues_from_the_last_checkpoint(tmp_path, capsys):
    """A job that is killed while it writes, in a folder of its own, continues with more peers from the last one."""
    first, second, kept = (tmp_path / name for name in ("first", "second", "kept"))
    first.mkdir()
    second.mkdir()
    words = ["--results", first / "results", "--every", 10, "--still", kept]
    with started(first, "-np", 2, "--checkpoints", kept, program="kept.py", arguments=words) as job:
        job.event("checkpoint")
        name = job.event("started")["job"]
        job.seen(lambda: list(kept.glob(f".writing-{name}-*")), what="a checkpoint being written", deadline_s=180)
        other = ["-np", "1", "--logdir", str(tmp_path / "other"), "--checkpoints", str(kept), sys.executable, "-c", ""]
        assert kungfu_run(other) == 2
        assert f"in use: job {name} writes its checkpoints there" in " ".join(capsys.readouterr().err.split())
        job.signal(signal.SIGKILL)
        # Its peers do not outlive it: nothing may be left after this block.
        job.end(code=-signal.SIGKILL, deadline_s=60)
    assert list(kept.glob(".writing-*")), "it was killed in the middle"
    manifest = read_manifest(find(kept))
    assert manifest.step == 11, "asked for in step 10, and written at the barrier of the next"

    words = ["--results", second / "results", "--every", 1000]
    ended = ran(second, "-np", 3, "--resume", kept, program="kept.py", arguments=words)
    before = [samples for done, samples in steps_reported(first / "results") if done <= manifest.step]
    after = steps_reported(second / "results")
    assert min(done for done, _ in after) == manifest.step + 1
    counts = Counter(sample for samples in [*before, *(samples for _, samples in after)] for sample in samples)
    assert counts == Counter(range(SAMPLES)), "each sample exactly once"
    assert {row["batch"] for row in ended.metrics} == {20}, "the batch goes on, with any number of peers"
    assert ended.metrics[0]["progress"] == {
        "samples": 240, "epoch": 1, "epochs": 1, "samples_left": SAMPLES - 240, "steps_left": 188
    }  # fmt: skip
    found = endings(second / "results")
    assert len({one["weights"] for one in found}) == 1
    assert [one["counted"] for one in found] == [{"steps": 200}] * 3
    assert {tuple(one["mean"]) for one in found} == {(0.5,)}, "of the peers 0 and 1 that were there"
    assert [one["traces"] for one in found] == [1, 1, 1]


@pytest.mark.parametrize("how", ["killed-writing", "killed-when-asked"])
def test_a_checkpoint_that_rank_0_did_not_live_to_write_is_written_by_the_next(tmp_path, capsys, how):
    with started(tmp_path, "-np", 2, "--failures", 0, program="failing.py", arguments=[how]) as job:
        job.steps(1)
        if how == "killed-when-asked":
            assert main(["checkpoint", "--logdir", str(job.folder)]) == 0
            assert "carried out" in capsys.readouterr().out
        written = job.event("checkpoint")
        job.signal(signal.SIGTERM)
        ended = job.end(code=143, deadline_s=QUICKLY_S)
    assert [event["peer"] for event in ended.all_of("lost")] == [0]
    assert written["rule"] == ("keeping" if how == "killed-writing" else "kungfu checkpoint")
    assert find(ended.folder / "checkpoints") == Path(written["path"])
    assert len(ended.all_of("checkpoint")) == 1


def test_a_joiner_that_alone_is_left_before_its_first_step_has_the_registered_values(tmp_path):
    """They are as they were before the step of the barrier that admitted it, which the record says."""
    options, arguments = ("-np", 1, "--max", 2, "--failures", 0), ["joined", 1, tmp_path]
    ended = ran(tmp_path, *options, program="half_heard.py", arguments=arguments)
    assert ended.sizes == [1, 2, 1]
    (recovered,) = ended.all_of("recovered")
    assert recovered["registered_before"] == recovered["step"] > 0
    assert f"registered values from before step {recovered['step']}" in ended.output
    found = left_in(tmp_path)[1]
    assert found["counted"] == found["steps"] - 1, "what the program did after the last step of the old peer is lost"


def test_all_peers_go_back_to_a_named_checkpoint_whatever_happens_meanwhile(tmp_path):
    """In the barrier in which a peer joins; again as rank 0 is killed over the file; and in the step of a stop."""
    kept, results = tmp_path / "kept", tmp_path / "results"
    options = ("-np", 2, "--max", 3, "--failures", 0, "--checkpoints", kept, "--keep", "2,best")
    arguments = ["--results", results, "--record", tmp_path / "log" / "events.jsonl"]
    ended = ran(tmp_path, *options, program="going_back.py", arguments=arguments)
    assert ended.sizes == [2, 3, 2]
    restored = ended.all_of("restored")
    assert [(one["name"], one["saved_step"]) for one in restored] == [("good", 6)] * 3
    joined, killed, stopped = (one["at_step"] for one in restored)
    assert (ended.all_of("rescale")[0]["step"], ended.all_of("recovered")[0]["step"]) == (joined, killed)
    began: dict[int, set[tuple[float, ...]]] = {}
    lines = [line for path in results.iterdir() for line in lines_of(path) if isinstance(line, list)]
    for done, _, weights in lines:
        began.setdefault(done, set()).add(tuple(weights))
    assert all(len(weights) == 1 for weights in began.values()), "equal on all peers, to the last bit"
    good = began[7]
    assert began[joined + 1] == began[killed + 1] == good != began[joined]
    found = endings(results)
    assert ({tuple(one["weights"]) for one in found}, len({one["all"] for one in found})) == (good, 1)
    taken = Counter(sample for _, samples, _ in lines for sample in samples)
    assert (max(taken.values()), len(taken)) == (1, 20 * joined + 30 * (stopped - joined)), "each sample once"

    # The last steps of the rank 0 that was killed may not be in the record.
    loss = {row["step"]: row["loss"] for row in ended.metrics}
    written = [one["step"] for one in ended.all_of("checkpoint") if one["step"] not in (joined, killed, stopped)]
    best = read_manifest(find(kept / "best"))
    assert best.signals["mean_loss"] == loss.get(best.step, best.signals["mean_loss"])
    assert best.signals["mean_loss"] <= min(loss[step] for step in written if step in loss)
    assert killed < max(written), "a checkpoint was compared after rank 0 was lost"
    assert find(kept / "good").name == "step-00000006"
    assert len({path.resolve() for path in kept.glob("step-*")}) <= 4, "the newest two, and those with names"


@pytest.mark.parametrize("reads_s", [0.0, pytest.param(14.0, marks=SOAK)])
def test_the_recipe_of_early_stopping_ends_a_fit_with_its_best_model_on_all_peers(tmp_path, capsys, reads_s):
    """The recipe is that of the cookbook; the second number without improvement ends training.

    If the checkpoint is read for longer than the peers wait for each other, the readers are not late. Before that, the
    first one is killed in the middle of its reading."""
    cookbook = (ROOT / "docs" / "policies.md").read_text()
    recipe = re.search(r"```python\n(@kf.policy\ndef early_stopping.*?)```", cookbook, flags=re.DOTALL)
    (tmp_path / "recipe.py").write_text(f"import kungfu as kf\n\n\n{recipe[1]}")
    policy, results = f"{tmp_path / 'recipe.py'}:early_stopping(patience=2)", tmp_path / "results"
    options = ("-np", 3, "--failures", 0, "--deadline", 8) if reads_s else ("-np", 2)
    arguments = ["--results", results, "--reads-s", reads_s]
    ended = ran(tmp_path, *options, "--policy", policy, program="stopping_early.py", arguments=arguments)
    assert ended.sizes == ([3, 2] if reads_s else [2])
    (restored,) = ended.all_of("restored")
    # Fed after each epoch of 5 steps: better after 5, 10 and 15 steps, and worse after 20 and 25.
    assert (restored["step"], restored["at_step"], restored["saved_step"]) == (26, 27, 17)
    assert restored["saw"]["since_best"] == 2
    found = left_in(results)
    assert len(found) == 2
    for one in found.values():
        assert one["stopped"]
        assert one["trainable"] == one["steps"]["17"] != one["steps"]["27"]
        assert one["on_train_end"] == [one["all"]] == [found[max(found)]["all"]], "with the statistics of layers"
        assert one["epochs"] == [0, 1, 2, 3, 4, 5]
    trace = read_trace(ended.folder)
    again = replay(trace.plan, trace, whose="the run's")
    assert (again.differences, [one.step for one in again.decisions]) == ((), [6, 11, 16, 26, 26])
    assert main(["why", str(ended.folder)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{restored['rule']} restores the checkpoint 'best' of step 17" in told
