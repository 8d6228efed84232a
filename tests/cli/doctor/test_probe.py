"""What a process that tries TensorFlow, the op and Horovod came to, however it ended."""

from __future__ import annotations

import sys

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
        ("import time; time.sleep(600)", "was not done within 2 s"),
    ],
)
def test_how_far_a_process_came_that_a_library_ended(end: str, told: str) -> None:
    found = probed(f"{FIRST}\n{end}", deadline_s=2.0 if "sleep" in end else 60.0)
    assert found.known.keys() == {"tensorflow"}
    assert (found.missing, found.ended) == ("native op", told)


@pytest.mark.slow
def test_here_tensorflow_and_the_op_load() -> None:
    found = probe(deadline_s=240.0)
    assert found.missing == ""
    assert found.known["tensorflow"]["version"].startswith("2.")
    assert found.known["native op"]["path"].endswith(".so")
    assert found.known["horovod"].keys() in ({"version"}, {"error"})
