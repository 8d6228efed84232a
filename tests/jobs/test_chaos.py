"""``kungfu chaos`` at real jobs, whose programs count what they trained on: what it says held, did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.convex_runs import on_one_host, training
from tests.jobs.harness import ONE_THREAD_EACH, ROOT, Job, lines_of
from tests.soak import SOAK

COMMAND = [sys.executable, "-m", "kungfu.cli.main", "chaos"]
STEPPING = ("--sleep-s", 0.2)  # the job must find its way on a busy machine while chaos is at work
ENVIRONMENT = {**os.environ, **ONE_THREAD_EACH, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Chaos:
    """What a chaos that is over has said."""

    code: int
    report: dict[str, Any]
    said: str

    @property
    def faults(self) -> list[dict[str, Any]]:
        return self.report["faults"]


def chaos(folder: Path, *words: object, deadline_s: float = 240.0) -> Chaos:
    """Chaos from its start to its end."""
    line = [*COMMAND, "--logdir", folder, "--yes", "--json", *words]
    done = subprocess.run(
        [str(word) for word in line], env=ENVIRONMENT, capture_output=True, text=True, timeout=deadline_s
    )  # fmt: skip
    return Chaos(done.returncode, json.loads(done.stdout or "{}"), done.stderr)


def by_hand(*faults: str) -> list[str]:
    return [word for fault in faults for word in ("--fault", fault)]


@contextmanager
def many_epochs(tmp_path: Path, *options: object, epochs: int) -> Iterator[Job]:
    """A job of 2 to 4 peers, which must end as if nothing had happened."""
    with on_one_host(tmp_path, *options, size=2, epochs=epochs, more=STEPPING) as (job, steered):
        job.steps(5)
        yield job
        steered.hurry()
        ended = job.end()
    steered.ended(ended)


def test_the_leader_is_killed_during_a_checkpoint_and_another_peer_is_frozen(tmp_path: Path) -> None:
    """The leader is killed while a checkpoint is written, and another peer is frozen for a while."""
    with many_epochs(tmp_path, "--heartbeat", 60, epochs=24) as job:
        faults = ("now checkpoint", "now kill coordinator", "once settled freeze rank 0 for 1.5 s")
        found = chaos(job.folder, *by_hand(*faults), "--within", 100)
    assert found.code == 0, (found.report, found.said)
    assert [one["peers"] for one in found.faults] == [[], [0], [1]]
    assert [one["held"] for one in found.faults] == [True] * 3
    _, killed, frozen = found.faults
    assert killed["stop_s"] < killed["whole_s"], "the others trained on long before somebody came"
    assert frozen["stop_s"] > 0.5
    assert "nobody gave peer 1 up" in frozen["result"]
    assert [view["digests"] for view in found.report["views"]] == ["one peer", "equal"]
    assert found.report["samples"]["problems"] == []
    assert found.report["samples"]["samples"] > 0
    assert [event["peer"] for event in lines_of(job.folder / "events.jsonl") if event["event"] == "lost"] == [0]


@SOAK
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_drawn_schedule_holds(tmp_path: Path, seed: int) -> None:
    with many_epochs(tmp_path, "--heartbeat", 4, "--failures", 100, epochs=100) as job:
        found = chaos(job.folder, "--seed", seed, "--faults", 4, "--every", 10, deadline_s=280.0)
    assert found.code == 0, (found.report, found.said)
    assert all(one["held"] for one in found.faults)


@SOAK
def test_faults_while_a_joiner_warms_up_and_in_a_rescale_and_two_at_once(tmp_path: Path) -> None:
    faults = (
        "now resize 3", "at next spawned after 1 s kill coordinator", "once settled kill ranks 0,1",
        "at next regrouping kill joiner", "once settled slow rank 0 to 50 % for 2 s", "once settled resize 2",
    )  # fmt: skip
    with many_epochs(tmp_path, "--failures", 100, epochs=100) as job:
        found = chaos(job.folder, *by_hand(*faults), deadline_s=280.0)
    carried = [one["time"] is not None for one in found.faults]
    assert carried[:3] == [True] * 3, found.report
    assert carried[4:] == [True] * 2, found.report


@SOAK
def test_a_job_that_ends_in_the_middle_is_no_error_but_not_all_was_carried_out(tmp_path: Path) -> None:
    running = on_one_host(tmp_path, size=2, epochs=20, more=STEPPING)
    with running as (job, steered), ThreadPoolExecutor(1) as beside:
        job.steps(1)
        at_work = beside.submit(chaos, job.folder, *by_hand("now checkpoint", "at step 100000 kill rank 1"))
        job.event("request", state="carried out")
        steered.hurry()
        job.end()
        found = at_work.result()
    assert found.code == 1
    assert "the job had ended" in found.faults[1]["result"]
    assert found.report["code"] == 0


@SOAK
def test_the_agent_of_the_own_host_is_killed_and_another_one_is_watched(tmp_path: Path) -> None:
    """The agent of the own host is killed, and the record and the requests are those of the watched one."""
    with training(tmp_path, slots=(1, 1, 3), size=3) as run:
        run.hosts[1].steps(10)
        here, there = run.hosts.folders[:2]
        refused = chaos(here, *by_hand("now kill host 0"))
        assert (refused.code, "give --watch" in refused.said) == (2, True), refused.said
        faults = ("now kill host 0", "once settled checkpoint", "once settled freeze rank 1 for 1 s")
        found = chaos(here, *by_hand(*faults), "--watch", there)
        run.ends(-signal.SIGKILL, 0, 0, tells=1)
    assert found.code == 0, (found.report, found.said)
    assert [one["held"] for one in found.faults] == [True] * 3
    assert found.faults[0]["peers"] == [0], "the one that its host had started"
    assert "a checkpoint of" in found.faults[1]["result"]
    assert any("leads the job now" in line for line in found.report["events"])
    assert found.report["samples"]["problems"] == []
