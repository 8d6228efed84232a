"""The commands that steer a job, against a real line to a desk without peers."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.job.profile import Measure, _plotted
from kungfu.cli.job.submit import submit_and_wait
from kungfu.cli.main import main
from kungfu.event_log.events import CheckpointEvent
from kungfu.event_log.record_follower import NewRecords
from kungfu.policies import hybrid_scaling, schedule
from kungfu.runtime.core.cluster.cluster import Starting
from kungfu.runtime.core.cluster.events import TrainingFinished, ViewStarted
from kungfu.runtime.core.request import Asked, Leave, Resize, SaveCheckpoint, SetLimits, StopTraining
from kungfu.runtime.job_api.client import JobOver
from kungfu.runtime.job_api.job_file import JobFile, end_job_file, write_job_file
from kungfu.testing import ClusterModel, Start, run_on_model
from kungfu_planning.profile import read_profile
from tests.cli.conftest import Printed
from tests.cli.recorded import FAILED, GROWN, Events, measured, written
from tests.event_log.made import made, write_record
from tests.jobs.harness import awaited
from tests.runtime.job_api.served_job import ServedJob, serve_job, view

ROW = {"step": 7, "epoch": 1, "size": 2, "batch": 64, "loss": 0.5, "samples_per_s": 128.0}


def served(place: ServedJob, *after: Any) -> threading.Thread:
    """A leader that lets these events happen once it is told something."""

    def serve() -> None:
        awaited(lambda: place.told, what="a request", deadline_s=60.0)
        for event in after:
            place.put(event)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_every_command_says_its_own_to_the_leader(tmp_path: Path, printed: Printed) -> None:
    for words, what in (
        (["resize", 3], Resize(3)),
        (["resize", "--max", 1], SetLimits(1, 1)),
        (["scale-out", 2], Resize(4)),
        (["scale-out", "localhost"], Resize(4, host=0)),
        (["scale-in", 0], Leave((0,), "now", 1)),
        (["migrate", 1, "localhost"], Leave((1,), "replaced", 2, host=0)),
        (["checkpoint"], SaveCheckpoint()),
        (["profile", 1, 4], Resize(4)),
        (["stop"], StopTraining()),
    ):
        with serve_job(tmp_path) as place:
            out = printed(*words, tmp_path, "--no-wait")
            assert [told.what for told in place.told] == [what]
            assert "under way" in out or words[0] == "profile"


def test_a_command_waits_until_it_is_carried_out(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path) as place:
        saved = CheckpointEvent(step=4, rule="kungfu checkpoint", path="ckpt-4", seconds=0.5, stop_s=0.1)
        leader = served(place, NewRecords(events=(saved,)))
        out = printed("checkpoint", tmp_path, "--id", "c")
        leader.join(5.0)
    assert out.startswith("checkpoint: carried out in ")
    assert out.endswith(", view 3: ckpt-4\n")


def test_a_job_that_ends_when_it_is_told_to_stop_has_done_so(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path) as place:
        leader = served(place, TrainingFinished(0, leaving=False))
        assert "training has ended" in printed("stop", tmp_path)
        leader.join(5.0)
        end_job_file(tmp_path, code=0, now=5.0)
        assert "with exit code 0: training ended, and every peer exited normally\n" in printed("status", tmp_path)
        assert "the job is over; it ended with exit code 0" in printed("checkpoint", tmp_path, code=2)


@pytest.mark.parametrize("state", ["carried out", "accepted"])
def test_the_record_says_what_came_of_a_request_as_the_job_ended(tmp_path: Path, state: str) -> None:
    job = ExitStack()
    job.enter_context(serve_job(tmp_path))

    def end(seconds: float) -> None:
        written(tmp_path, [made(event="request", id="r", request="resize 3", state=state, view=4, seconds=1.5)])
        end_job_file(tmp_path, code=0, now=5.0)
        job.close()

    with job if state == "carried out" else pytest.raises(JobOver, match="it ended with exit code 0"):
        progress = submit_and_wait(tmp_path, Asked(Resize(3), id="r"), timeout_s=60.0, pause=end)
        assert (progress.state, progress.view, progress.seconds) == ("carried out", 4, 1.5)


def test_the_status_tells_how_far_the_job_is(tmp_path: Path, printed: Printed) -> None:
    told = {"epoch": 2, "epochs": 10, "samples_left": 6400, "steps_left": 100, "fit": 2}
    rows = [
        {**ROW, "step": step, "time": 1.0 * step, "progress": {"samples": 64 * step, **told}} for step in range(1, 8)
    ]
    with serve_job(tmp_path) as place:
        place.put(NewRecords(rows=tuple(rows)))
        out = printed("status", tmp_path)
        assert "step 7 of 107, epoch 2 of 10 of fit 2, batch 64 samples, loss 0.500\n" in out
        assert "64 samples/s, 448 samples so far, about 2 min left\n" in out
        progress = json.loads(printed("status", tmp_path, "--json"))["progress"]
    assert progress == {"samples": 448, **told, "seconds_left": 100.0}


def test_the_status_says_for_whom_the_job_waits(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path) as place:
        joiner = Starting(time.monotonic())
        people = replace(place.cluster.processes, alive=frozenset({0, 1, 2}))
        place.cluster = replace(place.cluster, starting={2: joiner}, processes=people)
        out = printed("status", tmp_path)
    assert "view 3: 2 peers, on the way to 3 (from 1 to 4, elastic)\nwaits for peer 2 (starting for " in out
    assert "); nothing else that is asked for does\n" in out


def test_the_status_is_told_in_words_and_as_json(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path) as place:
        place.put(NewRecords(rows=(ROW,)))
        printed("resize", "3", tmp_path, "--no-wait", "--id", "r")
        out = printed("status", tmp_path)
        status = json.loads(printed("status", tmp_path, "--json"))
        place.put(NewRecords(rows=({**ROW, "straggler_fractions": {"0": 1.04, "1": 0.5134}},)))
        shown = " ".join(printed("status", tmp_path).split())
        measured = json.loads(printed("status", tmp_path, "--json"))
    assert "view 3: 2 peers, on the way to 3 (from 1 to 4, elastic)" in out
    assert "step 7 of epoch 1, batch 64 samples, loss 0.500" in out
    assert "under way: resize 3 (r), since " in out
    assert "speed" not in out, "nobody measures it"
    assert [(peer["state"], peer["speed"], peer["is_straggler"]) for peer in status["peers"]] == [
        ("training", None, None)
    ] * 2
    assert status["figures"]["samples_per_s"] == 128.0
    assert status["request"]["words"] == "resize 3"
    assert "1.04" in shown
    assert "straggler, 0.513" in shown
    assert shown.count("straggler") == 1
    assert [(peer["speed"], peer["is_straggler"]) for peer in measured["peers"]] == [(1.04, False), (0.5134, True)]


def test_a_hold_is_told_by_the_status_until_it_is_released(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path) as place:
        assert printed("resize", 2, "--hold", 600, "--logdir", tmp_path).startswith(
            "resize 2 --hold 600: carried out in "
        )
        shown = printed("status", tmp_path).splitlines()[2]
        assert re.fullmatch(r"held at 2 by a person until (\S+ )?\d\d:\d\d, 10 min from now", shown)
        assert printed("resize", tmp_path, "--release").startswith("resize --release: carried out in ")
        assert "held" not in printed("status", tmp_path)
        printed("resize", 2, tmp_path, "--hold")
        assert "held at 2 by a person until it is released\n" in printed("status", tmp_path)
        membership = json.loads(printed("status", tmp_path, "--json"))["membership"]
        assert (membership["held_at"], membership["held_for_s"]) == (2, None)
        assert "the job is held at 2" in printed("resize", tmp_path, "--min", 3, code=1)
        assert [told.what for told in place.told] == [Resize(2), SetLimits(), Resize(2)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give N, perhaps with --hold, or --release, or --min and --max"),
        (["--hold", "5"], "give N, perhaps with --hold"),
        (["3", "--release"], "'3': give N"),
        (["3", "--max", "4"], "'3': give N"),
        (["--release", "--hold"], "give N, perhaps with --hold"),
        (["three"], "'three': give N"),
        (["3", "4", "5"], "'4 5': give at most RUN after N"),
    ],
)
def test_a_resize_names_one_change(words: list[str], why: str, printed: Printed) -> None:
    assert f"kungfu resize: {why}" in printed("resize", *words, code=2).replace("'': ", "")


def test_a_hold_of_a_folder_is_refused_with_where_the_folder_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["resize", "2", "--hold", "runs/mine"])
    assert "'runs/mine' is no number of seconds; give RUN before --hold" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "1", "2", "--batches", "64", "runs/mine"])
    assert "'runs/mine' is no number of samples; give RUN before --batches" in capsys.readouterr().err


def over(folder: Path, events: Events, code: int | None) -> Path:
    """The folder of a job that is over."""
    rows = [measured(step, progress={"samples": 32 * step, "epochs": 9}) for step in range(1, 480)]
    rows[-1]["batch"] = 8  # the rest of the epoch
    ended = None if code is None else 131.0
    write_job_file(folder, JobFile("ab12", "", "", 1 << 30, 100.0, ended=ended, code=code))
    return written(folder, events, metrics=rows)


def test_the_status_after_the_end_is_a_summary(tmp_path: Path, printed: Printed) -> None:
    saved = made(event="checkpoint", time=128.0, step=479, path="kept/ckpt-479", seconds=0.5, stop_s=0.1)
    folder = over(tmp_path, (*GROWN[:-1], saved, GROWN[-1]), 0)
    lines = printed("status", folder).splitlines()
    assert lines[0] == f"job ab12 in {folder}"
    assert re.fullmatch(r"over since .*, with exit code 0: training ended, and every peer exited normally", lines[1])
    assert lines[2] == "step 479 of epoch 0, loss 0.00418"
    assert lines[3:5] == [
        "in all 20.0 s of training", "  2 rescales, for which training stood still for 200 ms (1 % of it)"
    ]  # fmt: skip
    assert lines[-2:] == ["newest checkpoint: kept/ckpt-479", f"what was decided, and why: kungfu why {folder}"]
    given = json.loads(printed("status", folder, "--json"))
    assert (given["job"], given["ended"], given["code"], given["has_failed"]) == ("ab12", 131.0, 0, False)
    assert (given["figures"]["step"], given["progress"]["samples"]) == (479, 15_328)
    assert (given["figures"]["global_batch_size"], round(given["figures"]["samples_per_s"])) == (32, 32)
    assert given["totals"]["rescales"] == 2


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        (FAILED, 1, "failed since .*, with exit code 1: rank 1 \\(peer 1\\): killed by SIGKILL"),
        (GROWN[:9], None, r"over: its kungfu-run \(process \d+\) ended without a word"),
        (GROWN[:9], 130, "over since .*, with exit code 130: ended by Ctrl-C"),
        (GROWN, None, r"over: its kungfu-run \(process \d+\) ended without a word"),
        (GROWN, 7, "over since .*, with exit code 7: an exit code of the program"),
        (
            (*GROWN[:9], *(made(event="host", host=host, name="h") for host in (0, 1))),
            0,
            ".*: this host has left the job.*",
        ),
    ],
)
def test_the_status_of_a_job_that_failed_or_was_killed_is_no_error(
    tmp_path: Path, printed: Printed, events: Events, code: int | None, said: str
) -> None:
    folder = over(tmp_path, events, code)
    assert re.fullmatch(said, printed("status", folder).splitlines()[1])
    given = json.loads(printed("status", folder, "--json"))
    # The record of a kungfu-run that was killed may tell the end of the job all the same.
    assert (given["code"], given["has_failed"]) == (code, code != 0 and (code is not None or events is not GROWN))


def test_without_a_job_every_command_is_one_message_and_code_2(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed("stop", code=2).startswith("kungfu stop: no job was found in runs/")
    assert printed("resize", "2", "nowhere", code=2).startswith("kungfu resize: nowhere: there is no such folder")


def test_a_profile_is_printed_written_and_drawn(tmp_path: Path, printed: Printed) -> None:
    def lines(size: int, speed: float) -> NewRecords:
        return NewRecords(rows=({**ROW, "size": size, "samples_per_s": speed},) * 20)

    write_record(tmp_path, {"event": "started", "size": 2, "command": ["python", "train.py"], "attachment": "local"})
    with serve_job(tmp_path) as place:
        leader = served(place, lines(2, 30.0), ViewStarted(view(4, 0)), lines(1, 20.0), ViewStarted(view(5, 0, 2)))
        assert "75%" in printed("profile", "1", "2", tmp_path, "--steps", "5")
        leader.join(5.0)
    document, profile = json.loads((tmp_path / "profile.json").read_text()), read_profile(tmp_path / "profile.json")
    found = tuple(document[name] for name in ("state", "program", "attachment"))
    assert found == ("carried out", ["python", "train.py"], "local")
    assert (profile.points, profile.batch) == ({1: 20.0, 2: 30.0}, ROW["batch"])
    sizes = [(one["size"], one["samples_per_s"], one["efficiency"]) for one in document["sizes"]]
    assert sizes == [(1, 20.0, 1.0), (2, 30.0, 0.75)]
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_a_profile_of_batches_has_the_sizes_of_one_batch_after_the_other(tmp_path: Path, printed: Printed) -> None:
    def lines(size: int, batch: int, speed: float) -> NewRecords:
        return NewRecords(rows=({**ROW, "size": size, "batch": batch, "samples_per_s": speed},) * 20)

    write_record(tmp_path, {"event": "started", "size": 2, "command": ["python", "train.py"], "attachment": "local"})
    with serve_job(tmp_path) as place:
        place.put(lines(2, 64, 30.0))
        events = [lines(2, 64, 30.0), lines(2, 128, 40.0), ViewStarted(view(4, 0)), lines(1, 64, 40.0)]
        events += [lines(1, 128, 25.0), ViewStarted(view(5, 0, 2)), lines(2, 64, 30.0)]
        leader = served(place, *events)
        out = printed("profile", "1", "2", tmp_path, "--steps", "5", "--batches", "64", "128")
        leader.join(5.0)
    assert re.search(r"128 \| +2 \| +40 \| +20 \| +80%", out)
    sizes = json.loads((tmp_path / "profile.json").read_text())["sizes"]
    found = [(one["batch"], one["size"], one["samples_per_s"], one["efficiency"]) for one in sizes]
    assert found == [(64, 1, 40.0, 1.0), (64, 2, 30.0, 0.375), (128, 1, 25.0, 1.0), (128, 2, 40.0, 0.8)]
    of_64, of_128 = read_profile(tmp_path / "profile.json").by_batch()
    assert (of_64.batch, of_64.points, of_128.batch, of_128.points) == (64, {1: 40.0, 2: 30.0}, 128, {1: 25.0, 2: 40.0})
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    # The policy reads the same file: 64 samples keep one peer busy, 128 two.
    measured = hybrid_scaling.from_profile(tmp_path / "profile.json", program="train.py", batch=64)
    model = ClusterModel({1: 40, 2: 60}, steps=20, start=Start(size=1, global_batch_size=64))
    assert run_on_model([schedule({5: 2}), measured], model).samples > 20 * 64


def test_what_is_refused_or_not_carried_out_in_time_is_code_1(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path):
        reason = "a size of 9: this job takes 1 to 4 (kungfu-run --min, --max)"
        assert printed("resize", "9", tmp_path, code=1) == f"resize 9: refused: {reason}\n"
        out = printed("scale-in", "1", "--if-view", "2", "--json", "--logdir", tmp_path, code=1)
        assert json.loads(out)["state"] == "refused"
        out = printed("resize", "3", tmp_path, "--id", "r", "--timeout", "0.01", code=1)
        assert "resize 3: under way as 'r'; the same command with --id r waits for it" in out


def test_without_matplotlib_a_profile_has_no_plot_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert _plotted([Measure(1, 20.0, 1.0, 5, 8.0)], tmp_path / "profile.png") == []
    assert "kungfu profile: no plot is drawn: it needs matplotlib; pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
