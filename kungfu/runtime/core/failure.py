"""The exit of a peer's program, and the root cause among several failures.

A program reports its exit before its process ends, so that the agent need not parse the program's output. If there
are several failures, the user must read the root cause first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    # (the exit code distinguishes success from failure), "usage" for a request that cannot work, "loss" for the loss of
    # other peers, "deadline" for an expired wait for other peers, and "exception" for any other exception.
    kind: ExitKind
    step: int = 0  # the number of steps done
    name: str = ""  # the class of the exception; empty without an exception
    error: str = ""  # the exception with its message
    where: str = ""  # the program's file and line at which the exception was raised

    def repeats(self, other: Exit) -> bool:
        """True if both exits are due to an exception of the same class, raised at the same line."""
        return self.kind == other.kind == "exception" and (self.name, self.where) == (other.name, other.where)


def kind_of(error: BaseException) -> ExitKind:
    """The kind of the exit of a program that has raised this exception.

    >>> kind_of(UsageError("a batch of 3")), kind_of(OSError("no space")), kind_of(PeerFailure("lost rank 1"))
    ('usage', 'exception', 'loss')
    """
    return next((kind for one, kind in _KINDS.items() if isinstance(error, one)), "exception")


def described(exit: Exit) -> str:
    """The exit of a program as text.

    >>> described(Exit("exception", 5, "ValueError", "ValueError: too wide", "train.py:42"))
    'its program raised ValueError: too wide (train.py:42) after step 5'
    """
    after = f"after step {exit.step}"
    if exit.kind == "loop":
        # The process continues, and the program may return for the last barrier.
        return f"it left its training loop {after}, before the end of training"
    if exit.kind == "exit":
        # The script ended without an error.
        return f"its program ended by itself {after}, before the end of training"
    where = f" ({exit.where})" if exit.where else ""
    return f"its program raised {exit.error}{where} {after}"


# The exit code of a host that stops because the others may continue without it.
NO_QUORUM_CODE = 4
# Documented in the README and by `kungfu-run --help`.
EXIT_CODES = {
    0: "training ended, and every peer exited normally",
    1: "a peer's program failed or was killed",
    2: "the command line, the program or the policy requests something that cannot work",
    3: "a wait ended at its deadline; the message names the peer",
    NO_QUORUM_CODE: "this host was cut off from most of the job's peers, and the others may continue without it",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM",
}

# An error as Python prints it at the end of a traceback: only for display, never the basis of a decision.
_HEADLINE = re.compile(r"^[\w.]*?(\w+(?:Error|Exception|Failure|Exceeded|Interrupt))(?::|$)")
_AGENT = -1
_CONSEQUENCE: Mapping[ExitKind, int] = {"loss": 1, "deadline": 2}  # the loss of other peers, or an expired wait
_CODES: Mapping[ExitKind, int] = {"usage": 2, "deadline": 3}


@dataclass(frozen=True)
class Failure:
    """The failure of a job: the root cause as one line of text, and the last output of the peer that caused it.
    ``code`` is the exit code of the job; ``chosen`` is True if the program chose this code; ``is_loss`` is True if all
    peers at fault were killed, or lost with their hosts, so that the program is not at fault."""

    peer: int
    text: str
    code: int
    output: tuple[str, ...] = ()
    chosen: bool = False
    is_loss: bool = False


def find_root_cause(
    ended: Mapping[int, str],
    tails: Mapping[int, Sequence[str]],
    *,
    ranks: Mapping[int, int],
    first: int,
    late: bool,
    exit_kinds: Mapping[int, ExitKind],
) -> Failure:
    """The failure of the peer whose end is not explained by the end of another peer.

    A peer that was killed, or whose program raised an exception, has precedence over peers that only report the loss of
    other peers, and these have precedence over peers that only report an expired wait.

    Args:
        ended: A description of the end of each peer that has ended, by id; -1 is the agent itself.
        tails: The last lines of each peer's output, by id; only for display, never a basis of the decision.
        ranks: The ranks of the peers that are in the view, by id.
        first: The id of the peer whose end was seen first.
        late: True if a deadline of the job has expired.
        exit_kinds: The kinds of exits that the peers' programs reported, by id; a peer without a report was killed,
            or failed before ``attach``.

    >>> ended = {0: "exit code 1", 1: "killed by SIGKILL"}
    >>> find_root_cause(ended, {}, ranks={0: 0, 1: 1}, first=0, late=False, exit_kinds={0: "loss"}).text
    'rank 1 (peer 1): killed by SIGKILL'
    """
    kinds: dict[int, ExitKind] = {peer: exit_kinds.get(peer, "exception") for peer in ended}
    if _AGENT in ended:
        kinds[_AGENT] = "loss"  # the agent itself fails only because it has lost others
    root = min(ended, key=lambda peer: (_CONSEQUENCE.get(kinds[peer], 0), peer != first, peer))
    said = headline(tails.get(root, ()))
    text = ended[root] + (f": {said}" if said and said not in ended[root] else "")
    code = 3 if late else _CODES.get(kinds[root], 1)
    return Failure(root, named(root, text, ranks.get(root)), code, tuple(tails.get(root, ())))


def named(peer: int, text: str, rank: int | None) -> str:
    """Puts the name of a peer before a text; returns only the text if ``peer`` is -1.

    Args:
        peer: The id of the peer; -1 for no peer.
        rank: The rank of the peer; ``None`` if the peer is not in the view.

    >>> named(3, "exit code 1", 2), named(4, "exit code 1", None), named(-1, "no host", None)
    ('rank 2 (peer 3): exit code 1', 'peer 4: exit code 1', 'no host')
    """
    if peer == _AGENT:
        return text
    return f"peer {peer}: {text}" if rank is None else f"rank {rank} (peer {peer}): {text}"


def headline(tail: Sequence[str]) -> str:
    """The last error in the last lines of a peer's output; '' if the lines contain no error.

    >>> headline(["Traceback (most recent call last):", "ValueError: too wide", "bye"])
    'ValueError: too wide'
    """
    return next((line for line in reversed(list(tail)) if _HEADLINE.match(line)), "")
