"""Jobs in which no text says what has happened: they end as they do in plain English, for nothing is decided by words.

Errors of kungfu, how processes end, and the failures of the compiled all-reduce draw their texts from words that accuse
rank 0 of everything. Kinds, ranks and ids are as they are.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.jobs.harness import PROGRAMS, QUICKLY_S, ROOT, Job, ran, started
from tests.soak import SOAK

# The environment of such a job.
MEANINGLESS = {"PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS / "meaningless", ROOT)))}


def signalled(job: Job, peer: int, number: int) -> None:
    os.kill(job.event("spawned", peer=peer)["pid"], number)


@SOAK
def test_who_is_killed_is_lost_and_who_stands_still_is_ended_and_nobody_else(tmp_path: Path) -> None:
    options = ("-np", 3, "--failures", 0, "--heartbeat", 2)
    running = started(tmp_path, *options, program="failing.py", arguments=["endless"], environment=MEANINGLESS)
    with running as job:
        job.steps(3)
        signalled(job, 1, signal.SIGKILL)
        killed = job.event("recovered", to=2)
        signalled(job, 2, signal.SIGSTOP)
        stopped = job.event("recovered", to=1)
        job.signal(signal.SIGTERM)
        ended = job.end(code=143, deadline_s=QUICKLY_S)
    assert killed["lost"].keys() == {"1"}
    assert max(killed["stop_s"], stopped["stop_s"]) < 45, "a wait while they train may take 60 s"
    assert [event["peer"] for event in ended.all_of("dismissed")] == [2], "rank 0, whom every text accuses, is well"
    assert "died" not in ended.all_of("broken")[0]["why"], "the texts do not say so"


@pytest.mark.parametrize(
    ("how", "options", "code"),
    [
        ("break", ("-np", 2, "--min", 2, "--failures", 0), 1),
        ("small-batch", ("-np", 2), 2),
        ("before-attach", ("-np", 1), 2),
    ],
    ids=["a rank leaves its loop alone", "a refusal in the first step", "a refusal before attach"],
)
def test_a_job_that_cannot_go_on_ends_with_the_code_of_its_cause(
    tmp_path: Path, how: str, options: tuple[object, ...], code: int
) -> None:
    ended = ran(tmp_path, *options, program="failing.py", arguments=[how], environment=MEANINGLESS, code=code)
    (failed,) = ended.all_of("failed")
    assert failed["code"] == code
    assert how != "break" or failed["peer"] == 1
