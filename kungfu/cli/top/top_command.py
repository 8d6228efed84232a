"""``kungfu top``: shows all jobs of this machine, repeatedly on a terminal, otherwise once."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kungfu.cli.console.screens import packed
from kungfu.cli.report_console import ReportConsole
from kungfu.cli.top.find_jobs import find_jobs
from kungfu.cli.top.row import JobRow, UsageMeter, row_of
from kungfu.errors import UsageError
from kungfu.event_log.numbers import as_json
from kungfu.event_log.values import UNKNOWN, counted, figure, rough_duration

_LONGEST_S = 3600.0
_BETWEEN_S = 0.5  # seconds between two looks at the processor time when the rows are shown once
_NARROW = 130  # columns of a terminal, below which jobs are shown as lines
_INDENT = "  "
_KEYS = ("q", "Q", "\x03", "\x04")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command to ``parser``."""
    parser.epilog = "q or Ctrl-C quits. exit codes: 0 done, 2 the command line is wrong"
    add = parser.add_argument
    add("folders", nargs="*", type=Path, metavar="RUN", help="folders of jobs to show even when they are over")
    add("--every", type=float, default=2.0, metavar="S", help="seconds between updates (%(default)g)")
    add("--once", action="store_true", help="print one snapshot and exit")
    add("--json", dest="form", action="store_const", const="json", default="text", help="print one snapshot as JSON")


def run(given: argparse.Namespace) -> int:
    """Shows the jobs of this machine, either once or until the user ends the display; returns the exit code."""
    if not 0.2 <= given.every <= _LONGEST_S:
        raise UsageError(f"--every {given.every:g}: must be from 0.2 to {_LONGEST_S:g} seconds")
    top = TopOfJobs(given.folders)
    if given.form == "json" or given.once or not sys.stdout.isatty():
        top.look()  # processor time is known only from the second look on
        time.sleep(_BETWEEN_S)
        rows = top.look()
        if given.form == "json":
            print(json.dumps(as_json([row.document() for row in rows], nan=None), indent=2, allow_nan=False))
        else:
            console = ReportConsole(highlight=False)
            console.print(shown(rows, width=console.width))
        return 0
    with suppress(KeyboardInterrupt):
        _show_live(top, every_s=given.every)
    return 0


class TopOfJobs:
    """Watches the jobs of this machine and the jobs in ``folders``; continues to list jobs that have ended."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders, self._meter = list(folders), UsageMeter()

    def look(self) -> list[JobRow]:
        """The rows of all jobs, including jobs that do not answer."""
        jobs = find_jobs(self._folders)
        known = {folder.resolve() for folder in self._folders}
        self._folders += [job.folder for job in jobs if job.folder is not None and job.folder.resolve() not in known]
        # In parallel: a job that does not answer delays the other jobs by some seconds at most.
        with ThreadPoolExecutor(16) as calls:
            return list(calls.map(lambda job: row_of(job, self._meter), jobs))


def _show_live(top: TopOfJobs, *, every_s: float) -> None:
    console = ReportConsole(highlight=False)
    with _keys() as ended, Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            rows = top.look()
            head = f"{time.strftime('%H:%M:%S')}  {counted(sum(row.status is not None for row in rows), 'job')} at work"
            live.update(Group(Text(f"{head}; q ends", style="dim"), shown(rows, width=console.width)), refresh=True)
            if ended(every_s):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Reads keys without echo until the context ends; yields a function that waits for a key that ends the display."""
    if not sys.stdin.isatty():
        yield _without_keys
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield lambda seconds: _ends_within(handle, seconds)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _without_keys(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _ends_within(handle: int, seconds: float) -> bool:
    """Waits for up to `seconds`; returns True if the user pressed a key that ends the display."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and select.select([handle], [], [], left)[0]:
        pressed = os.read(handle, 64).decode(errors="replace")
        # The terminal is closed, or the user ends the display.
        if not pressed or any(key in _KEYS for key in pressed):
            return True
    return False


_COLUMNS = ("job", "peers", "step", "samples/s", "loss", "epoch", "left", "cpu", "memory", "state")


def shown(rows: Sequence[JobRow], *, width: int) -> Table | Text:
    """The rows as a table, or as lines on a narrow terminal; a hint if there are no rows."""
    if not rows:
        return Text("no job runs on this machine; kungfu-run starts one, and kungfu top RUN shows one that is over")
    if width < _NARROW:
        return Text("\n").join(_lines(row, width=width) for row in rows)
    table = Table()
    for name in _COLUMNS:
        is_text = name in ("job", "state")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in rows:
        table.add_row(*(Text(cell) for cell in (_name(row), *_figures(row), _state(row))))
    return table


def _lines(row: JobRow, *, width: int) -> Text:
    """A job as lines: its name and state, then its figures if any is known, with indented continuation lines."""
    state = [Text(word) for word in _state(row).split()]
    lines = [packed([Text(f"{_name(row)} ", style="bold"), *state], width=width, indent="    ")]
    known = tuple(_figures(row))
    if set(known) != {UNKNOWN}:
        named = [Text(f"{name} {cell}") for name, cell in zip(_COLUMNS[1:-1], known, strict=True)]
        figures = packed(named, width=width - len(_INDENT), gap=_INDENT, indent=_INDENT)
        lines.append(Text(_INDENT).append_text(figures))
    return Text("\n").join(lines)


def _name(row: JobRow) -> str:
    found = row.found
    name = (found.folder.name if found.folder else "") or f"process {found.pid}"
    return name if found.user in ("", getpass.getuser()) else f"{name} of {found.user}"


def _state(row: JobRow) -> str:
    return row.state + (f"; {row.decision}" if row.decision and row.status is not None else "")


def _figures(row: JobRow) -> Iterator[str]:
    document = row.document()
    size, target, left, cpu, memory = (
        document[name] for name in ("size", "target", "seconds_left", "cpu_percent", "memory_bytes")
    )
    yield figure(size) if target in (None, size) else f"{size} -> {target}"
    for name in ("step", "samples_per_s", "loss"):
        yield figure(document[name])
    yield figure(row.epoch) + (f" of {figure(document['epochs'])}" if document["epochs"] is not None else "")
    yield UNKNOWN if left is None else rough_duration(left)
    yield UNKNOWN if cpu is None else f"{cpu:.0f} %"
    yield UNKNOWN if memory is None else f"{memory / 1e9:.1f} GB"
