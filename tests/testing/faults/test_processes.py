"""Processes that a record names, and what their ids belong to by now."""

from __future__ import annotations

import os
import subprocess
import time

from kungfu.event_log.job import Job, JobHost
from kungfu.testing.faults.processes import local_hosts, why_out_of_reach


def test_a_process_that_was_there_when_it_was_told_of_can_be_reached() -> None:
    assert why_out_of_reach(os.getpid(), started_at=time.time()) == ""
    assert why_out_of_reach(os.getpid(), started_at=None) == ""


def test_a_process_that_has_ended_is_told_also_before_it_is_reaped() -> None:
    child = subprocess.Popen(["sleep", "600"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert why_out_of_reach(child.pid, started_at=None) == f"process {child.pid} has ended"
    child.wait()
    assert why_out_of_reach(child.pid, started_at=None) == f"process {child.pid} has ended"


def test_the_hosts_of_a_job_that_are_this_machine_are_known_by_their_addresses() -> None:
    assert local_hosts(Job()) == local_hosts(Job(hosts={0: JobHost("", 7)})) == {0}, "the only host of a job"
    names = ("192.0.2.1", "127.0.0.2", "localhost")
    assert local_hosts(Job(hosts={host: JobHost(name, 7) for host, name in enumerate(names)})) == {1, 2}
