"""``job.json`` in a job's folder: the address of the job's agent, and the secret that every call must carry.

Only the owner of the file can read it. At the end of the job, the secret is removed and the exit code added.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from kungfu.errors import UsageError
from kungfu.event_log.growing_file import open_regular

NAME = "job.json"
JobState = Literal["running", "over", "unknown"]
ELSEWHERE = "its kungfu-run is not on this machine: it runs on another, or ended before this machine was started"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOST_BYTES = 1 << 16
_START_TICKS = 18  # index among the fields after the state in /proc/PID/stat, see proc(5)


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the job file."""

    job: str
    agent: str  # the address of the job's agent on this host
    secret: str  # the secret of the job; empty when the job is over
    pid: int  # the process id of its kungfu-run
    started: float  # the start of the job, in seconds since 1970
    ended: float | None = None  # the end of the job, in seconds since 1970; ``None`` while it runs
    code: int | None = None  # the exit code of its kungfu-run; ``None`` while it runs
    process: str = ""  # the result of ``identify_process`` for ``pid``, since another process may get this pid later


def write_job_file(folder: Path, content: JobFile) -> None:
    """Writes the job file and moves it into place, so readers see only complete files; may raise ``OSError``."""
    handle, name = tempfile.mkstemp(prefix=".job-", dir=folder)  # made with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        os.replace(name, folder / NAME)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
        raise


def read_job_file(folder: Path) -> JobFile:
    """Reads the file of a job; raises ``UsageError`` if the file does not exist or cannot be read."""
    path = folder / NAME
    try:
        with open_regular(path) as file:
            # The pid becomes part of a path, and another user may have written the file: the types are checked.
            return msgspec.json.decode(file.read(_MOST_BYTES), type=JobFile)
    except (FileNotFoundError, NotADirectoryError):
        what = f"the folder holds no {NAME}" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"{folder}: {what}; give the folder of a job that runs (kungfu-run's --logdir)") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; only the user who started a job may steer it") from error
    except ValueError as error:
        raise UsageError(f"{path} does not hold what this version of kungfu-run writes ({error})") from error


def newest_folder(runs: Path) -> Path:
    """The folder of the newest running job in ``runs``; without a running job, of the newest job.

    Raises ``UsageError`` if there is no job in ``runs``."""
    folders = [path.parent for path in runs.glob(f"*/{NAME}")]
    if not folders:
        raise UsageError(f"no job was found in {runs}/: give the folder of one (kungfu-run's --logdir)")
    return max(folders, key=_began)


def _began(folder: Path) -> tuple[bool, float]:
    """A sort key: first jobs that are over, then running jobs, both sorted by start time."""
    try:
        content = read_job_file(folder)
    except UsageError:
        return False, 0.0
    return is_running(content), content.started


def is_running(content: JobFile) -> bool:
    """True if the kungfu-run that wrote ``content`` still runs on this host."""
    if content.ended is not None:
        return False
    process = identify_process(content.pid)
    return bool(process) and content.process in ("", process)


def state_of(content: JobFile | None) -> JobState:
    """The state of a job by its file; unknown without a file, or if no end is recorded and the kungfu-run of the job is
    not on this machine since its last boot."""
    if content is None:
        return "unknown"
    boot = content.process.partition(" ")[0]
    if content.ended is None and boot and boot != _boot_id():
        return "unknown"
    return "running" if is_running(content) else "over"


def _boot_id() -> str:
    return _BOOT.read_text().strip()


def identify_process(pid: int) -> str:
    """An identity that no other process of this machine ever gets; empty if the process does not exist or has ended."""
    # The boot id and the clock ticks from boot to start: the time of day is unreliable, because clocks can be set.
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else f"{_boot_id()} {fields[_START_TICKS]}"
    except (FileNotFoundError, ProcessLookupError):
        return ""


def end_job_file(folder: Path, *, code: int, now: float) -> None:
    """Marks the job as over and removes its secret; does nothing if the folder is gone."""
    with suppress(UsageError, OSError):
        write_job_file(folder, msgspec.structs.replace(read_job_file(folder), secret="", ended=now, code=code))
