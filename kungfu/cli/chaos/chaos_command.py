"""``kungfu chaos RUN``: injects a schedule of faults into a running job, and reports the guarantees that held.

No process stays frozen after this command, however it ends: see ``kungfu.testing.faults.freezer``.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from kungfu.cli.chaos.outcome import injection_line, print_report, report_chaos
from kungfu.cli.chaos.precheck import PrecheckedFault, precheck, print_precheck
from kungfu.cli.chaos.samples import check_epochs, check_steps, read_steps, trace_offset
from kungfu.cli.report.reader import read_events, read_rows, rows_between
from kungfu.cli.run_folder import add_job_folder, job_folder
from kungfu.errors import UsageError
from kungfu.event_log.job import JobHost
from kungfu.event_log.values import counted
from kungfu.runtime.core.request import Asked, Resize, SaveCheckpoint
from kungfu.runtime.job_api.job_file import NAME as JOB_FILE
from kungfu.runtime.job_api.job_file import JobFile, is_running, read_job_file
from kungfu.runtime.job_api.status import JobStatus
from kungfu.testing.faults import (
    Fault,
    Freezer,
    Injection,
    InjectionLimits,
    JobWatcher,
    inject,
    parse,
    survivable_faults,
)
from kungfu.testing.faults.inject import local_hosts

_LONGEST_S = 86400.0
_CLEARED_WITHIN_S, _LOOK_S = 30.0, 0.05
# The report compares the steps after a fault with up to this number of steps before the first fault.
_STEPS_BEFORE = 200
_EXITS = (
    "exit codes: 0 each fault was carried out and everything held, 1 otherwise, 2 the command line is wrong, or "
    "there is no such job, 130 ended by Ctrl-C"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to ``parser``."""
    parser.epilog = _EXITS
    add_job_folder(parser)
    add, one_fault = parser.add_argument, "a fault, such as 'at step +100 kill coordinator'; may be repeated"
    add("--fault", action="append", default=[], metavar="FAULT", help=one_fault)
    add("--schedule", type=Path, metavar="FILE", help="one fault per line, or a list of faults in YAML or JSON")
    add("--seed", type=int, metavar="S", help="seed for drawing random faults that the job survives")
    add("--faults", type=int, default=5, metavar="N", help="number of faults to draw (%(default)s)")
    add("--every", type=int, default=100, metavar="K", help="steps between drawn faults (%(default)s)")
    add("--dry-run", action="store_true", help="print the faults without injecting them")
    add("--yes", action="store_true", help="do not ask for confirmation")
    recovery = "seconds in which the job must recover from each fault (%(default)g)"
    add("--within", type=float, default=120.0, metavar="S", help=recovery)
    add("--patience", type=float, default=3600.0, metavar="S", help="longest wait for a fault to be due (%(default)g)")
    add("--may-end-job", action="store_true", help="allow faults that certainly end the job")
    another = "read the record of another host, for example if a fault kills kungfu-run here"
    add("--watch", type=Path, metavar="RUN", help=another)
    add("--json", dest="form", action="store_const", const="json", default="text", help="print JSON")


def run(given: argparse.Namespace) -> int:
    """Injects the faults of a command line and prints the report; the exit code is 0 only if every guarantee held."""
    from kungfu.runtime.job_api.client import connected

    for name, seconds in (("--within", given.within), ("--patience", given.patience)):
        if not 1 <= seconds <= _LONGEST_S:
            raise UsageError(f"{name} {seconds:g}: must be from 1 to {_LONGEST_S:g} seconds")
    folder = job_folder(given)
    with connected(folder) as job:
        status = job.status()
    watcher = JobWatcher(given.watch or folder)
    job_now, content = watcher.look(), read_job_file(folder)
    # The record of a job on one host names no host.
    if not job_now.hosts:
        job_now = watcher.job = replace(job_now, hosts={0: JobHost("", content.pid, content.started)})
    if not job_now.members:
        raise UsageError(f"{given.watch or folder}: the job does not train yet; wait for its first view")
    faults, here = _faults(given, status), local_hosts(job_now)
    prechecked = precheck(
        faults, job_now, status, local_hosts=here, own_agent=content.pid,
        is_watched=given.watch is not None, within_s=given.within,
    )  # fmt: skip
    if given.dry_run:
        print_precheck(prechecked, form=given.form)
        return 0
    _refuse_impossible(prechecked, may_end_job=given.may_end_job)
    if not given.yes and not _is_confirmed(prechecked, folder, status):
        return 2
    limits = InjectionLimits(given.within, given.patience, here, given.may_end_job, f"chaos-{secrets.token_hex(3)}")
    with _alone(folder), _interruptible():
        return _inject(faults, _SteeredJob(folder, watcher, given.watch is not None), limits, form=given.form)


# ---- the schedule ----------------------------------------------------------------------------------------------------


def _faults(given: argparse.Namespace, status: JobStatus) -> Sequence[Fault]:
    """The faults that a command line lists, or that are drawn from its seed."""
    written = [*(read_schedule(given.schedule) if given.schedule else ()), *(parse("\n".join(given.fault)))]
    if given.seed is not None and written:
        raise UsageError(f"--seed {given.seed} draws a schedule, and --fault or --schedule gives one: take one of them")
    if given.seed is None:
        if not written:
            raise UsageError(
                "no fault was given: --fault 'at step +100 kill coordinator', --schedule FILE, or --seed 1"
            )
        return written
    sizes = status.membership
    least, most = (1, None) if status.scaling == "inelastic" else (sizes.minimum, sizes.maximum)
    return survivable_faults(
        given.seed, faults=given.faults, every=given.every, size=sizes.size, least=least, most=most
    )


