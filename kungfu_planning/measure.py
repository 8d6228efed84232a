"""Profiling before planning: trains a program in a separate job, measures the job at several sizes, and ends the job.

The job is run by `kungfu-run` and measured by `kungfu profile`, both as processes: planning shares no code with
training.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from kungfu.errors import UsageError

_BEGIN_WITHIN_S = 300.0
_ASK_EVERY_S = 0.2
_MEASURE_WITHIN_S = 3600.0
_END_WITHIN_S = 120.0
_END_AT_ONCE_WITHIN_S = 20.0  # a platform that signals this command kills the command soon afterwards


def measure(command: str, *, low: int, high: int, say: Callable[[str], None]) -> Path:
    """Trains a program with ``low`` to ``high`` peers on this host, and returns the file of its profile.

    The job has ended when this function returns or raises, also at one of the signals named below. The job's record
    remains in a folder of `runs/`.

    Args:
        command: the program as written after `kungfu-run`, such as ``python train.py --small``.
        low: the minimum number of peers, at least 1.
        high: the maximum number of peers.
        say: called with each line of text about the progress.

    Raises:
        UsageError: The command cannot be run, or the job ends or fails before it was measured.
        SystemExit: on SIGINT, SIGTERM or SIGHUP.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--profile {command!r}: {error}; write it as in a shell") from error
    if words and words[0].endswith(".py"):
        words = [sys.executable, *words]
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"--profile {command!r}: there is no program {words[0] if words else ''!r}; write 'python train.py'"
        )
    runs = Path("runs")
    try:
        runs.mkdir(exist_ok=True)
        record = Path(tempfile.mkdtemp(prefix="profile-", dir=runs)) / "record"
    except OSError as error:
        raise UsageError(f"runs: {error.strerror}; call this where a folder runs can be written") from error
    say(f"measuring {' '.join(words)} with {low} to {high} peers; its output and record: {record.parent}")
    with (record.parent / "output").open("wb") as output, _Signals() as signals:
        starting = _command("kungfu-run", "-np", low, "--min", low, "--max", high, "--logdir", record, "--", *words)
        job = subprocess.Popen(starting, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            with signals.raised():
                _await_job(job, record=record, output=record.parent / "output")
                profile = _measured(record, low=low, high=high)
        finally:
            _end(job, record=record, at_once=signals.received is not None)
    say(f"measured: {profile}")
    return profile


class _Signals:
    """Remembers signals that would end this process, or raises them as ``SystemExit``, so that a job can end first."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._raise()

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Within the block, raises ``SystemExit`` at the first signal; outside of it, signals are only remembered."""
        try:
            self._raises = True
            self._raise()
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            if self._raises:
                self._raise()

    def _raise(self) -> None:
        if self.received is not None:
            raise SystemExit(128 + self.received)


def _command(program: str, *words: object) -> list[str]:
    """The command line of a program of kungfu, found next to this interpreter, else on PATH."""
    name, *command = program.split()
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise UsageError(f"there is no program {name} beside {sys.executable} or on PATH; install kungfu there")
    return [found, *command, *map(str, words)]


def _await_job(job: subprocess.Popen[bytes], *, record: Path, output: Path) -> None:
    """Waits until the job trains; raises ``UsageError`` if the job ends earlier, or does not train within 5 minutes."""
    until = time.monotonic() + _BEGIN_WITHIN_S
    while time.monotonic() < until:
        if job.poll() is not None:
            lines = output.read_text(errors="replace").splitlines()
            said = next((line for line in reversed(lines) if line.startswith("kungfu-run: ")), f"see {output}")
            raise UsageError(f"the job ended with code {job.returncode} before it was measured: {said}")
        asked = _command("kungfu status", record, "--json")
        answer = subprocess.run(asked, capture_output=True, check=False)
        # Of a job that is over, the command prints a summary, which names no membership.
        if answer.returncode == 0 and json.loads(answer.stdout).get("membership", {}).get("size", 0) > 0:
            return
        time.sleep(_ASK_EVERY_S)
    raise UsageError(f"the job did not begin to train within {_BEGIN_WITHIN_S:g} s; its output is in {output}")


def _measured(record: Path, *, low: int, high: int) -> Path:
    asking = _command("kungfu profile", low, high, record, "--timeout", f"{_MEASURE_WITHIN_S:g}")
    asked = subprocess.run(asking, capture_output=True, text=True, check=False)
    profile = record / "profile.json"
    if asked.returncode or not profile.exists():
        said = (asked.stderr.strip() or asked.stdout.strip()).splitlines()
        raise UsageError(f"the job was not measured ({said[-1] if said else asked.returncode}); its record is {record}")
    state = json.loads(profile.read_bytes()).get("state")
    if state != "carried out":
        raise UsageError(f"the profile {profile} is {state}: train longer, or give fewer sizes with --profile-sizes")
    return profile


def _end(job: subprocess.Popen[bytes], *, record: Path, at_once: bool) -> None:
    """Ends the job by `kungfu stop`, or ``at_once`` by SIGTERM; a job that does not end in time is killed."""
    if at_once:
        job.terminate()
    elif job.poll() is None:
        subprocess.run(_command("kungfu stop", record), capture_output=True, check=False)
    for ending in (job.terminate, job.kill):
        try:
            job.wait(_END_AT_ONCE_WITHIN_S if at_once else _END_WITHIN_S)
            return
        except subprocess.TimeoutExpired:
            ending()
    job.wait()
