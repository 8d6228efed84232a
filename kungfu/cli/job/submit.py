"""Submits a request to a job, waits until it is carried out, and prints the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, cast

from rich.console import Console
from rich.text import Text

from kungfu.cli.report.reader import read_events
from kungfu.errors import UsageError
from kungfu.event_log.job import fold
from kungfu.event_log.values import counted, duration
from kungfu.runtime.core.request import Asked, StopTraining
from kungfu.runtime.core.requests.request_log import RequestState
from kungfu.runtime.job_api.client import JobOver, connected
from kungfu.runtime.job_api.status import JobStatus, RequestProgress

_LOOK_EVERY_S = 0.2


def submit_and_report(folder: Path, request: Asked, *, timeout_s: float, form: Literal["text", "json"]) -> int:
    """Submits a request, waits up to ``timeout_s`` seconds and prints the result; returns the exit code."""
    progress = submit_and_wait(folder, request, timeout_s=timeout_s)
    if form == "json":
        print(json.dumps(asdict(progress), indent=2))
    else:
        Console(highlight=False).print(Text(_in_words(progress)), soft_wrap=True)
    return exit_code(progress, timeout_s=timeout_s)


def exit_code(progress: RequestProgress, *, timeout_s: float) -> int:
    """The exit code: 0 if a request was carried out, or was accepted and the command does not wait; else 1."""
    return 0 if progress.state == "carried out" or (progress.state == "accepted" and timeout_s == 0) else 1


def submit_and_wait(
    folder: Path, request: Asked, *, timeout_s: float, pause: Callable[[float], None] = time.sleep
) -> RequestProgress:
    """Submits a request, and polls until the request is finished or ``timeout_s`` seconds have passed.

    Meanwhile a terminal shows the number of training peers. If the job ends first, the result is read from the
    job's record. A job that ends after a request to stop has carried out the request.

    Raises:
        JobOver: The job has ended without carrying out the request.
    """
    deadline = time.monotonic() + timeout_s
    with connected(folder) as job, Console(stderr=True).status("") as live:
        first = progress = job.submit(request)
        try:
            while first.state == "accepted" and progress.state == "accepted" and time.monotonic() < deadline:
                live.update(f"{progress.words}, {duration(progress.seconds)}: {_at_work(job.status())}")
                pause(_LOOK_EVERY_S)
                progress = job.progress(request.id)
        except JobOver as over:
            progress = _recorded(folder, progress)
            if progress.state != "accepted":
                return progress
            if not isinstance(request.what, StopTraining):
                raise
            how = "without a word" if over.code is None else f"with exit code {over.code}"
            progress = replace(progress, state="carried out", reason=f"the job has ended {how}")
        return progress


def _recorded(folder: Path, progress: RequestProgress) -> RequestProgress:
    """The progress of a request according to the record; if the record lacks the request, the last known progress."""
    try:
        newest = fold(read_events(folder).events).requests.get(progress.id)
    except UsageError:
        newest = None
    if newest is None:
        return progress
    state = cast(RequestState, newest.state)
    return replace(progress, state=state, reason=newest.reason, view=newest.view, seconds=newest.seconds)


def _at_work(status: JobStatus) -> str:
    where, starting = status.membership, [peer for peer in status.peers if peer.state in ("starting", "ready")]
    coming = f", {counted(len(starting), 'peer')} getting ready" if starting else ""
    step = f" at step {status.figures.step}" if status.figures.step is not None else ""
    return f"{counted(where.size, 'peer')} train{step}{coming}"


def _in_words(progress: RequestProgress) -> str:
    why = f": {progress.reason}" if progress.reason else ""
    match progress.state:
        case "carried out":
            return f"{progress.words}: carried out in {duration(progress.seconds)}, view {progress.view}{why}"
        case "accepted":
            return (
                f"{progress.words}: under way as {progress.id!r}; the same command with --id {progress.id} waits for it"
            )
    return f"{progress.words}: {progress.state}{why}"
