"""Real jobs under kungfu-run with emulated devices: starts them, waits, and reads their workers' stamps."""

from __future__ import annotations

import json
import math
import secrets
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.elasticity.jobs import Job, awaited, started
from benchmarks.elasticity.stamps import Stamp
from benchmarks.emulation.curves import Curve
from kungfu import Keep

__all__ = ["RealRun", "Slow", "Task", "Work", "checked", "free_port", "run_job"]

START_S, PEER_START_S = 120.0, 20.0  # limits for a job to begin, and for each of its peers to start, on a busy machine
CHECKED_STEPS = 60
PROGRAM = "emulation.worker"


@dataclass(frozen=True)
class Work:
    """The work of a job.

    Args:
        curve: The devices' samples / s by size, in real seconds.
        samples: The samples of the whole job.
        batch: The samples of a step: of all peers, or of each peer.
        keep: The batch size that a change of size keeps, of the job or of each peer.
    """

    curve: Curve
    samples: int
    batch: int
    keep: Keep = "global_batch_size"

    def batch_at(self, size: int) -> int:
        """The samples of a step with ``size`` peers."""
        return self.batch if self.keep == "global_batch_size" else self.batch * size

    def step_s(self, size: int) -> float:
        """The seconds of a step with ``size`` peers."""
        return self.curve.step_s(size, batch=self.batch_at(size))


@dataclass(frozen=True)
class Slow:
    """The slow peers of a job.

    Args:
        every: One of every N peers is slow, by peer ids; 0 for no slow peers.
        factors: The factors by which steps of slow peers take longer; each applies for `phase` steps.
        phase: The steps of each factor; 0 for a single, lasting factor.
    """

    every: int = 0
    factors: tuple[float, ...] = (1.0,)
    phase: int = 0


@dataclass(frozen=True)
class Task:
    """A job to run.

    Args:
        work: The work of the job.
        start: The initial number of peers.
        most: The most peers allowed.
        least: The fewest peers allowed.
        policy: The argument of ``kungfu-run --policy``; empty for a job of fixed size.
        slow: The slow peers.
        hosts: The slots of each host, a loopback address of this machine; empty for one host.
        spares: The argument of ``kungfu-run --spares``; the work begins when the spares are ready.
    """

    work: Work
    start: int
    most: int
    least: int = 1
    policy: str = ""
    slow: Slow = Slow()
    hosts: tuple[int, ...] = ()
    spares: str = "0"

    @property
    def longest_s(self) -> float:
        """The device seconds at the slowest size."""
        curve = self.work.curve
        return max(curve.seconds(one, samples=self.work.samples) for one in curve.throughput) * max(self.slow.factors)


@dataclass(frozen=True)
class RealRun:
    """A finished job.

    Args:
        seconds: The time from the beginning of the first step to the end of the last step.
        peer_seconds: The sum over the peers of the time from their first to their last step.
        ends: The end of each step, in seconds since the beginning of the first.
        sizes: The size of the job in each step.
        wall_s: The time from the launch to the end, including the starts of all processes.
        events: The recorded events of the job.
    """

    seconds: float
    peer_seconds: float
    ends: tuple[float, ...]
    sizes: tuple[int, ...]
    wall_s: float = 0.0
    events: tuple[dict[str, Any], ...] = ()

    @property
    def size(self) -> int:
        """The final number of peers."""
        return self.sizes[-1]

    @property
    def settled_s(self) -> float:
        """The second of the last change of size; 0 without a change."""
        changes = (
            end for end, size, before in zip(self.ends[1:], self.sizes[1:], self.sizes, strict=False) if size != before
        )
        return max(changes, default=0.0)

    @property
    def joining_s(self) -> float:
        """The median seconds from start to readiness of joined peers; NaN if none joined."""
        rescales = (event for event in self.events if event["event"] == "rescale" and event["joined"])
        seconds = [one["parts"].get("spawn_s", 0.0) + one["parts"].get("ready_s", 0.0) for one in rescales]
        return statistics.median(seconds) if seconds else math.nan

    @property
    def step_s(self) -> float:
        """The mean seconds of a step, without the first five."""
        return (self.ends[-1] - self.ends[5]) / (len(self.ends) - 6)


