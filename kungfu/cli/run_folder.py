"""The run folder of a command line: the given folder, or else the newest folder that kungfu-run wrote in ``runs/``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.runtime.job_api.job_file import newest_folder

RUNS = Path("runs")


def add_job_folder(parser: argparse.ArgumentParser, *, is_positional: bool = True) -> None:
    """Declares the folder of a running job, as an option and, if ``is_positional``, as the last positional argument."""
    newest = "the folder of the job's record (the newest one in runs/)"
    if is_positional:
        parser.add_argument("positional", nargs="?", type=Path, metavar="RUN", help=newest)
    parser.add_argument("--logdir", type=Path, metavar="RUN", help="the same folder, as an option")


def add_run_folder(parser: argparse.ArgumentParser) -> None:
    """Declares the folder of a running or finished run as a positional argument."""
    where = "the folder of the run's record (the newest one in runs/)"
    parser.add_argument("folder", nargs="?", type=Path, metavar="RUN", help=where)


def job_folder(given: argparse.Namespace) -> Path:
    """The job folder given on the command line; without one, the newest run in ``runs/`` (see `newest_run`)."""
    return given.logdir or given.positional or newest_run()


def check_record(folder: Path) -> None:
    """Raises ``UsageError`` if a folder holds no record of a run."""
    if not (folder / "events.jsonl").is_file():
        what = "the folder holds no events.jsonl" if folder.is_dir() else "there is no such folder"
        raise UsageError(f"{folder}: {what}; give the folder that kungfu-run wrote to")


def make_folder(named: Callable[[str], Path]) -> Path:
    """Creates the folder ``named("")``; if it exists, tries the suffixes "-2", "-3" and so on."""
    for nth in count(1):
        folder = named("" if nth == 1 else f"-{nth}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("unreachable")


def newest_run() -> Path:
    """The newest run in ``runs/``; raises ``UsageError`` if there is none."""
    return newest_folder(RUNS)
