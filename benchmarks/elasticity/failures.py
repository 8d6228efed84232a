"""Kills of one worker of three, under kungfu and under Horovod Elastic, measured by the survivors' stamps."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from benchmarks.elasticity.jobs import Job, started
from benchmarks.elasticity.stamps import Stamp
from benchmarks.elasticity.stops import Recovery, recovery

__all__ = ["SIZE", "killed_under_horovod", "killed_under_kungfu"]

SIZE = 3
CALM = 40  # steps before the kill
LONELY_HOST = "127.0.0.1"
BEGIN_S, RECOVER_S = 300.0, 180.0


def killed_under_kungfu(*, rank: int, options: dict[str, object]) -> Recovery:
    """Kills a worker under kungfu; the job continues with two, without waiting for the replacement."""

    def launcher(folder: Path) -> Sequence[object]:
        size = ["-np", SIZE, "--min", 1, "--max", SIZE]
        return [sys.executable, "-m", "kungfu.cli.run", *size, "--attachment", "local", "--logdir", folder / "log"]

    with started(launcher, program="elasticity.programs.kungfu_worker", options=options | {"low": SIZE}) as job:
        return _killed(job, lambda pid, stamps: stamps[-1].rank == rank)


def killed_under_horovod(*, options: dict[str, object]) -> Recovery:
    """Kills a worker under Horovod, which drops the victim's host: the victim has a separate name of this machine."""

    def launcher(folder: Path) -> Sequence[object]:
        script = folder / "hosts.sh"
        script.write_text(f"#!/bin/sh\necho localhost:{SIZE - 1}\necho {LONELY_HOST}:1\n")
        script.chmod(0o700)
        sizes = ["-np", SIZE, "--min-np", SIZE - 1, "--max-np", SIZE]
        return ["horovodrun", "--gloo", "--network-interface", "lo", *sizes, "--host-discovery-script", script]

    with started(launcher, program="elasticity.programs.horovod_worker", options=options) as job:
        return _killed(job, lambda pid, _: psutil.Process(pid).environ()["HOROVOD_HOSTNAME"] == LONELY_HOST)


def _killed(job: Job, is_victim: Callable[[int, Sequence[Stamp]], bool]) -> Recovery:
    """Kills a worker in the middle of its training, and returns when each of the others continues."""
    job.steps_at(SIZE, count=CALM, deadline_s=BEGIN_S)
    victim = next(pid for pid, stamps in job.stamps().items() if is_victim(pid, stamps))
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    job.until(_gone_on(victim, at), what="the survivors' next step after a kill", deadline_s=RECOVER_S)
    return recovery(job.stamps(), killed=victim, at=at)


def _gone_on(victim: int, at: float) -> Callable[[dict[int, list[Stamp]]], bool]:
    def look(workers: dict[int, list[Stamp]]) -> bool:
        survivors = [stamps for pid, stamps in workers.items() if pid != victim and stamps[0].ended < at]
        return all(any(one.began > at and 0 < one.size < SIZE for one in stamps) for stamps in survivors)

    return look
