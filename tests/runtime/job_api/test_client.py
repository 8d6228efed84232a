"""A job is asked over a real line: with the secret, without it, and when nobody is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from kungfu.errors import PeerFailure, UsageError
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.core.request import Asked, Resize
from kungfu.runtime.job_api.client import JobOver, connected
from kungfu.runtime.job_api.job_file import end_job_file, read_job_file, write_job_file
from tests.runtime.job_api.served_job import SECRET, serve_job, view


def test_the_status_tells_of_view_peers_and_the_newest_steps(tmp_path: Path) -> None:
    with serve_job(tmp_path) as place, connected(tmp_path) as job:
        place.put(
            NewRecords(rows=({"step": 7, "epoch": 1, "size": 2, "batch": 64, "loss": 0.5, "samples_per_s": 128.0},))
        )
        status = job.status()
    assert (status.job, status.scaling) == ("job", "elastic")
    assert (status.membership.version, status.membership.size, status.membership.target) == (3, 2, 2)
    assert [(one.id, one.rank, one.host, one.pid, one.state) for one in status.peers] == [
        (0, 0, "127.0.0.1", 100, "training"),
        (1, 1, "127.0.0.1", 101, "training"),
    ]
    assert (status.figures.step, status.figures.global_batch_size, status.figures.samples_per_s) == (7, 64, 128.0)


def test_a_request_is_taken_shown_as_under_way_and_done_when_its_view_is_in_force(tmp_path: Path) -> None:
    with serve_job(tmp_path) as place, connected(tmp_path) as job:
        assert job.submit(Asked(Resize(3), id="r")).state == "accepted"
        status = job.status()
        assert status.request is not None
        assert (status.request.words, status.membership.target) == ("resize 3", 3)
        place.moves(view(4, 0, 1, 2))
        assert (job.progress("r").state, job.progress("r").view) == ("carried out", 4)
        assert job.submit(Asked(Resize(3), id="r")).state == "accepted", "the first answer again"
        assert job.status().request is None
        assert [external.what for external in place.told] == [Resize(3)]
        assert [(event.id, event.state) for event in place.journal] == [("r", "accepted"), ("r", "carried out")]


def test_a_request_that_nobody_made_and_one_without_an_id_are_usage_errors(tmp_path: Path) -> None:
    with serve_job(tmp_path), connected(tmp_path) as job:
        with pytest.raises(UsageError, match="has taken no request 'x'"):
            job.progress("x")
        with pytest.raises(UsageError, match="has no id"):
            job.submit(Asked(Resize(1), id=""))


@pytest.mark.parametrize("secret", ["", "5ec2e8", SECRET[:-1]])
def test_without_the_secret_nothing_is_answered(tmp_path: Path, secret: str) -> None:
    with serve_job(tmp_path, secret=secret) as place, connected(tmp_path) as job:
        for ask in (job.status, lambda: job.progress("r"), lambda: job.submit(Asked(Resize(3), id="r"))):
            with pytest.raises(UsageError, match="does not take the secret"):
                ask()
        assert (place.told, place.journal) == ([], [])


def test_a_job_that_has_ended_is_over_with_its_code_and_without_its_secret(tmp_path: Path) -> None:
    with serve_job(tmp_path):
        end_job_file(tmp_path, code=3, now=time.time())
    assert read_job_file(tmp_path).secret == ""
    with pytest.raises(JobOver, match="the job is over; it ended with exit code 3") as caught, connected(tmp_path):
        pass
    assert caught.value.code == 3


def test_a_job_that_ends_while_it_is_asked_is_over_too(tmp_path: Path) -> None:
    with serve_job(tmp_path):
        line = connected(tmp_path)
        job = line.__enter__()
    end_job_file(tmp_path, code=0, now=time.time())
    with pytest.raises(JobOver, match="exit code 0"):
        job.status()
    line.__exit__(None, None, None)


def test_a_job_whose_kungfu_run_was_killed_is_over_without_a_word(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait(180.0)
    with serve_job(tmp_path):
        write_job_file(tmp_path, replace(read_job_file(tmp_path), pid=gone.pid))
    with pytest.raises(JobOver, match="ended without a word"), connected(tmp_path):
        pass


def test_a_job_of_another_machine_is_asked_and_not_taken_for_over(tmp_path: Path) -> None:
    with serve_job(tmp_path):
        write_job_file(tmp_path, replace(read_job_file(tmp_path), process="another-boot 7"))
        with connected(tmp_path) as job:
            assert job.status().job == "job"
    with pytest.raises(PeerFailure, match="it runs on another, or ended"), connected(tmp_path) as job:
        job.status()


def test_an_agent_that_does_not_listen_is_lost_by_name(tmp_path: Path) -> None:
    with serve_job(tmp_path):
        pass
    lost = pytest.raises(PeerFailure, match=f"lost the agent of .* \\(process {os.getpid()}\\)")
    with lost, connected(tmp_path) as job:
        job.status()
