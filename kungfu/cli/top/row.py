"""A job as a row of ``kungfu top``: its status, the processor time and memory of its processes, its last decision."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from kungfu.cli.report.narrative import decision_words
from kungfu.cli.top.find_jobs import FoundJob
from kungfu.errors import KungfuError
from kungfu.event_log.codec import event_in
from kungfu.event_log.growing_file import GrowingFile
from kungfu.event_log.job import fold
from kungfu.event_log.progress import TrainingProgress
from kungfu.runtime.job_api.status import JobMetrics, JobStatus

# The bytes at the end of the events that are searched for the last decision.
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class JobRow:
    """A job at a glance; ``None`` means unknown.

    Args:
        cpu_percent: Processor time of the job's processes here since the previous measurement; 100 is one core.
        memory_bytes: Resident memory of these processes; shared memory counts for each of them.
        decision: The last decision as text; empty if there was none.
    """

    found: FoundJob
    state: str
    status: JobStatus | None = None
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    decision: str = ""

    @property
    def epoch(self) -> int | None:
        """The epoch of the newest step, from 1."""
        if self.status is None:
            return None
        epoch, index = self.status.progress.epoch, self.status.figures.epoch
        return epoch if epoch is not None or index is None else index + 1

    def document(self) -> dict[str, Any]:
        """The row as plain values, for JSON."""
        found, status = self.found, self.status
        figures, progress = (status.figures, status.progress) if status else (JobMetrics(), TrainingProgress())
        return {
            "job": status.job if status else found.folder.name if found.folder else "",
            "folder": str(found.folder or ""), "user": found.user, "pid": found.pid, "state": self.state,
            "size": status and status.membership.size, "target": status and status.membership.target,
            "step": figures.step, "samples_per_s": figures.samples_per_s, "loss": figures.loss, "epoch": self.epoch,
            "epochs": progress.epochs, "seconds_left": progress.seconds_left, "cpu_percent": self.cpu_percent,
            "memory_bytes": self.memory_bytes, "decision": self.decision,
        }  # fmt: skip


@dataclass
class UsageMeter:
    """Measures the memory of a process and its descendants, and their processor time between two measurements."""

    clock: Callable[[], float] = time.monotonic
    _before: dict[int, dict[tuple[int, float], float]] = field(default_factory=dict)
    _at: dict[int, float] = field(default_factory=dict)

    def look(self, pid: int) -> tuple[float | None, int | None]:
        """CPU use of a process tree since the last call, in % of a core, and its memory in bytes; ``None``: unknown."""
        used, memory = dict[tuple[int, float], float](), 0
        for process in _family(pid):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    used[process.pid, process.create_time()] = times.user + times.system
                    memory += process.memory_info().rss
            # The process has ended, or belongs to another user.
            except psutil.Error:
                continue
        now = self.clock()
        before, at = self._before.get(pid), self._at.get(pid, now)
        self._before[pid], self._at[pid] = used, now
        if not used:
            return None, None
        if before is None or now <= at:
            return None, memory
        # A process that started since the previous look counts from its start.
        spent = sum(seconds - before.get(one, 0.0) for one, seconds in used.items())
        return 100.0 * max(0.0, spent) / (now - at), memory


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.Error:
        return []


def row_of(found: FoundJob, meter: UsageMeter) -> JobRow:
    """The row of a job; if the job cannot be asked, the row shows the reason as the job's state."""
    row = JobRow(found, found.remark, None, *(meter.look(found.pid) if found.pid else (None, None)))
    if found.folder is None or found.remark:
        return row
    from kungfu.runtime.job_api.client import connected

    try:
        with connected(found.folder) as job:
            status = job.status()
    # The job has ended, does not answer, or was started by another user.
    except KungfuError as error:
        return replace(row, state=str(error).removeprefix(f"{found.folder}: "))
    return replace(row, status=status, state=_state(status), decision=last_decision(found.folder))


def _state(status: JobStatus) -> str:
    """A short description of the activity of a job."""
    starting = sum(peer.state in ("starting", "ready") for peer in status.peers)
    if not status.membership.version:
        return "starting"
    if status.request is not None:
        return status.request.words
    if status.peers and all(peer.state == "leaving" for peer in status.peers):
        return "ending"
    return f"training, {starting} on the way" if starting else "training"


def last_decision(folder: Path) -> str:
    """The newest decision, rescale or recovery near the end of a record, as text; empty if there is none."""
    lines = GrowingFile(folder / "events.jsonl", at_first_bytes=_TAIL_BYTES).read_all()
    try:
        return decision_words(fold(filter(None, map(event_in, lines))))
    except OSError:
        return ""
