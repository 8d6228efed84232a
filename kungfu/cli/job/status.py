"""``kungfu status``: shows a running job at a glance, or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from kungfu.cli.report_console import ReportConsole
from kungfu.event_log.numbers import as_json
from kungfu.event_log.progress import TrainingProgress
from kungfu.event_log.values import UNKNOWN, counted, duration, figure, held_words, rough_duration
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.status import JobStatus


def print_status(folder: Path, *, form: Literal["text", "json"]) -> int:
    """Prints the status of the job recorded in ``folder``; returns the exit code."""
    with connected(folder) as job:
        status = job.status()
    if form == "json":
        print(json.dumps(as_json(asdict(status)), indent=2, allow_nan=False))
        return 0
    console = ReportConsole(highlight=False)
    console.print(Text(f"job {status.job} in {folder}", style="bold"), soft_wrap=True)
    for line in _lines(status):
        console.print(Text(line), soft_wrap=True)
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


def _position(status: JobStatus) -> str:
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
