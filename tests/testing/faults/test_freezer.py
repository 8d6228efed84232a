"""Processes that are frozen or slowed, and that run again whatever becomes of those who froze them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from kungfu.testing.faults import Freezer

STOPPED = psutil.STATUS_STOPPED


@contextmanager
def process() -> Iterator[psutil.Process]:
    """A process that does nothing; ended by its id."""
    child = subprocess.Popen(["sleep", "600"])
    try:
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


def awaited(look: Callable[[], bool], *, deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def went_on(pid: int) -> bool:
    """Whether a child of this process was stopped, and has gone on since the last call: the kernel remembers it."""
    return os.waitpid(pid, os.WCONTINUED | os.WNOHANG)[0] == pid


def test_what_is_frozen_runs_again_after_its_time() -> None:
    with process() as one, Freezer() as freezer:
        assert freezer.freeze(one.pid, for_s=0.1)
        awaited(lambda: went_on(one.pid))


def test_what_is_frozen_is_thawed_when_asked_and_when_the_block_ends() -> None:
    with process() as one, process() as other:
        with Freezer() as freezer:
            assert freezer.freeze(one.pid, for_s=600)
            assert freezer.freeze(other.pid, for_s=600)
            awaited(lambda: one.status() == other.status() == STOPPED)
            assert freezer.thaw(one.pid)
            awaited(lambda: one.status() != STOPPED)
            assert other.status() == STOPPED
        awaited(lambda: other.status() != STOPPED)


def test_what_is_slowed_runs_and_stands_in_turn() -> None:
    with process() as one, Freezer() as freezer:
        assert freezer.slow(one.pid, share=0.5, for_s=600)
        for _ in range(2):
            awaited(lambda: went_on(one.pid))


def test_what_is_frozen_runs_again_when_who_froze_it_is_killed() -> None:
    program = (
        "import sys, time; from kungfu.testing.faults.freezer import Freezer; freezer = Freezer(); "
        "print(freezer.freeze(int(sys.argv[1]), for_s=600), flush=True); time.sleep(600)"
    )
    with process() as one:
        words = [sys.executable, "-c", program, str(one.pid)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as who:
            assert who.stdout is not None
            assert who.stdout.readline() == "True\n"
            awaited(lambda: one.status() == STOPPED)
            os.kill(who.pid, signal.SIGKILL)
            who.wait()
        awaited(lambda: one.status() != STOPPED)


def test_a_process_that_is_not_there_and_a_guard_that_was_killed_are_told() -> None:
    with process() as one:
        gone = one.pid
    with process() as one, Freezer() as freezer:
        assert not freezer.freeze(gone, for_s=1)
        (guard,) = [child for child in psutil.Process().children() if "freezer.py" in " ".join(child.cmdline())]
        guard.kill()
        guard.wait()
        assert not freezer.freeze(one.pid, for_s=600)
