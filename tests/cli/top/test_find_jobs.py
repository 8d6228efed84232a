"""The jobs of this machine, found by processes that are called like kungfu-run and do nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from kungfu.cli.top.find_jobs import find_jobs, is_kungfu_run
from kungfu.runtime.job_api.job_file import ELSEWHERE, JobFile, end_job_file, identify_process, write_job_file

PROGRAM = """
import sys
with open(sys.argv[1] + "/events.jsonl", "a"):
    print("open", flush=True)
    sys.stdin.read()
"""


@contextmanager
def pretended(folder: Path, *, named: bool = True) -> Iterator[psutil.Process]:
    """A process that holds the record in ``folder`` open; its job file is there if it is ``named``."""
    folder.mkdir()
    program = folder / "kungfu-run"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        pid = process.pid
        if named:
            lasting = {"started": time.time(), "process": identify_process(pid)}
            write_job_file(folder, JobFile("job", "127.0.0.1:1", "5ec2e7", pid, **lasting))
        yield psutil.Process(pid)
        process.communicate()


def test_a_job_is_found_by_the_record_that_its_process_holds_open(tmp_path: Path) -> None:
    with pretended(tmp_path / "a") as one, pretended(tmp_path / "b", named=False) as starting:
        found = {job.pid: job for job in find_jobs(processes=[psutil.Process(), one, starting])}
        assert found.keys() == {one.pid, starting.pid}
        assert (found[one.pid].folder, found[one.pid].remark) == (tmp_path / "a", "")
        assert found[one.pid].user == one.username()
        assert found[starting.pid].folder is None
        assert "cannot be found yet" in found[starting.pid].remark
        assert one.pid in {job.pid for job in find_jobs()}, "among all processes of the machine"
        assert len(find_jobs([tmp_path / "a"], processes=[one])) == 1, "once, also where its folder is given"
    assert find_jobs(processes=[one]) == [], "it has ended meanwhile"


def test_folders_of_jobs_that_are_over_or_hold_none_are_told(tmp_path: Path) -> None:
    over, stale, other, _ = folders = [tmp_path / name for name in ("over", "stale", "other", "nothing")]
    for folder in folders:
        folder.mkdir()
    earlier = f"{identify_process(os.getpid()).split()[0]} 1"
    for folder, process in ((over, earlier), (stale, earlier), (other, "another-boot 1")):
        write_job_file(folder, JobFile("job", "127.0.0.1:1", "5ec2e7", os.getpid(), 1.0, process=process))
    end_job_file(over, code=3, now=2.0)
    remarks = [job.remark for job in find_jobs([*folders, tmp_path / "nowhere"], processes=[psutil.Process()])]
    assert remarks[:3] == ["over, with exit code 3", "ended without a word", ELSEWHERE]
    assert "holds no job.json" in remarks[3]
    assert "there is no such folder" in remarks[4]


def test_a_job_of_another_user_is_told_without_a_folder() -> None:
    class Foreign(psutil.Process):
        def cmdline(self) -> list[str]:
            return ["/usr/bin/kungfu-run", "-np", "2"]

        def open_files(self) -> list[object]:
            raise psutil.AccessDenied(self.pid)

    (job,) = find_jobs(processes=[Foreign()])
    assert (job.folder, "another user" in job.remark) == (None, True)


def test_only_kungfu_run_itself_is_taken_for_it() -> None:
    assert is_kungfu_run(["/venv/bin/kungfu-run", "-np", "2"])
    assert is_kungfu_run(["python3.11", "-X", "dev", "-m", "kungfu.cli.run", "-np", "2"])
    assert not is_kungfu_run(["python", "train.py", "kungfu-run"])
    assert not is_kungfu_run(["python", "-m", "kungfu.cli.main", "top"])
    assert not is_kungfu_run([])
