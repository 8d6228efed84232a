"""The root cause among several failures: the one that a person must read first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kungfu.runtime.core.exit import ExitKind

# Documented in the README and by `kungfu-run --help`.
EXIT_CODES = {
    0: "training ended and every peer with it",
    1: "a peer's program failed or was killed",
    2: "the command line, the program or the policy requests something that cannot work",
    3: "a wait ended at its deadline; the message names the peer",
    4: "this host was cut off from most of the job's peers, and the others may continue without it",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM",
}

# An error as Python prints it at the end of a traceback: shown to people, and never what something is decided by.
_HEADLINE = re.compile(r"^[\w.]*?(\w+(?:Error|Exception|Failure|Exceeded|Interrupt))(?::|$)")
_AGENT = -1
_CONSEQUENCE: Mapping[ExitKind, int] = {"loss": 1, "deadline": 2}  # the loss of others, or a wait for them in vain
_CODES: Mapping[ExitKind, int] = {"usage": 2, "deadline": 3}


@dataclass(frozen=True)
class Failure:
    """The first cause, in a line, with the last output of the peer it happened in; ``code`` is the job's exit code,
    which the program may have ``chosen``."""

    peer: int
    text: str
    code: int
    output: tuple[str, ...] = ()
    chosen: bool = False


def find_root_cause(
    ended: Mapping[int, str],
    tails: Mapping[int, Sequence[str]],
    *,
    ranks: Mapping[int, int],
    first: int,
    late: bool,
    exit_kinds: Mapping[int, ExitKind],
) -> Failure:
    """The peer that ended with an error that is not explained by another peer's end.

    A peer that was killed, or whose program raised something of its own, comes before those that only report that they
    lost somebody, and those before a wait that expired.

    Args:
        ended: The end of each of them, by id; -1 is the agent itself.
        tails: The last lines that each printed, which people are shown: nothing is decided by them.
        ranks: The ranks of those that are in the view.
        first: Whose end was seen first.
        late: True if a deadline of the job has expired.
        exit_kinds: The kinds of ends that peers reported of their programs; the others were killed, or never came
            to ``attach`` for a reason of their own.

    >>> ended = {0: "exit code 1", 1: "killed by SIGKILL"}
    >>> find_root_cause(ended, {}, ranks={0: 0, 1: 1}, first=0, late=False, exit_kinds={0: "loss"}).text
    'rank 1 (peer 1): killed by SIGKILL'
    """
    kinds: dict[int, ExitKind] = {peer: exit_kinds.get(peer, "exception") for peer in ended}
    if _AGENT in ended:
        kinds[_AGENT] = "loss"  # the agent itself only ever loses somebody
    root = min(ended, key=lambda peer: (_CONSEQUENCE.get(kinds[peer], 0), peer != first, peer))
    said = headline(tails.get(root, ()))
    text = ended[root] + (f": {said}" if said and said not in ended[root] else "")
    code = 3 if late else _CODES.get(kinds[root], 1)
    return Failure(root, named(root, text, ranks.get(root)), code, tuple(tails.get(root, ())))


def named(peer: int, text: str, rank: int | None) -> str:
    """A text about a peer, after the peer's name; about none, the text alone.

    Args:
        peer: Its id; -1 for none.
        text: The text.
        rank: Its rank, if it has one.

    >>> named(3, "exit code 1", 2), named(4, "exit code 1", None), named(-1, "no host", None)
    ('rank 2 (peer 3): exit code 1', 'peer 4: exit code 1', 'no host')
    """
    if peer == _AGENT:
        return text
    return f"peer {peer}: {text}" if rank is None else f"rank {rank} (peer {peer}): {text}"


def headline(tail: Sequence[str]) -> str:
    """The last error in the last lines of a peer's output, '' if there is none.

    Args:
        tail: The lines; nothing is decided by them.

    >>> headline(["Traceback (most recent call last):", "ValueError: too wide", "bye"])
    'ValueError: too wide'
    """
    return next((line for line in reversed(list(tail)) if _HEADLINE.match(line)), "")
