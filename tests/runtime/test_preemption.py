"""SIGTERM as a notice, in real processes. This file is also the program that each of them runs."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kungfu.runtime.preemption import PREEMPTED_CODE, on_preemption_signal

DEADLINE_S = 180.0


@contextmanager
def program(how: str) -> Iterator[subprocess.Popen[str]]:
    """Runs this file, which has said that it is ready; whatever still runs afterwards is killed."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, __file__, how], env=environment, text=True, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert said(process) == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_a_first_signal_is_heard_in_a_long_call_and_a_second_ends_the_process() -> None:
    """The first signal is heard while the main thread is in a long call, and the second ends the process."""
    with program("long-call") as process:
        process.terminate()
        assert said(process) == "noticed", "its call never ends"
        process.terminate()
        assert process.wait(DEADLINE_S) == PREEMPTED_CODE


@pytest.mark.parametrize("how", ["own-handler", "later-handler", "ignored"])
def test_a_program_that_handles_the_signal_itself_is_left_in_peace(how: str) -> None:
    with program(how) as process:
        for _ in range(3):
            process.terminate()
        output, _ = process.communicate("", DEADLINE_S)
        assert process.returncode == 0
        assert "noticed" not in output


def test_a_wake_up_descriptor_of_the_program_stays_and_notices_still_come() -> None:
    with program("own-descriptor") as process:
        process.terminate()
        assert said(process) == "noticed"
        output, _ = process.communicate("", DEADLINE_S)
        assert output == "kept\n"


def test_a_forked_child_is_ended_by_the_signal_and_its_parent_hears_nothing() -> None:
    with program("fork") as process:
        assert said(process) == f"child {signal.SIGTERM}"
        process.terminate()
        assert said(process) == "noticed"


@pytest.mark.parametrize(("how", "code"), [("closed", -signal.SIGTERM), ("closed-in-thread", PREEMPTED_CODE)])
def test_after_its_end_the_signal_ends_the_process(how: str, code: int) -> None:
    with program(how) as process:
        process.terminate()
        assert process.wait(DEADLINE_S) == code


@pytest.mark.parametrize(("how", "why"), [("failing", "the agent is gone"), ("failing-alike", "Channel closed!")])
def test_a_notice_that_reaches_nobody_is_told_in_a_line(how: str, why: str) -> None:
    with program(how) as process:
        process.terminate()
        assert said(process) == f"kungfu: SIGTERM is a notice, but it reached nobody: {why}"


def test_a_notice_is_passed_where_no_thread_can_be_started_and_none_after_the_end() -> None:
    with program("no-thread") as process:
        process.terminate()
        assert said(process) == "noticed"
    with program("over") as process:
        process.terminate()
        assert said(process) == "over"
        output, _ = process.communicate("", DEADLINE_S)
        assert output == "", "no traceback"


def test_outside_the_main_thread_nothing_happens() -> None:
    before, ends = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=lambda: ends.append(on_preemption_signal(lambda: None)))
    thread.start()
    thread.join()
    ends[0]()
    assert signal.getsignal(signal.SIGTERM) == before


def noticed() -> None:
    print("noticed", flush=True)


def ready() -> None:
    print("ready", flush=True)


def ready_until_input_ends() -> None:
    ready()
    sys.stdin.read()


def long_call() -> None:
    """In C for ever, in a lock that it holds itself: no signal ends that call, and no handler of Python's can run."""
    on_preemption_signal(noticed)
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    ready()
    lock(mutex)


def own_handler(handler: Any = lambda number, frame: None) -> None:
    signal.signal(signal.SIGTERM, handler)
    on_preemption_signal(noticed)
    ready_until_input_ends()


def later_handler() -> None:
    on_preemption_signal(noticed)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    ready_until_input_ends()


def own_descriptor() -> None:
    _, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    on_preemption_signal(noticed)
    ready_until_input_ends()
    print("kept" if signal.set_wakeup_fd(-1) == write else "lost")


def fork() -> None:
    on_preemption_signal(noticed)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"x")
        while True:
            signal.pause()
    os.read(read, 1)
    os.kill(child, signal.SIGTERM)
    ready()
    print(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * -1}", flush=True)
    sys.stdin.read()


def closed() -> None:
    end = on_preemption_signal(noticed)
    end()
    end()
    ready_until_input_ends()


def closed_in_thread() -> None:
    thread = threading.Thread(target=on_preemption_signal(noticed))
    thread.start()
    thread.join()
    ready_until_input_ends()


def failing(error: Exception | None = None) -> None:
    from kungfu.errors import PeerFailure

    def reach() -> None:
        raise error or PeerFailure("the agent is gone")

    os.dup2(1, 2)
    on_preemption_signal(reach)
    ready_until_input_ends()


def no_thread(main_lives: bool = True) -> None:
    def none_left(thread: threading.Thread) -> None:
        print("" if main_lives else "over\n", end="", flush=True)
        raise RuntimeError("can't start new thread")

    os.dup2(1, 2)
    on_preemption_signal(noticed)
    threading.Thread.start = none_left
    if not main_lives:
        threading.main_thread().is_alive = lambda: False
    ready_until_input_ends()


PROGRAMS = {
    "no-thread": no_thread,
    "over": lambda: no_thread(main_lives=False),
    "long-call": long_call,
    "own-handler": own_handler,
    "later-handler": later_handler,
    "ignored": lambda: own_handler(signal.SIG_IGN),
    "own-descriptor": own_descriptor,
    "fork": fork,
    "closed": closed,
    "closed-in-thread": closed_in_thread,
    "failing": failing,
    "failing-alike": lambda: failing(ValueError("Channel closed!")),  # gRPC's, once this peer has hung up
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