def read_schedule(path: Path) -> tuple[Fault, ...]:
    """The faults in a file: one per line, or a YAML or JSON list of strings; raises ``UsageError`` for other files."""
    try:
        text = path.read_text()
        if path.suffix.lower() in (".yaml", ".yml", ".json"):
            content = _parsed(path, text)
            if not isinstance(content, list) or not all(isinstance(one, str) for one in content):
                raise UsageError(f"{path}: must be a list of faults, each a text as 'at step +100 kill coordinator'")
            text = "\n".join(content)
        return parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--schedule {path}: cannot be read ({error})") from error


def _parsed(path: Path, text: str) -> Any:
    """The content of a JSON file, or of a YAML file, which needs the extra `plan`."""
    parse: Callable[[str], Any] = json.loads
    invalid: type[Exception] = json.JSONDecodeError
    if path.suffix.lower() != ".json":
        import yaml

        parse, invalid = yaml.safe_load, yaml.YAMLError
    try:
        return parse(text)
    except invalid as error:
        raise UsageError(f"--schedule {path}: is no YAML or JSON ({error})") from error


def _refuse_impossible(prechecked: Sequence[PrecheckedFault], *, may_end_job: bool) -> None:
    for number, one in enumerate(prechecked, start=1):
        if one.obstacle and not (one.ends_job and may_end_job):
            way_out = "; --may-end-job does it all the same" if one.ends_job else ""
            raise UsageError(f"fault {number} ({one.when} {one.what}) cannot be done: {one.obstacle}{way_out}")


def _is_confirmed(prechecked: Sequence[PrecheckedFault], folder: Path, status: JobStatus) -> bool:
    """True if the user at the terminal confirms."""
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to confirm at: give --yes, or look with --dry-run first")
    print_precheck(prechecked, form="text", stderr=True)
    size = counted(status.membership.size, "peer")
    print(f"Do this to the job {status.job} in {folder}, which trains with {size}? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was done", file=sys.stderr)
    return False


# ---- the injection ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SteeredJob:
    """The job in ``folder``; ``watcher`` follows the record of this host, or of another host if ``is_watched``."""

    folder: Path
    watcher: JobWatcher
    is_watched: bool

    def request(self, what: Resize | SaveCheckpoint, *, id: str) -> None:
        """Submits a request to the job; raises ``KungfuError`` if the job refuses the request."""
        from kungfu.runtime.job_api.client import connected

        with connected(self._answering()) as job:
            progress = job.submit(Asked(what, id=id))
        if progress.state == "refused":
            raise UsageError(f"the job refuses it: {progress.reason}")

    def is_over(self) -> bool:
        """True if the record has ended, or if the kungfu-run on this host is gone and no other host is watched."""
        if self.watcher.look().ending is not None:
            return True
        return not self.is_watched and not is_running(read_job_file(self.folder))

    def file(self) -> JobFile:
        """The job file of this host's kungfu-run; once that process has ended, the job file of the watched host's."""
        return read_job_file(self._answering())

    def _answering(self) -> Path:
        """The folder of this host's kungfu-run; once a fault has ended it, the folder of the watched host's."""
        watched = self.watcher.folder
        is_elsewhere = self.is_watched and (watched / JOB_FILE).exists()
        return watched if is_elsewhere and not is_running(read_job_file(self.folder)) else self.folder


def _inject(faults: Sequence[Fault], job: _SteeredJob, limits: InjectionLimits, *, form: Any) -> int:
    """Injects the faults and prints the report; Ctrl-C ends the injection, and the report covers the faults so far."""
    injections, console, record = list[Injection](), Console(stderr=True, highlight=False), job.watcher.folder
    since, first_step, offset = time.time(), job.watcher.look().steps, trace_offset(record)
    interrupted = False
    try:
        with Freezer() as freezer:
            for one in inject(faults, job.watcher, job, limits=limits, freezer=freezer):
                injections.append(one)
                console.print(Text(injection_line(one)), soft_wrap=True)
    except KeyboardInterrupt:
        interrupted = True
        left = counted(len(faults) - len(injections), "fault")
        console.print(Text(f"interrupted: nothing is frozen any more, {left} left out"), soft_wrap=True)
    content, steps = _job_file(job), read_steps(record, offset=offset)
    # Without positions in a trace, the samples are counted from the epochs in the metrics.
    samples = check_steps(steps) if steps else check_epochs(read_rows(record), since=first_step)
    report = report_chaos(
        injections, read_events(record).events, [*rows_between(record, first_step - _STEPS_BEFORE)],
        job=content.job, since=since, within_s=limits.within_s, samples=samples, code=content.code,
    )  # fmt: skip
    print_report(report, form=form)
    return 130 if interrupted else int(not report.held)


def _job_file(job: _SteeredJob) -> JobFile:
    """Reads the job file; if the record has ended, first waits for the exit code, which kungfu-run writes last."""
    content, deadline = job.file(), time.monotonic() + _CLEARED_WITHIN_S
    while job.is_over() and is_running(content) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        content = job.file()
    return content


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Prevents a second ``kungfu chaos`` on the same job: the faults of the two could not be distinguished."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UsageError(f"{folder}: another kungfu chaos is at work on this job; wait for its end") from None
    finally:
        os.close(handle)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C: frozen processes are thawed, and the faults so far are reported."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
