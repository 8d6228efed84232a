"""The commands that steer a job, against a real line to a desk without peers."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.job.submit import submit_and_wait
from kungfu.cli.main import main
from kungfu.event_log.events import CheckpointEvent
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.core.cluster.cluster import Starting
from kungfu.runtime.core.cluster.events import TrainingFinished, ViewStarted
from kungfu.runtime.core.request import Asked, Leave, Resize, SaveCheckpoint, StopTraining
from kungfu.runtime.job_api.client import JobOver
from kungfu.runtime.job_api.job_file import end_job_file
from kungfu_planning.profile import read_profile
from tests.cli.recorded import written
from tests.event_log.made import made, write_record
from tests.runtime.job_api.served_job import ServedJob, serve_job, view

ROW = {"step": 7, "epoch": 1, "size": 2, "batch": 64, "loss": 0.5, "samples_per_s": 128.0}


def demands_of(place: ServedJob, *words: object) -> list[Asked]:
    """What the leader is told because of a command that does not wait."""
    place.told.clear()
    assert main([*map(str, words), str(place.folder), "--no-wait"]) == 0
    return place.told


def served(place: ServedJob, *after: Any) -> threading.Thread:
    """A leader that lets these events happen once it is told something."""

    def serve() -> None:
        told = threading.Event()
        while not place.told:
            assert not told.wait(0.01)
        for event in after:
            place.put(event)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_every_command_says_its_own_to_the_leader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, what in (
        (["resize", 3], Resize(3)),
        (["scale-out", 2], Resize(4)),
        (["scale-in", 0], Leave((0,), "now", 1)),
        (["migrate", 1, "localhost"], Leave((1,), "replaced", 2, host=0)),
        (["checkpoint"], SaveCheckpoint()),
        (["profile", 1, 4], Resize(4)),
        (["stop"], StopTraining()),
    ):
        with serve_job(tmp_path) as place:
            (told,) = demands_of(place, *words)
            assert told.what == what
            assert "under way" in capsys.readouterr().out or words[0] == "profile"


def test_a_command_waits_until_it_is_carried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_job(tmp_path) as place:
        saved = CheckpointEvent(step=4, rule="kungfu checkpoint", path="ckpt-4", seconds=0.5, stop_s=0.1)
        leader = served(place, NewRecords(events=(saved,)))
        assert main(["checkpoint", str(tmp_path), "--id", "c"]) == 0
        leader.join(5.0)
    out = capsys.readouterr().out
    assert out.startswith("checkpoint: carried out in ")
    assert out.endswith(", view 3: ckpt-4\n")


def test_what_is_refused_is_code_1_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_job(tmp_path):
        assert main(["resize", "9", str(tmp_path)]) == 1
        assert capsys.readouterr().out == (
            "resize 9: refused: a size of 9: this job takes 1 to 4 (kungfu-run --min, --max)\n"
        )
        assert main(["scale-in", "1", "--if-view", "2", "--json", "--logdir", str(tmp_path)]) == 1
        assert json.loads(capsys.readouterr().out)["state"] == "refused"


def test_what_is_not_carried_out_in_time_is_code_1_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_job(tmp_path):
        assert main(["resize", "3", str(tmp_path), "--id", "r", "--timeout", "0.01"]) == 1
    assert "resize 3: under way as 'r'; the same command with --id r waits for it" in capsys.readouterr().out


def test_a_job_that_ends_when_it_is_told_to_stop_has_done_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_job(tmp_path) as place:
        leader = served(place, TrainingFinished(0, leaving=False))
        assert main(["stop", str(tmp_path)]) == 0
        leader.join(5.0)
        assert "training has ended" in capsys.readouterr().out
        end_job_file(tmp_path, code=0, now=5.0)
        assert main(["status", str(tmp_path)]) == 2
    assert "the job is over; it ended with exit code 0" in capsys.readouterr().err


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


def test_the_status_tells_how_far_the_job_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"epoch": 2, "epochs": 10, "samples_left": 6400, "steps_left": 100, "fit": 2}
    rows = [
        {**ROW, "step": step, "time": 1.0 * step, "progress": {"samples": 64 * step, **told}} for step in range(1, 8)
    ]
    with serve_job(tmp_path) as place:
        place.put(NewRecords(rows=tuple(rows)))
        assert main(["status", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "step 7 of 107, epoch 2 of 10 of fit 2, batch 64 samples, loss 0.500\n" in out
        assert "128 samples/s, 448 samples so far, about 2 min left\n" in out
        assert main(["status", str(tmp_path), "--json"]) == 0
    progress = json.loads(capsys.readouterr().out)["progress"]
    assert progress == {"samples": 448, **told, "seconds_left": 100.0}


def test_the_status_says_for_whom_the_job_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_job(tmp_path) as place:
        joiner = Starting(time.monotonic())
        people = replace(place.cluster.processes, alive=frozenset({0, 1, 2}))
        place.cluster = replace(place.cluster, starting={2: joiner}, processes=people)
        assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "view 3: 2 peers, on the way to 3 (from 1 to 4, elastic)\nwaits for peer 2 (starting for " in out
    assert "); nothing else that is asked for does\n" in out


def test_the_status_is_told_in_words_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_job(tmp_path) as place:
        place.put(NewRecords(rows=(ROW,)))
        assert main(["resize", "3", str(tmp_path), "--no-wait", "--id", "r"]) == 0
        assert main(["status", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "view 3: 2 peers, on the way to 3 (from 1 to 4, elastic)" in out
        assert "step 7 of epoch 1, batch 64 samples, loss 0.500" in out
        assert "under way: resize 3 (r), since " in out
        assert main(["status", str(tmp_path), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [peer["state"] for peer in status["peers"]] == ["training", "training"]
    assert status["figures"]["samples_per_s"] == 128.0
    assert status["request"]["words"] == "resize 3"
    assert [(peer["speed"], peer["is_straggler"]) for peer in status["peers"]] == [(None, None)] * 2, (
        "nobody measures it"
    )


def test_the_status_tells_which_peers_straggle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_job(tmp_path) as place:
        assert main(["status", str(tmp_path)]) == 0
        assert "speed" not in capsys.readouterr().out
        place.put(NewRecords(rows=({**ROW, "straggler_fractions": {"0": 1.04, "1": 0.5134}},)))
        assert main(["status", str(tmp_path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "1.04" in shown
        assert "straggler, 0.513" in shown
        assert shown.count("straggler") == 1
        assert main(["status", str(tmp_path), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [(peer["speed"], peer["is_straggler"]) for peer in status["peers"]] == [(1.04, False), (0.5134, True)]


def test_peers_are_numbers_and_the_last_word_may_be_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["one"], ["nowhere", "1"], ["1", "here", "there"]):
        assert main(["scale-in", *words]) == 2
        assert "give the ids of peers, as kungfu status shows them" in capsys.readouterr().err


def test_without_a_job_every_command_is_one_message_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["stop"]) == 2
    assert capsys.readouterr().err.startswith("kungfu stop: no job was found in runs/")
    assert main(["resize", "2", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("kungfu resize: nowhere: there is no such folder")


def test_a_profile_is_printed_written_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines(size: int, speed: float) -> NewRecords:
        return NewRecords(rows=({**ROW, "size": size, "samples_per_s": speed},) * 20)

    write_record(tmp_path, {"event": "started", "size": 2, "command": ["python", "train.py"], "attachment": "local"})
    with serve_job(tmp_path) as place:
        leader = served(place, lines(2, 30.0), ViewStarted(view(4, 0)), lines(1, 20.0), ViewStarted(view(5, 0, 2)))
        assert main(["profile", "1", "2", str(tmp_path), "--steps", "5"]) == 0
        leader.join(5.0)
    document = json.loads((tmp_path / "profile.json").read_text())
    assert (document["state"], document["program"], document["attachment"]) == (
        "carried out",
        ["python", "train.py"],
        "local",
    )
    assert read_profile(tmp_path / "profile.json").points == {1: 20.0, 2: 30.0}
    assert read_profile(tmp_path / "profile.json").batch == ROW["batch"]
    assert [(one["size"], one["samples_per_s"], one["efficiency"]) for one in document["sizes"]] == [
        (1, 20.0, 1.0),
        (2, 30.0, 0.75),
    ]
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert "75%" in capsys.readouterr().out
