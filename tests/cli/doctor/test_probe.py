"""What a process that tries TensorFlow, the op and Horovod came to, however it ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from kungfu.cli.doctor.probe import Probe, probe

FIRST = """print('{"step": "tensorflow", "version": "2.18.1", "gpus": 0}', flush=True)"""
ALL = f"""{FIRST}
print("a library says so")
print('{{"step": "native op", "error": "UsageError: no g++"}}')
print('{{"step": "horovod", "version": "0.28.1"}}')
"""


def probed(program: str, *, deadline_s: float = 60.0) -> Probe:
    return probe(deadline_s=deadline_s, command=(sys.executable, "-c", program))


def probed_too_long(program: str) -> tuple[Probe, str]:
    """What comes of a program that never ends, and its deadline: one within which it has come as far as it does."""
    for deadline_s in (0.5, 2.0, 8.0, 32.0):
        found = probed(program, deadline_s=deadline_s)
        if found.known:
            return found, f"was not done within {deadline_s:g} s"
    raise AssertionError("the program did not come as far as its first line")


def test_each_step_is_told_and_what_libraries_print_is_passed_over() -> None:
    found = probed(ALL)
    assert found.known == {
        "tensorflow": {"version": "2.18.1", "gpus": 0},
        "native op": {"error": "UsageError: no g++"},
        "horovod": {"version": "0.28.1"},
    }
    assert (found.missing, found.ended) == ("", "")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("import os; os.kill(os.getpid(), 4)", "ended the process with SIGILL"),
        ("import sys; sys.exit('no such symbol')", "ended the process with exit code 1: no such symbol"),
    ],
)
def test_how_far_a_process_came_that_a_library_ended(end: str, told: str) -> None:
    found = probed(f"{FIRST}\n{end}")
    assert found.known.keys() == {"tensorflow"}
    assert (found.missing, found.ended) == ("native op", told)


def test_a_process_that_never_ends_is_ended_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    started = tmp_path / "compiler"
    compiles = f"""
import subprocess, sys
compiler = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
open({str(started)!r}, "a").write(f"{{compiler.pid}}\\n")
{FIRST}
compiler.wait()
"""
    found, told = probed_too_long(compiles)
    assert found.known.keys() == {"tensorflow"}
    assert (found.missing, found.ended) == ("native op", told)
    until = time.monotonic() + 60.0
    while any(runs(int(compiler)) for compiler in started.read_text().splitlines()):
        assert time.monotonic() < until, "the compiler runs on"
        time.sleep(0.01)


def runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