def run_job(task: Task) -> RealRun:
    """Runs a job to its end; exits the benchmark if the job fails, or is far slower than its slowest size."""
    begun, work, slow = time.monotonic(), task.work, task.slow
    seconds = {str(size): round(work.step_s(size), 6) for size in work.curve.throughput}
    options = {
        "seconds": json.dumps(seconds),
        "samples": work.samples,
        "batch": work.batch_at(task.start),
        "slow": slow.factors,
        "slow-every": slow.every,
        "phase": slow.phase,
        **({"at-rest": ()} if task.spares != "0" else {}),
    }
    with ExitStack() as stack:
        names = [f"127.0.0.{host + 1}" for host in range(len(task.hosts) or 1)]
        shared = _shared_words(names, task.hosts, stack)
        jobs: list[Job] = []
        for name in names:
            launcher = partial(_launcher, task, [*shared, *(["--self", name] if shared else [])])
            first = jobs[0] if jobs else None
            jobs.append(stack.enter_context(started(launcher, program=PROGRAM, options=options, beside=first)))
        deadline_s = START_S + PEER_START_S * 2 * task.most + 3 * task.longest_s
        awaited(
            lambda: sum(job.has_ended() for job in jobs) == len(jobs), what="the end of the job", deadline_s=deadline_s
        )
        events = (jobs[0].folder / "log" / "events.jsonl").read_text().splitlines()
        return from_stamps(
            jobs[0].stamps(), wall_s=time.monotonic() - begun, events=[json.loads(line) for line in events]
        )


def _launcher(task: Task, hosting: Sequence[str], folder: Path) -> Sequence[object]:
    size = ["-np", task.start, "--min", task.least, "--max", task.most]
    # Starting processes delay others on few cores: no peer may be declared lost meanwhile.
    told = ["--heartbeat", 60, "--trace-limit", 0, "--attachment", "local", "--logdir", folder / "log"]
    policy = ["--policy", task.policy] if task.policy else []
    told += ["--spares", task.spares]
    return [sys.executable, "-m", "kungfu.cli.run", *size, *told, *policy, *hosting]


def _shared_words(names: Sequence[str], slots: Sequence[int], stack: ExitStack) -> list[str]:
    """The arguments that all hosts share, for a job of several hosts; empty for one host."""
    if not slots:
        return []
    listed = ",".join(f"{name}:{room}" for name, room in zip(names, slots, strict=True))
    secret = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))) / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    return ["-H", listed, "--port", str(free_port(names)), "--secret-file", str(secret)]


def free_port(names: Sequence[str]) -> int:
    """A port that is free on all addresses in ``names``."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server((names[0], 0)))
            port = int(first.getsockname()[1])
            try:
                for name in names[1:]:
                    stack.enter_context(socket.create_server((name, port)))
            except OSError:
                continue
            return port


def from_stamps(
    workers: Mapping[int, Sequence[Stamp]], *, wall_s: float = 0.0, events: Iterable[dict[str, Any]] = ()
) -> RealRun:
    """The results of a job from the stamps of all workers.

    A worker's first step includes its start and a wait for others, so it counts with the time of the worker's second
    step.
    """
    ends: dict[int, tuple[float, int]] = {}
    lives = []
    for stamps in workers.values():
        done = [one for one in stamps if one.after > one.before]
        if done:
            first_s = done[1].ended - done[0].ended if len(done) > 1 else 0.0
            lives.append((done[0].ended - first_s, done[-1].ended))
        # A leaving peer does not know the new size.
        for one in (one for one in done if one.size):
            ended, size = ends.get(one.after, (one.ended, one.size))
            ends[one.after] = (min(ended, one.ended), size)
    begin, steps = min(one for one, _ in lives), [ends[number] for number in sorted(ends)]
    return RealRun(
        steps[-1][0] - begin,
        sum(end - begin for begin, end in lives),
        tuple(ended - begin for ended, _ in steps),
        tuple(size for _, size in steps),
        wall_s,
        tuple(events),
    )


def checked(task: Task, *, steps: int = CHECKED_STEPS) -> float:
    """The fraction by which steps in a short real run of fixed size exceed the time on the curve."""
    work = replace(task.work, samples=steps * task.work.batch_at(task.start))
    real = run_job(replace(task, work=work, most=task.start, policy=""))
    return real.step_s / work.step_s(task.start) - 1
