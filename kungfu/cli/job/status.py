"""``kungfu status``: shows a running job, or the summary of a job that is over, as text or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from kungfu.cli.report.narrative import RunTotals, conclusion, totals
from kungfu.cli.report_console import ReportConsole
from kungfu.event_log.events import FailedEvent
from kungfu.event_log.job import Job
from kungfu.event_log.numbers import as_json
from kungfu.event_log.progress import TrainingProgress
from kungfu.event_log.record_follower import JobWatcher
from kungfu.event_log.values import UNKNOWN, counted, duration, figure, held_words, rough_duration
from kungfu.runtime.core.failure import EXIT_CODES
from kungfu.runtime.job_api.client import JobOver, connected
from kungfu.runtime.job_api.job_file import JobFile, read_job_file
from kungfu.runtime.job_api.status import JobMetrics, JobStatus, metrics_of


@dataclass(frozen=True)
class JobSummary:
    """The summary of a job that is over on this host.

    Attributes:
        ended: The end of its kungfu-run, in seconds since 1970; None if kungfu-run was killed.
        code: The exit code of kungfu-run; None if kungfu-run was killed.
        has_failed: True if the job did not reach its end: it failed, or was ended by Ctrl-C or a signal.
        checkpoint: The folder of the newest checkpoint; empty if there is none.
    """

    job: str
    ended: float | None
    code: int | None
    reason: str
    has_failed: bool
    figures: JobMetrics
    progress: TrainingProgress
    totals: RunTotals
    checkpoint: str


def print_status(folder: Path, *, form: Literal["text", "json"]) -> int:
    """Prints the status of the job recorded in ``folder``, or its summary if the job is over; returns the exit code."""
    status: JobStatus | JobSummary
    try:
        with connected(folder) as job:
            status = job.status()
            lines = _lines(status)
    except JobOver:
        record = JobWatcher(folder).look()
        status = summary_of(record, read_job_file(folder))
        lines = _final_lines(status, record, folder)
    if form == "json":
        print(json.dumps(as_json(asdict(status)), indent=2, allow_nan=False))
        return 0
    console = ReportConsole(highlight=False)
    console.print(Text(f"job {status.job} in {folder}", style="bold"), soft_wrap=True)
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if isinstance(status, JobStatus):
        console.print(_table(status))
    return 0


def _lines(status: JobStatus) -> Iterator[str]:
    where, figures = status.membership, status.figures
    going = f", on the way to {where.target}" if where.target != where.size else ""
    bounds = f"from {where.minimum} to {where.maximum}, {status.scaling}"
    yield f"view {where.version or UNKNOWN}: {counted(where.size, 'peer')}{going} ({bounds})"
    if where.held_at is not None:
        now, left = time.time(), where.held_for_s
        ends = "" if left is None else f", {rough_duration(left)} from now"
        yield held_words(where.held_at, None if left is None else now + left, now=now) + ends
    coming = [one for one in status.peers if where.version and one.state in ("starting", "ready")]
    if coming:
        said = ", ".join(f"peer {one.id} ({one.state} for {duration(one.for_s)})" for one in coming)
        yield f"waits for {said}; nothing else that is asked for does"
    batch = counted(figures.global_batch_size, "sample")
    yield f"{_position(status)}, batch {batch}, loss {figure(figures.loss)}"
    yield ", ".join([f"{figure(figures.samples_per_s)} samples/s", *_seen(status.progress)])
    if status.request is not None:
        asked = status.request
        yield f"under way: {asked.words} ({asked.id}), since {duration(asked.seconds)}"
    for trouble in status.troubles:
        yield f"{time.strftime('%H:%M:%S', time.localtime(trouble.time))} {trouble.text}"


def _position(status: JobStatus | JobSummary) -> str:
    """The present step and epoch of the job, each with the last one that is planned, if known."""
    step, progress = status.figures.step, status.progress
    if step is None or progress.epochs is None or progress.steps_left is None:
        return f"step {figure(step)} of epoch {figure(status.figures.epoch)}"
    fit = f" of fit {figure(progress.fit)}" if (progress.fit or 0) > 1 else ""
    epoch = f"epoch {figure(progress.epoch)} of {figure(progress.epochs)}{fit}"
    return f"step {figure(step)} of {figure(step + progress.steps_left)}, {epoch}"


def _seen(progress: TrainingProgress) -> Iterator[str]:
    """The samples so far and the time left, as far as known."""
    if progress.samples is not None:
        yield f"{counted(progress.samples, 'sample')} so far"
    if progress.seconds_left is not None:
        yield f"about {rough_duration(progress.seconds_left)} left"


def _table(status: JobStatus) -> Table:
    table = Table()
    measured = any(peer.speed is not None for peer in status.peers)
    for name in ("peer", "rank", "host", "pid", "state", "for", *(["of the median speed"] if measured else [])):
        table.add_column(name, justify="left" if name in ("host", "state") else "right")
    # Members by rank, then the peers outside the view by id.
    for peer in sorted(status.peers, key=lambda peer: (peer.rank is None, peer.rank or 0, peer.id)):
        rank = UNKNOWN if peer.rank is None else str(peer.rank)
        straggler = "straggler, " if peer.is_straggler else ""
        speed = [f"{straggler}{figure(peer.speed)}"] if measured else []
        table.add_row(str(peer.id), rank, peer.host, str(peer.pid), peer.state, duration(peer.for_s), *speed)
    return table


def summary_of(job: Job, file: JobFile) -> JobSummary:
    """The summary of a job that is over, from its record and its job file."""
    checkpoint = job.checkpoint.path if job.checkpoint else ""
    # A kungfu-run that was killed has no exit code; the job has reached its end if the record tells of it.
    has_failed = isinstance(job.ending, FailedEvent) or (job.ending is None if file.code is None else file.code != 0)
    return JobSummary(
        file.job, file.ended, file.code, _reason(job, file), has_failed, metrics_of(job), job.progress.progress,
        totals(job), checkpoint,
    )  # fmt: skip


def _reason(job: Job, file: JobFile) -> str:
    """The reason for the end of a job: its failure, or the meaning of the exit code."""
    if isinstance(job.ending, FailedEvent):
        return job.ending.error
    if file.code is None:
        return f"its kungfu-run (process {file.pid}) ended without a word"
    # The record of a host that leaves a job ends before the job does.
    if job.ending is None and file.code == 0 and len(job.hosts) > 1:
        return "this host has left the job, which continues without it"
    return EXIT_CODES.get(file.code, "an exit code of the program")


def _final_lines(summary: JobSummary, job: Job, folder: Path) -> Iterator[str]:
    at = "" if summary.ended is None else time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(summary.ended))
    code = "" if summary.code is None else f", with exit code {summary.code}"
    yield f"{'failed' if isinstance(job.ending, FailedEvent) else 'over'}{at}{code}: {summary.reason}"
    if summary.figures.step is not None:
        yield f"{_position(summary)}, loss {figure(summary.figures.loss)}"
    whole = conclusion(job)
    yield from (whole.headline, *(f"  {detail}" for detail in whole.details))
    if summary.checkpoint:
        yield f"newest checkpoint: {summary.checkpoint}"
    yield f"what was decided, and why: kungfu why {folder}"
