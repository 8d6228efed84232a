"""Serves the page of a run, or of several: ``kungfu page RUN``, and the side process of ``kungfu-run --page``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from kungfu.cli.export.listen_address import ListenAddress, listening, parse_address
from kungfu.cli.export.side_process import SideProcess
from kungfu.cli.run_folder import check_record, newest_run
from kungfu.errors import UsageError
from kungfu.runtime.job_api.job_file import read_job_file

_SERVER = "kungfu.cli.page.server"
# Seconds after the end of a job for the last update of its page.
_END_WITHIN_S = 10.0


def page_process(record: Path, address: ListenAddress, *, report: Callable[[str], None]) -> SideProcess:
    """A side process that serves the page of a job while the job runs; a context manager."""
    arguments, subject = (str(record.absolute()), address.host, str(address.port)), f"the page at {address}"
    return SideProcess("page", _SERVER, arguments, subject=subject, report=report, end_within_s=_END_WITHIN_S)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu page``."""
    add = parser.add_argument
    where = "the folder written by kungfu-run (the newest one in runs/), or a folder of such folders"
    add("folder", nargs="?", type=Path, metavar="RUN", help=where)
    add("--port", default="0", metavar="[ADDRESS:]PORT", help="address of the page; 0 is any free port (127.0.0.1:0)")
    add("--secret", action="store_true", help="print the secret of the running job, for the page's buttons, and exit")


def run(given: argparse.Namespace) -> int:
    """Serves the page of a run, or of a list of runs, until Ctrl-C; returns the exit code."""
    folder = given.folder or newest_run()
    if given.secret:
        return _print_secret(folder)
    address = parse_address(given.port, option="--port", example=8080)
    is_list = not (folder / "events.jsonl").is_file() and any(folder.glob("*/events.jsonl"))
    if not is_list:
        check_record(folder)
    from kungfu.cli.page.server import PageServer, runs_server, url_of

    try:
        listener = listening(address)
    except OSError as error:
        raise UsageError(
            f"--port {given.port}: nothing can listen there ({error.strerror}); give another one"
        ) from error
    with listener:
        if is_list:
            runs = runs_server(folder, listener, printed_host=address.host)
            print(f"the runs in {folder} are at {url_of(address, runs.port)}; Ctrl-C ends it", flush=True)
            runs.run()
            return 0
        server = PageServer(folder, listener, printed_host=address.host)
        server.feed.look()  # raises here if the record is of another version, before the address is printed
        print(f"the page of {folder} is at {url_of(address, server.port)}; Ctrl-C ends it", flush=True)
        server.run(_waits)
    return 0


def _waits(timeout_s: float) -> bool:
    """Sleeps ``timeout_s`` seconds and returns False: only a signal ends the page, as users may view a finished job."""
    time.sleep(timeout_s)
    return False


def _print_secret(folder: Path) -> int:
    secret = read_job_file(folder).secret
    if not secret:
        raise UsageError(f"{folder}: the job is over, and its secret gone; nothing can be asked of it any more")
    print(secret)
    return 0
