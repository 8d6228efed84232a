"""Follows a job for its page: one thread reads the record, asks the job for its status, and publishes the changes.

For any number of browsers the record is read once, each update is encoded once, and the job is asked at most once a
second, or not at all without browsers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kungfu.cli.job.plan_forecast import MeasuredRun
from kungfu.cli.page.event_stream import UpdateLog
from kungfu.cli.page.plan_drawing import draw_plan
from kungfu.cli.page.run_model import RunModel, as_text
from kungfu.cli.report.narrative import waiting_words
from kungfu.cli.top.row import UsageMeter
from kungfu.errors import KungfuError, UsageError
from kungfu.event_log.job import Job
from kungfu.event_log.record_follower import RecordFollower
from kungfu.event_log.values import counted
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.job_file import JobFile, read_job_file, state_of
from kungfu.runtime.job_api.status import JobStatus
from kungfu.trace import read_plan

# Peers report their steps every two seconds.
_LOOK_EVERY_S = 1.0
# Seconds between updates that show the progress of reading an old record.
_PUBLISH_EVERY_S = 0.5
# Seconds between looks at the processes of the peers.
_MEASURE_EVERY_S = 5.0
_LARGEST_PID = 1 << 22
_OF_A_CHANGED_PLAN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class PageFeed:
    """The data of a page that shows the run in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._follower = folder, RecordFollower(folder)
        self._lock = threading.Lock()
        self._model = RunModel(folder.resolve().name)
        self._plan_is_read = False
        self._traced_bytes = 0
        self._meter, self._measured_at = UsageMeter(), -_MEASURE_EVERY_S
        self._usage: dict[int, tuple[int | None, int | None]] = {}
        self.log = UpdateLog(self._whole)

    def follow(self, is_over: Callable[[float], bool]) -> None:
        """Follows the run until ``is_over(timeout_s)`` returns True, which waits; then reads the rest of the record.

        Raises ``UsageError`` if the record is of another version, or cannot be read."""
        published_at, ending = -_PUBLISH_EVERY_S, False
        while True:
            self.look()
            now = time.monotonic()
            # Much of the record is unread: browsers get updates while the rest is read.
            if self._follower.has_more and now - published_at < _PUBLISH_EVERY_S:
                continue
            published_at = now
            self._publish()
            if self._follower.has_more:
                continue
            if ending:
                break
            ending = is_over(_LOOK_EVERY_S)
        self.log.end()

    def look(self) -> None:
        """Reads the new lines of the record."""
        new = self._follower.read()
        with self._lock:
            self._model.add(new)

    def measured(self) -> MeasuredRun:
        """The measurements of the job so far; may be called from any thread."""
        with self._lock:
            return self._model.measured()

    @property
    def job(self) -> Job:
        """The job according to its record so far."""
        return self._model.job

    def _whole(self) -> str:
        with self._lock:
            return as_text(self._model.whole())

    def _publish(self) -> None:
        state = self._state()
        with self._lock:
            self._model.put(**state)
            changes = self._model.changes()
        if changes:
            self.log.publish(as_text(changes))

    def _state(self) -> dict[str, Any]:
        """The job's state from the job file and from the answer to a status request, with remarks for the page."""
        remarks: list[str] = []
        job = self._job_file(remarks)
        state = state_of(job)
        running = state == "running"
        if job is not None and state == "unknown":
            remarks.append("whether the job runs is not known here: another machine, or an earlier boot, began it")
        status = self._status(remarks) if running and self.log.viewers else None
        if self._follower.damaged:
            lines = counted(self._follower.damaged, "line")
            remarks.append(f"{lines} of the record could not be read: damaged, or of a later version; left out")
        if self._follower.has_more:
            remarks.append("the record is being read")
        code = job.code if job is not None else None
        run = {"state": state, "code": code, "remarks": remarks, "folder": str(self._folder.absolute())}
        waiting = waiting_words(self.job, now=time.time()) if running else ""
        is_due = time.monotonic() - self._measured_at >= _MEASURE_EVERY_S
        if job is not None and running and self.log.viewers and is_due:
            self._measured_at, self._usage = time.monotonic(), self._peer_usage(job)
        return {"run": run, "waiting": waiting, "usage": self._usage if running else {},
                "membership": status and _membership(status, self.job), **self._plan()}  # fmt: skip

    def _job_file(self, remarks: list[str]) -> JobFile | None:
        try:
            return read_job_file(self._folder)
        except UsageError as error:
            # The record was copied without the job file, or belongs to another user's job.
            if not self._follower.has_more:
                remarks.append(f"whether the job runs is not known: {error}")
            return None

    def _status(self, remarks: list[str]) -> JobStatus | None:
        try:
            with connected(self._folder) as job:
                return job.status()
        # Another agent is being elected, or the present agent is busy; the record still grows.
        except KungfuError as error:
            remarks.append(f"the job does not answer now: {error}")
            return None

    def _peer_usage(self, job: JobFile) -> dict[int, tuple[int | None, int | None]]:
        """The processor time, in percent of a core, and the memory, in bytes, of each peer on this host, by id."""
        hosts, found = self.job.hosts, dict[int, tuple[int | None, int | None]]()
        # In a job of several hosts, the number of a process may belong to another host.
        local = [host for host, one in hosts.items() if one.is_present and one.pid == job.pid] if hosts else [0]
        for peer in self.job.peers.values():
            pid = 0 if peer.pid is None or peer.state == "ended" else peer.pid
            if local == [peer.host] and 0 < pid <= _LARGEST_PID:
                cpu, memory = self._meter.look(pid)
                found[peer.id] = None if cpu is None else round(cpu), memory
        return found

    def _plan(self) -> dict[str, Any]:
        """The plan of the policies; empty at first, since the record contains a plan only after the first steps."""
        if self._plan_is_read:
            return {}
        traced = self._traced_bytes
        with suppress(OSError):
            traced = (self._folder / "trace.jsonl").stat().st_size
        if traced == self._traced_bytes:
            return {}
        self._traced_bytes = traced
        try:
            plan = read_plan(self._folder)
            drawing = None if plan is None else draw_plan(plan)
        # The plan is of another version, or the record was modified.
        except (KungfuError, *_OF_A_CHANGED_PLAN) as error:
            self._plan_is_read = True
            return {"plan": {"remark": f"the plan in the record cannot be shown: {error}"}}
        self._plan_is_read = drawing is not None
        return {} if drawing is None else {"plan": drawing}


def _membership(status: JobStatus, job: Job) -> dict[str, Any]:
    limits = {name: getattr(status.membership, name) for name in ("size", "target", "minimum", "maximum")}
    # The record names the end of a hold, and the status the seconds left, which change with every look.
    held = job.limits.hold() if job.limits and status.membership.held_at is not None else ""
    return {**limits, "held": held, "scaling": status.scaling, "request": status.request and status.request.words}
