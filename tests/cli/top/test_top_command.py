"""``kungfu top``: once, for programs, and on a terminal until a key is pressed."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from kungfu.cli.top.find_jobs import FoundJob
from kungfu.cli.top.row import JobRow
from kungfu.cli.top.top_command import shown
from kungfu.event_log.progress import TrainingProgress
from kungfu.runtime.job_api.status import JobMetrics, JobStatus, MembershipStatus
from tests.cli.conftest import Printed
from tests.runtime.job_api.served_job import serve_job


def test_a_job_whose_folder_is_given_is_shown_once_and_for_programs(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path):
        (row,) = [one for one in json.loads(printed("top", "--json", tmp_path)) if one["folder"] == str(tmp_path)]
        assert (row["size"], row["state"], row["cpu_percent"] is None) == (2, "training", False)
        assert tmp_path.name in printed("top", "--once", tmp_path)
    rows = json.loads(printed("top", "--json", tmp_path / "nowhere"))
    assert any("no such folder" in one["state"] for one in rows), "a folder without a job is no error"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_job_is_told_whole_on_narrow_and_wide_terminals(width: int) -> None:
    status = JobStatus(
        "job", "elastic", MembershipStatus(1, 2, 3, 1, 8), (), JobMetrics(41, 3, 64, 0.25, 3900.0),
        progress=TrainingProgress(epoch=3, epochs=40, seconds_left=720.0),
    )  # fmt: skip
    night, decision = FoundJob(7, "nobody-here", Path("/runs/night")), "step 40, grow: 2 -> 3 peers"
    row = JobRow(night, "training", status, 180.0, 1_400_000_000, decision)
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(shown([row, JobRow(FoundJob(9, "you", None), "of another user")], width=width))
    text = console.file.getvalue()
    lines, said = text.splitlines(), " ".join(text.split())
    assert max(map(len, lines)) <= width
    if width < 130:
        for pair in ("peers 2 -> 3", "samples/s 3,900", "epoch 3 of 40", "left 12 min", "cpu 180 %", "memory 1.4 GB"):
            assert any(pair in line for line in lines), f"{pair} is broken"
        assert [line for line in lines if not line.startswith("  ")] == [lines[0], lines[-1]], "jobs and nothing else"
        assert lines[-1] == "process 9 of you  of another user", "of which no figure is known"
    for words in ("night", "of nobody-here", "2 -> 3", "3,900", "3 of 40", "12 min", "180 %", "1.4 GB", "grow", "9"):
        assert words in said, said
    assert "process 9" in said
    assert "no job runs" in str(shown([], width=width))


def test_a_pace_that_nobody_can_follow_is_refused(printed: Printed) -> None:
    assert "--every 0: must be from 0.2" in printed("top", "--every", "0", code=2)


@pytest.mark.slow
def test_on_a_terminal_it_looks_again_and_again_until_q_is_pressed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "kungfu.cli.main", "top", "--every", "0.2", str(tmp_path / "nowhere")]
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as top:
        os.close(theirs)
        said, deadline = b"", time.monotonic() + 120.0
        while said.count(b"q ends") < 3:
            said += os.read(ours, 1 << 16)
            assert time.monotonic() < deadline
        os.write(ours, b"q")
        try:
            while os.read(ours, 1 << 16):
                assert time.monotonic() < deadline
        # The terminal has no other end any more.
        except OSError:
            pass
        assert top.wait(60.0) == 0
    os.close(ours)
