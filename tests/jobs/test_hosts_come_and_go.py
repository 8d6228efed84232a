"""Hosts that no list names join a job that runs, leave it and come back; all of them are this machine."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from kungfu.cli.hosting import SECRET_KEY
from tests.jobs.convex_runs import training
from tests.jobs.fork_server import ROOT
from tests.jobs.harness import Job, asked, lines_of

# Only the request for admission is an hour late: gRPC mixes the clock of Python with that of the machine.
LATE_CLOCK = """
import time, types
from kungfu.runtime.agent.consensus import host_admission
late = {"time": lambda: time.time() - 3600.0, "monotonic": time.monotonic, "sleep": time.sleep}
host_admission.time = types.SimpleNamespace(**late)
"""


def sizes_in(job: Job) -> list[int]:
    """The sizes of the views so far."""
    return [len(line["peers"]) for line in lines_of(job.folder / "events.jsonl") if line["event"] == "view"]


def test_a_host_joins_through_a_follower_gets_a_peer_and_outlives_the_leader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Host 2 joins, host 0 is lost, and host 2 is taken away; its name comes back as host 3."""
    with training(tmp_path, slots=(1, 1), size=2, most=3) as run:
        run.hosts[0].steps(10)
        joined = run.hosts.join(3, 1)
        run.hosts[0].event("host", host=2)
        joined.seen((joined.folder / "job.json").exists, what="the file by which it is asked", deadline_s=180.0)
        assert asked(joined.folder, capsys, "scale-out", "127.0.0.3")["state"] == "carried out"
        assert asked(joined.folder, capsys, "status")["peers"][2]["host"] == "127.0.0.3"
        run.hosts[0].signal(signal.SIGKILL)
        run.hosts[1].event("recovered")
        joined.signal(signal.SIGTERM)
        left = joined.end()
        run.hosts[1].event("host left", host=2)
        again = run.hosts.join(3, 1, name="again")
        again.event("rescale", to=2)
        assert asked(again.folder, capsys, "status")["peers"][1]["host"] == "127.0.0.3"
        killed, ended, *_ = run.ends(-signal.SIGKILL, 0, 0, 0, tells=1)
    assert [event["name"] for event in ended.all_of("host")] == [f"127.0.0.{n}" for n in (1, 2, 3, 3)]
    assert "left the job" in left.output
    assert killed.sizes == [2, 3]
    assert sizes_in(again)[:3] == [2, 3, 2], "its record tells what happened before"


def test_a_host_that_cannot_join_is_told_why_and_the_job_goes_on(tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.mkdir()
    (late / "sitecustomize.py").write_text(LATE_CLOCK)
    clock = {"PYTHONPATH": f"{late}{os.pathsep}{ROOT}"}
    with training(tmp_path, slots=(1,), size=1) as run, socket.create_server(("127.0.0.5", 0)) as other:
        run.hosts[0].steps(5)
        join, nobody = run.hosts.join, ("--join", "127.0.0.9:9", "--ready-deadline", 1)
        used = ("--port", other.getsockname()[1])
        reasons = [
            (2, "has another secret: give every host the same one", join(2, 1, environment={SECRET_KEY: "ab" * 32})),
            (2, "started with program", join(3, 1, arguments=["--another"])),
            (2, "started with -np '7', and the job with '1'", join(4, 1, "-np", 7, "--max", 7, "--min-hosts", 9)),
            (2, "cannot listen on 127.0.0.5:", join(5, 1, *used)),
            (2, "a host with the name 127.0.0.1 is in it, at 127.0.0.1:", join(1, 1, *used, name="twice")),
            (3, "no agent at 127.0.0.9:9 accepted", join(6, 1, *nobody)),
            (2, "its clock is 3600 s behind the clock of the host that leads", join(7, 1, environment=clock)),
        ]
        for code, why, job in reasons:
            assert why in job.end(code=code).output
        ended, *_ = run.ends(0, *(code for code, *_ in reasons))
    assert [event["host"] for event in ended.all_of("host")] == [0], "no other host has a number"
    assert ended.all_of("host lost") + ended.all_of("failed") == []
    told = [lines_of(job.folder / "events.jsonl") for _, why, job in reasons if "listen" not in why]
    assert {event["event"] for _, event in told} == {"failed"}, "`kungfu why` tells it"


def test_a_job_begins_with_some_hosts_and_a_forgotten_one_has_another_number(tmp_path: Path) -> None:
    """Of three peers two begin, as soon as two hosts are there; the third starts on the third host."""
    with training(tmp_path, "--min-hosts", 2, "--forget-host", 1, slots=(1,), size=3) as run:
        second = run.hosts.join(2, 1)
        run.hosts[0].event("view", version=1)
        third = run.hosts.join(3, 1)
        third.event("rescale", to=3)
        second.signal(signal.SIGKILL)
        run.hosts[0].event("host left", host=1)
        run.hosts.join(2, 1, name="again")
        run.hosts[0].seen(lambda: sizes_in(run.hosts[0]).count(3) == 2, what="three peers again", deadline_s=180.0)
        ended, *_ = run.ends(0, -signal.SIGKILL, 0, 0)
    assert ended.sizes == [2, 3, 2, 3]
    assert [(event["host"], event["name"]) for event in ended.all_of("host")] == [
        (0, "127.0.0.1"), (1, "127.0.0.2"), (2, "127.0.0.3"), (3, "127.0.0.2"),
    ]  # fmt: skip
