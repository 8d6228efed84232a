"""One job as a row of ``kungfu top``: what its service says, what its processes use, what was decided last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from kungfu.cli.console.screen_state import decision_words
from kungfu.cli.top.find_jobs import FoundJob
from kungfu.errors import KungfuError
from kungfu.event_log.codec import event_in
from kungfu.event_log.growing_file import GrowingFile
from kungfu.event_log.job import fold
from kungfu.runtime.job_api.status import JobStatus

# The end of the events that is searched for the last decision.
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class JobRow:
    """A job at a glance; ``None`` is not known.

    Args:
        job: Its name.
        folder: The folder of its record.
        user: Who started it.
        pid: The process id of its kungfu-run.
        state: What it does.
        size: Peers that train.
        target: Peers that it moves to.
        step: Its newest step.
        samples_per_s: Throughput.
        loss: That of the newest step.
        epoch: The epoch of the newest step, from 1 where the planned ones are known.
        epochs: The last one that is planned.
        seconds_left: Of training, as a guess.
        cpu_percent: Processor time of all its processes on this machine since the look before, 100 for a core.
        memory_bytes: Their resident memory; what they share counts for each.
        decision: The last decision, in words; empty where there was none.
    """

    job: str
    folder: str
    user: str
    pid: int
    state: str
    size: int | None = None
    target: int | None = None
    step: int | None = None
    samples_per_s: float | None = None
    loss: float | None = None
    epoch: int | None = None
    epochs: int | None = None
    seconds_left: float | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    decision: str = ""


@dataclass
class UsageMeter:
    """Processor time and memory of a process with all that it started, between two looks."""

    clock: Callable[[], float] = time.monotonic
    _before: dict[int, dict[tuple[int, float], float]] = field(default_factory=dict)
    _at: dict[int, float] = field(default_factory=dict)

    def look(self, pid: int) -> tuple[float | None, int | None]:
        """Percent of a core since the look before, and bytes; ``None`` at the first look, and of what has ended."""
        used, memory = dict[tuple[int, float], float](), 0
        for process in _family(pid):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    used[process.pid, process.create_time()] = times.user + times.system
                    memory += process.memory_info().rss
            # It has ended, or is another user's.
            except psutil.Error:
                continue
        now = self.clock()
        before, at = self._before.get(pid), self._at.get(pid, now)
        self._before[pid], self._at[pid] = used, now
        if not used:
            return None, None
        if before is None or now <= at:
            return None, memory
        # A process that has come since counts from its start.
        spent = sum(seconds - before.get(one, 0.0) for one, seconds in used.items())
        return 100.0 * max(0.0, spent) / (now - at), memory


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.Error:
        return []


def row_of(found: FoundJob, meter: UsageMeter) -> JobRow:
    """The row of a job; nothing that is wrong with it is an error."""
    cpu, memory = meter.look(found.pid) if found.pid else (None, None)
    folder = "" if found.folder is None else str(found.folder)
    name = found.folder.name if found.folder is not None else ""
    row = JobRow(name, folder, found.user, found.pid, found.remark, cpu_percent=cpu, memory_bytes=memory)
    if found.folder is None or found.remark:
        return row
    from kungfu.runtime.job_api.client import connected

    try:
        with connected(found.folder) as job:
            status = job.status()
    # It ended, does not answer, or was started by another user.
    except KungfuError as error:
        return replace(row, state=str(error).removeprefix(f"{folder}: "))
    figures, progress = status.figures, status.progress
    return replace(
        row, job=status.job, state=_state(status), size=status.membership.size, target=status.membership.target,
        step=figures.step, samples_per_s=figures.samples_per_s, loss=figures.loss,
        epoch=figures.epoch if progress.epoch is None else progress.epoch, epochs=progress.epochs,
        seconds_left=progress.seconds_left, decision=last_decision(found.folder),
    )  # fmt: skip


def _state(status: JobStatus) -> str:
    """What a job does, in a word or two."""
    starting = sum(peer.state in ("starting", "ready") for peer in status.peers)
    if not status.membership.version:
        return "starting"
    if status.request is not None:
        return status.request.words
    if status.peers and all(peer.state == "leaving" for peer in status.peers):
        return "ending"
    return f"training, {starting} on the way" if starting else "training"


def last_decision(folder: Path) -> str:
    """The newest decision, rescale or recovery near the end of a record, in words; empty where there is none."""
    lines = GrowingFile(folder / "events.jsonl", at_first_bytes=_TAIL_BYTES).read_all()
    try:
        return decision_words(fold(filter(None, map(event_in, lines))))
    except OSError:
        return ""
