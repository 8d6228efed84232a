"""Jobs that lose all their peers, their kungfu-run or all their hosts, and go on from their newest checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.main import main
from kungfu.cli.run import main as kungfu_run
from kungfu.trace import read_trace, replay
from tests.jobs.convex_runs import on_one_host
from tests.jobs.harness import Ended, Job, lines_of

KEEPING = """
import kungfu as kf


@kf.policy
def keeping(training, *, every):
    return kf.control.every(every).checkpoint()
"""
EPOCHS, EVERY = 40, 20


def options(tmp_path: Path, *, restarts: int = 3) -> list[object]:
    """A checkpoint every so many steps, and restarts from them."""
    (tmp_path / "keeping.py").write_text(KEEPING)
    return ["--restarts", restarts, "--policy", f"{tmp_path / 'keeping.py'}:keeping(every={EVERY})"]


def after(job: Job, step: int) -> None:
    """Waits until steps well beyond a checkpoint of a later step than this one are in the record."""

    def is_there() -> bool:
        kept = [event["step"] for event in lines_of(job.folder / "events.jsonl") if event["event"] == "checkpoint"]
        rows = lines_of(job.folder / "metrics.jsonl")
        return bool(kept and rows) and max(kept) > step and rows[-1]["step"] > max(kept) + 3

    job.seen(is_there, what=f"a checkpoint after step {step}", deadline_s=180.0)


def in_one_piece(ended: Ended, restarts: int, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The restarts of a job, whose record must read as that of one job, each step of which counts once."""
    found = ended.all_of("restarted")
    assert len(found) == restarts
    views = [event["version"] for event in ended.all_of("view")]
    assert views == sorted(set(views)), "each view has a number of its own"
    spawned = [event["peer"] for event in ended.all_of("spawned")]
    assert len(spawned) == len({*spawned})
    steps = [row["step"] for row in ended.metrics]
    for one in found:
        assert (one["step"] == 0) is not one.get("path", "").endswith(f"step-{one['step']:08d}")
        assert one["step"] + 1 in steps, "it went on right after the checkpoint"
    capsys.readouterr()
    assert main(["why", str(ended.folder)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("the job starts again from the checkpoint of step") == sum(one["step"] > 0 for one in found)
    assert f"{restarts} restart" in told
    assert "not in metrics.jsonl" not in told.replace("kungfu-run was lost before it received", "")
    trace = read_trace(ended.folder)
    assert [one.step for one in trace.steps] == sorted({one.step for one in trace.steps})
    assert replay(trace.plan, trace, whose="the run's").differences == ()
    return found


def test_peers_and_then_kungfu_run_are_killed_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = options(tmp_path)
    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, steered):
        after(job, 0)
        again = [*map(str, line), "-np", "2", "--logdir", str(job.folder), "true"]
        assert kungfu_run(again) == 2
        assert f"is in use: kungfu-run, process {job.process.pid} on " in capsys.readouterr().err
        for peer in (0, 1):
            job.signal(signal.SIGKILL, peer=peer)
        first = job.event("restarted")
        assert first["why"].endswith("killed by SIGKILL")
        after(job, first["step"])
        job.signal(signal.SIGKILL)
        killed = job.end(code=-signal.SIGKILL, deadline_s=60.0)
    with (killed.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1')  # it was killed within a line

    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, _):
        second = job.event("restarted", deadline_s=60.0, first_peer=4)
        steered.hurry()
        ended = job.end()
    steered.ended(ended)
    assert in_one_piece(ended, 2, capsys)[1] == second
    assert 0 < first["step"] < second["step"]
    assert (second["path"], second["size"]) == (str(ended.folder / "checkpoints" / f"step-{second['step']:08d}"), 2)
    assert [event["file"] for event in ended.all_of("gap")] == ["metrics.jsonl"]

    # The supervisor starts it once more, or somebody removes what it needs.
    assert kungfu_run(again) == 0
    assert "is over" in capsys.readouterr().err


def test_a_job_goes_on_with_the_peers_of_its_checkpoint_and_names_damaged_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*options(tmp_path), "--keep", 9]
    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, steered):
        steered.resize(3)
        job.event("rescale", to=3)
        after(job, job.event("rescale")["step"] + 2 * EVERY)
        job.signal(signal.SIGTERM)
        folder = job.end(code=143, deadline_s=60.0).folder
    kept = sorted((folder / "checkpoints").glob("step-*"))
    (kept[-1] / "state.index").unlink()
    steered.hurry()
    with on_one_host(tmp_path, *line, size=2, epochs=EPOCHS) as (job, _):
        ended = job.end()
    steered.ended(ended)
    (found,) = in_one_piece(ended, 1, capsys)
    assert (found["why"], found["nth"], found["size"]) == ("SIGTERM had ended it", 0, 3)
    assert (found["path"], found["damaged"]) == (str(kept[-2]), [str(kept[-1])])
