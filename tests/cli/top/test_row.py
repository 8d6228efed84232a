"""A row of ``kungfu top``, of jobs that answer and of those that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kungfu.cli.top.find_jobs import FoundJob
from kungfu.cli.top.row import UsageMeter, last_decision, row_of
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.core.request import Asked, Resize
from kungfu.runtime.job_api.client import connected
from tests.cli.recorded import GROWN, written
from tests.runtime.job_api.served_job import serve_job

ROW = {"step": 7, "epoch": 1, "size": 2, "batch": 64, "loss": 0.5, "samples_per_s": 128.0}


def test_a_job_that_answers_is_shown_with_its_figures_and_its_last_decision(tmp_path: Path) -> None:
    written(tmp_path, GROWN)
    found = FoundJob(os.getpid(), "me", tmp_path)
    with serve_job(tmp_path) as place:
        place.put(NewRecords(rows=(ROW,)))
        row = row_of(found, UsageMeter()).document()
        shown = {"job": "job", "state": "training", "size": 2, "target": 2, "step": 7, "loss": 0.5, "epoch": 2}
        assert row.items() >= {**shown, "samples_per_s": 128.0}.items()
        assert "3 -> 2 peers" in row["decision"]
        assert row["memory_bytes"] is not None
        with connected(tmp_path) as job:
            job.submit(Asked(Resize(3), id="a"))
        row = row_of(found, UsageMeter()).document()
        assert (row["state"], row["size"], row["target"]) == ("resize 3", 2, 3)
    gone = row_of(found, UsageMeter())
    assert gone.status is None
    assert "lost the agent" in gone.state


def test_a_job_without_a_folder_or_one_that_is_over_is_shown_with_the_reason(tmp_path: Path) -> None:
    assert row_of(FoundJob(0, "", tmp_path, "over, with exit code 0"), UsageMeter()).state == "over, with exit code 0"
    row = row_of(FoundJob(2**22 + 1, "you", None, "of another user"), UsageMeter())
    assert (row.state, row.memory_bytes, row.cpu_percent) == ("of another user", None, None)


def test_processor_time_is_that_of_all_processes_since_the_look_before() -> None:
    now = [0.0]
    meter = UsageMeter(clock=lambda: now[0])
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        both = [psutil.Process(child.pid), *psutil.Process(child.pid).children()]
        cpu, memory = meter.look(child.pid)
        assert cpu is None
        assert memory is not None
        assert memory > both[0].memory_info().rss / 2 + both[1].memory_info().rss / 2
        now[0] = 10.0
        used, _ = meter.look(child.pid)
        assert used is not None
        assert 0.0 <= used < 100.0
        child.communicate("\n")
    assert meter.look(child.pid) == (None, None)


def test_a_record_without_a_decision_or_with_damaged_lines_tells_none(tmp_path: Path) -> None:
    assert last_decision(tmp_path) == ""
    (tmp_path / "events.jsonl").write_text('{"event": "record", "version": 4}\n{"event": "deci')
    assert last_decision(tmp_path) == ""


@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_another_users_record_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    assert last_decision(tmp_path) == ""
