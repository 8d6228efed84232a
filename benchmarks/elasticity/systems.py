"""Three systems that change a job's size (kungfu, Horovod Elastic, a restart), measured by stamps of steps."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.elasticity.jobs import Job, started
from benchmarks.elasticity.stamps import Stamp
from benchmarks.elasticity.stops import changes, normal_step_s

__all__ = ["Measured", "Task", "by_horovod", "by_kungfu", "by_restart"]

EVERY = 40  # steps between two changes
DEADLINE_S, SETTLED_S = 300.0, 1.0


@dataclass(frozen=True)
class Task:
    """The task: ``low`` workers to one more and back, repeated, with a given amount of state."""

    low: int
    megabytes: float
    device_s: float
    rounds: int

    @property
    def options(self) -> dict[str, object]:
        """The options of every worker."""
        return {"megabytes": self.megabytes, "device-s": self.device_s}


@dataclass(frozen=True)
class Measured:
    """The stops of one system in seconds, its normal step, and the parts of its stops if recorded."""

    join_s: tuple[float, ...]
    leave_s: tuple[float, ...]
    step_s: float
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def join_stop_s(self) -> float:
        """The median stop of the joins, in seconds."""
        return statistics.median(self.join_s)

    @property
    def leave_stop_s(self) -> float:
        """The median stop of the leaves, in seconds."""
        return statistics.median(self.leave_s)


def by_kungfu(task: Task) -> Measured:
    """Measures kungfu: a policy adds and removes one peer in turn."""

    def launcher(folder: Path) -> Sequence[object]:
        size = ["-np", task.low, "--max", task.low + 1]
        return [sys.executable, "-m", "kungfu.cli.run", *size, "--attachment", "local", "--logdir", folder / "log"]

    with started(
        launcher, program="elasticity.programs.kungfu_worker", options=task.options | {"low": task.low, "every": EVERY}
    ) as job:
        job.until(
            lambda workers: len(changes(workers)) >= 2 * task.rounds,
            what=f"{2 * task.rounds} changes of size",
            deadline_s=DEADLINE_S + 60.0 * task.rounds,
        )
        time.sleep(SETTLED_S)
        return _measured(job.stamps(), low=task.low, parts=_parts(job.folder / "log" / "events.jsonl"))


def by_horovod(task: Task) -> Measured:
    """Measures Horovod Elastic, which runs a script for the hosts once a second; the script's output changes."""

    def launcher(folder: Path) -> Sequence[object]:
        script = folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
        script.chmod(0o700)
        _set_hosts(folder, task.low)
        sizes = ["-np", task.low, "--min-np", 1, "--max-np", task.low + 1]
        return [*_HOROVODRUN, *sizes, "--host-discovery-script", script]

    with started(launcher, program="elasticity.programs.horovod_worker", options=task.options) as job:
        job.steps_at(task.low, count=EVERY, deadline_s=DEADLINE_S)
        for _ in range(task.rounds):
            for size in (task.low + 1, task.low):
                _set_hosts(job.folder, size)
                job.steps_at(size, count=EVERY, deadline_s=DEADLINE_S)
        return _measured(job.stamps(), low=task.low)


def by_restart(task: Task) -> Measured:
    """Measures a restart: a job of fixed size saves its state, ends, and starts with another size."""
    stops: dict[int, list[float]] = {task.low: [], task.low + 1: []}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as path:
        before = _phase(task, task.low, Path(path))
        for _ in range(task.rounds):
            for size in (task.low + 1, task.low):
                after = _phase(task, size, Path(path))
                gap = min(one[0].ended for one in after) - max(one[-1].ended for one in before)
                stops[size].append(gap - normal_step_s(before[0]))
                before = after
    return Measured(tuple(stops[task.low + 1]), tuple(stops[task.low]), normal_step_s(before[0]))


_HOROVODRUN = ("horovodrun", "--gloo", "--network-interface", "lo")


def _set_hosts(folder: Path, size: int) -> None:
    fresh = folder / "hosts.new"
    fresh.write_text(f"localhost:{size}\n")
    fresh.rename(folder / "hosts")


def _phase(task: Task, size: int, folder: Path) -> list[list[Stamp]]:
    """Runs one phase of the restarted job, from start to end, and returns its workers' stamps."""
    stop = folder / "stop"
    stop.unlink(missing_ok=True)
    options = task.options | {"folder": folder}
    with started(
        lambda _: [*_HOROVODRUN, "-np", size], program="elasticity.programs.restart_worker", options=options
    ) as job:
        job.steps_at(size, count=EVERY, deadline_s=DEADLINE_S)
        stop.touch()
        _ended(job)
        return list(job.stamps().values())


def _ended(job: Job) -> None:
    code = job.process.wait(timeout=DEADLINE_S)
    if code:
        raise SystemExit(f"a job that was told to stop ended with exit code {code}")


def _measured(
    workers: Mapping[int, Sequence[Stamp]], *, low: int, parts: Mapping[str, Mapping[str, float]] | None = None
) -> Measured:
    found = changes(workers)
    joins = tuple(one.stop_s for one in found if (one.before, one.after) == (low, low + 1))
    leaves = tuple(one.stop_s for one in found if (one.before, one.after) == (low + 1, low))
    longest = max(workers.values(), key=len)
    return Measured(joins, leaves, normal_step_s(longest), parts or {})


def _parts(path: Path) -> dict[str, dict[str, float]]:
    """The median seconds of each part of the barriers that changed the size, from the job's record."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    rescales = [event for event in events if event["event"] == "rescale"]
    kinds = {"join": [one for one in rescales if one["joined"]], "leave": [one for one in rescales if one["left"]]}
    return {
        kind: {
            name: statistics.median(one["parts"][name] for one in found if name in one["parts"])
            for name in (found[0]["parts"] if found else ())
        }
        for kind, found in kinds.items()
    }
