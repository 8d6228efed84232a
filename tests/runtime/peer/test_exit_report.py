"""What a peer's program says of its own end. The ends themselves are those of real processes, in ``test_agent``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kungfu.errors import DeadlineExceeded, PolicyError, UsageError
from kungfu.runtime.core.failure import Exit, described
from kungfu.runtime.peer.exit_report import exit_of


def raised(error: ValueError) -> ValueError:
    """The error with the traceback of a raise in this file."""
    try:
        raise error
    except ValueError as caught:
        return caught


def test_an_exception_is_reported_with_its_class_and_the_programs_line() -> None:
    where = f"tests/runtime/peer/test_exit_report.py:{raised.__code__.co_firstlineno + 3}"
    found = exit_of(raised(ValueError("too wide\nby far")), step=5)
    assert found == Exit("exception", 5, "ValueError", "ValueError: too wide", where)
    assert described(found).endswith(f"{where}) after step 5")


def test_the_line_is_the_programs_and_not_the_librarys_that_it_called() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        found = exit_of(error, step=0)
    assert found.name == "JSONDecodeError"
    assert found.where.startswith("tests/runtime/peer/test_exit_report.py:")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("a batch of 3"), "usage"),
        (PolicyError("local"), "usage"),
        (DeadlineExceeded("waited"), "deadline"),
        (KeyboardInterrupt(), "exception"),
    ],
)
def test_what_an_exception_counts_as_follows_from_its_class(error: BaseException, kind: str) -> None:
    assert exit_of(error, step=0).kind == kind


def test_a_long_message_is_cut() -> None:
    assert len(exit_of(ValueError("x" * 10_000), step=0).error) == 300


HELD_UP = """if True:
    import sys, threading
    from kungfu.runtime.peer.exit_report import ExitReport
    from kungfu.runtime.settings import Deadlines, Limits, Settings

    left, settings = threading.Event(), Settings("job", 0, "127.0.0.1:1", "ab" * 32, "local", Limits(1, 1), Deadlines())
    is_main = lambda: threading.current_thread() is threading.main_thread()
    ExitReport(settings, withdraw=lambda: (print(is_main(), flush=True), left.set()))
    if sys.argv[1] == "held up":
        threading.Thread(target=left.wait).start()
    raise ValueError("on purpose")
"""


@pytest.mark.slow  # two processes that load gRPC
@pytest.mark.parametrize(("how", "by_main"), [("at once", "True"), ("held up", "False")])
def test_peers_are_let_go_by_the_main_thread_unless_threads_hold_that_up(how: str, by_main: str) -> None:
    assert ending(HELD_UP, how) == (1, [by_main])


def ending(program: str, *words: str) -> tuple[int, list[str]]:
    """The exit code and the printed words of a process."""
    line = [sys.executable, "-c", program, *words]
    ended = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=180, check=False)
    return ended.returncode, ended.stdout.split()


IN_A_THREAD = """if True:
    import threading
    from kungfu.runtime.peer.exit_report import ExitReport
    from kungfu.runtime.settings import Deadlines, Limits, Settings

    def train():
        settings = Settings("job", 0, "127.0.0.1:1", "ab" * 32, "local", Limits(1, 1), Deadlines())
        ExitReport(settings, steps=lambda: print("told", flush=True) or 0)
        threading.main_thread().join()
        (telling,) = [one for one in threading.enumerate() if one.name == "kungfu-exit"]
        telling.join(0.5)
        print("trained", flush=True)

    threading.Thread(target=train).start()
"""


@pytest.mark.slow  # a process that loads gRPC
def test_a_program_that_trains_in_a_thread_of_its_own_is_over_when_that_is() -> None:
    assert ending(IN_A_THREAD) == (0, ["trained", "told"])
