"""What a peer's program says of its own end. The ends themselves are those of real processes, in ``test_agent``."""

from __future__ import annotations

import json

import pytest

from kungfu.errors import DeadlineExceeded, PolicyError, UsageError
from kungfu.runtime.deciding.exit import Exit, described
from kungfu.runtime.peer.exit_report import exit_of


def raised(error: ValueError) -> ValueError:
    """The error with the traceback of a raise in this file."""
    try:
        raise error
    except ValueError as caught:
        return caught


def test_an_exception_is_told_with_its_class_its_first_line_and_the_line_of_the_program() -> None:
    line = raised.__code__.co_firstlineno + 3
    found = exit_of(raised(ValueError("too wide\nby far")), step=5)
    assert found == Exit(
        "exception", 5, "ValueError", "ValueError: too wide", f"tests/runtime/peer/test_exit_report.py:{line}"
    )
    assert described(found).endswith(f"test_exit_report.py:{line}) after step 5")


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
