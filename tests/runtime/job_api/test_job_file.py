"""The file by which a running job is found."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from kungfu.errors import UsageError
from kungfu.runtime.job_api.job_file import (
    NAME,
    JobFile,
    end_job_file,
    identify_process,
    is_running,
    newest_folder,
    read_job_file,
    write_job_file,
)


def job(started: float) -> JobFile:
    return JobFile("job", "127.0.0.1:1", "5ec2e7", os.getpid(), started)


WHOLE = to_builtins(job(5.0))


def test_only_its_owner_can_read_it_and_nothing_else_is_left_beside_it(tmp_path: Path) -> None:
    write_job_file(tmp_path, job(5.0))
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    end_job_file(tmp_path, code=0, now=6.0)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_an_ended_job_keeps_its_times_and_not_its_secret(tmp_path: Path) -> None:
    write_job_file(tmp_path, job(time.time()))
    assert is_running(read_job_file(tmp_path))
    end_job_file(tmp_path, code=3, now=99.0)
    content = read_job_file(tmp_path)
    assert (content.secret, content.ended, content.code) == ("", 99.0, 3)
    assert not is_running(content)


def test_a_job_runs_whatever_the_clock_says_and_ends_with_its_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as running:
        process = identify_process(running.pid)
        for started in (0.0, time.time() - 3600, time.time() + 3600):  # people set clocks meanwhile
            content = replace(job(started), pid=running.pid, process=process)
            assert is_running(content)
        assert not is_running(replace(content, pid=os.getpid())), "the number is another process's by now"
        running.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(content), "it has ended, though nobody has fetched its exit code yet"
    assert not is_running(content)


def test_the_newest_job_that_runs_comes_before_newer_ones_that_do_not(tmp_path: Path) -> None:
    now = time.time()
    for name, started in (("old", now - 1), ("running", now), ("ended", now + 1)):
        (tmp_path / name).mkdir()
        write_job_file(tmp_path / name, job(started))
    end_job_file(tmp_path / "ended", code=0, now=now + 2)
    assert newest_folder(tmp_path) == tmp_path / "running"
    end_job_file(tmp_path / "running", code=0, now=now + 2)
    end_job_file(tmp_path / "old", code=0, now=now + 2)
    assert newest_folder(tmp_path) == tmp_path / "ended"


def test_a_folder_without_a_job_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the folder holds no job\.json; give the folder of a job that runs"):
        read_job_file(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        read_job_file(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no job was found in"):
        newest_folder(tmp_path)


@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_another_users_job_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(UsageError, match=r"job\.json: is no regular file"):
        read_job_file(tmp_path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "does not hold what this version"),
        (json.dumps({"job": "a", "strange": 1}), "does not hold what this version"),
        (json.dumps({**WHOLE, "pid": "../../tmp/pipe"}), r"Expected `int`, got `str` - at `\$\.pid`"),
        (json.dumps({**WHOLE, "started": [1]}), r"Expected `float`, got `array` - at `\$\.started`"),
        (json.dumps({**WHOLE, "job": "x" * (1 << 17)}), "does not hold what"),
    ],
)
def test_a_file_that_says_something_else_is_a_usage_error(tmp_path: Path, content: str, what: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(UsageError, match=what):
        read_job_file(tmp_path)
