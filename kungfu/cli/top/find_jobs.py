"""Finds the jobs of this machine by their kungfu-run processes, which hold the files of their records open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from kungfu.errors import UsageError
from kungfu.runtime.job_api.job_file import ELSEWHERE, read_job_file, state_of

_RECORD = "events.jsonl"


@dataclass(frozen=True)
class FoundJob:
    """A job of this machine.

    Args:
        pid: The process id of the job's kungfu-run; 0 if the folder names no process.
        folder: The folder of the job's record; ``None`` if this user has no access.
        remark: The reason why the job cannot be inspected, or a note that the job is over; empty for a running job.
    """

    pid: int
    user: str
    folder: Path | None
    remark: str = ""


def find_jobs(folders: Sequence[Path] = (), processes: Iterable[psutil.Process] | None = None) -> list[FoundJob]:
    """The jobs of all users on this machine, ordered by process id, followed by the jobs in ``folders``.

    Args:
        folders: The folders of jobs that are always listed, even if they are over.
        processes: The processes to search; by default all processes of this machine.
    """
    found = {job.pid: job for one in processes or psutil.process_iter() if (job := _job_of(one)) is not None}
    seen = {job.folder.resolve() for job in found.values() if job.folder is not None}
    listed = [_job_in(folder) for folder in folders if folder.resolve() not in seen]
    return [*(found[pid] for pid in sorted(found)), *listed]


def is_kungfu_run(words: Sequence[str]) -> bool:
    """True for a command line of kungfu-run.

    >>> is_kungfu_run(["/usr/bin/python", "/venv/bin/kungfu-run", "-np", "2", "python", "train.py"])
    True
    >>> is_kungfu_run(["python", "-m", "kungfu.cli.run", "-np", "2"]), is_kungfu_run(["less", "kungfu-run"])
    (True, False)
    """
    # The interpreter may have options before the module.
    if "-m" in words[:4] and "kungfu.cli.run" in words[:5]:
        return words[words.index("-m") + 1] == "kungfu.cli.run"
    is_python = bool(words) and os.path.basename(words[0]).startswith("python")
    return any(os.path.basename(word) == "kungfu-run" for word in words[: 2 if is_python else 1])


def _job_of(process: psutil.Process) -> FoundJob | None:
    """The job of a kungfu-run; ``None`` for any other process."""
    try:
        with process.oneshot():
            if not is_kungfu_run(process.cmdline()) or process.status() == psutil.STATUS_ZOMBIE:
                return None
            user = process.username()
        folder = next(_folders(process), None)
    # The process has ended meanwhile.
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return FoundJob(process.pid, _user_of(process), None, "of another user, who alone may look into it")
    remark = "" if folder is not None else "its record cannot be found yet: it starts, or its disk is full"
    return FoundJob(process.pid, user, folder, remark)


def _folders(process: psutil.Process) -> Iterator[Path]:
    """Yields the folder whose record this kungfu-run process holds open, if the job file there names the process."""
    for file in process.open_files():
        folder = Path(file.path).parent
        if Path(file.path).name == _RECORD and _names(folder, process.pid):
            yield folder


def _names(folder: Path, pid: int) -> bool:
    try:
        return read_job_file(folder).pid == pid
    # The job file is written shortly after the record is begun.
    except UsageError:
        return False


def _user_of(process: psutil.Process) -> str:
    try:
        return process.username()
    except psutil.Error:
        return ""


def _job_in(folder: Path) -> FoundJob:
    """The job of a folder whose kungfu-run is not among the processes found: it is over, or on another machine."""
    try:
        content = read_job_file(folder)
        user = folder.owner()
    except UsageError as error:
        return FoundJob(0, "", folder, str(error))
    except (OSError, KeyError):
        user = ""
    if content.ended is not None:
        return FoundJob(content.pid, user, folder, f"over, with exit code {content.code}")
    remarks = {"running": "", "unknown": ELSEWHERE, "over": "ended without a word"}
    return FoundJob(content.pid, user, folder, remarks[state_of(content)])
