"""The exit of a peer's program, reported before its process ends, so that the agent need not parse its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kungfu.errors import DeadlineExceeded, PeerFailure, PolicyError, UsageError

ExitKind = Literal["loop", "exit", "usage", "exception", "loss", "deadline"]

_KINDS: Mapping[type[BaseException], ExitKind] = {
    UsageError: "usage",
    PolicyError: "usage",
    PeerFailure: "loss",
    DeadlineExceeded: "deadline",
}


@dataclass(frozen=True)
class Exit:
    """The exit of a peer's program from its training."""

    # "loop" if the program left the training loop and continues, "exit" at the end of the script or after ``sys.exit``
    # (the exit code says which), "usage" for a request that cannot work, "loss" and "deadline" for the loss of other
    # peers or an expired wait for them, and "exception" for any other exception.
    kind: ExitKind
    step: int = 0  # the number of steps done
    name: str = ""  # the class of the exception; empty without an exception
    error: str = ""  # the exception with its message
    where: str = ""  # the file and the line of the program that raised the exception

    def repeats(self, other: Exit) -> bool:
        """True if two programs raised the same class of exception at the same line."""
        return self.kind == other.kind == "exception" and (self.name, self.where) == (other.name, other.where)


def kind_of(error: BaseException) -> ExitKind:
    """The kind of a program's exit by an uncaught exception.

    Args:
        error: The uncaught exception.

    >>> kind_of(UsageError("a batch of 3")), kind_of(OSError("no space")), kind_of(PeerFailure("lost rank 1"))
    ('usage', 'exception', 'loss')
    """
    return next((kind for one, kind in _KINDS.items() if isinstance(error, one)), "exception")


def described(exit: Exit) -> str:
    """The program's exit in words.

    Args:
        exit: The exit of the program from its training.

    >>> described(Exit("exception", 5, "ValueError", "ValueError: too wide", "train.py:42"))
    'its program raised ValueError: too wide (train.py:42) after step 5'
    """
    after = f"after step {exit.step}"
    if exit.kind == "loop":
        # Its process continues, and may return for the last barrier.
        return f"it left its training loop {after}, before the end of training"
    if exit.kind == "exit":
        # The script ended without an error.
        return f"its program ended by itself {after}, before the end of training"
    where = f" ({exit.where})" if exit.where else ""
    return f"its program raised {exit.error}{where} {after}"
