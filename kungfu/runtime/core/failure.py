"""Which of several failures is the root: what a person must read first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kungfu.runtime.core.exit import ExitKind

__all__ = ["EXIT_CODES", "Failure", "find_root_cause", "headline", "named"]

# Documented in the README and by `kungfu-run --help`.
EXIT_CODES = {
    0: "training ended and every peer with it",
    1: "a peer's program failed or was killed",
    2: "the command line, the program or the policy asks for something that cannot work",
    3: "a wait ended at its deadline; the message says for whom",
    4: "this host was cut off from most of the job's peers, and the others may go on without it",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM",
}

_HEADLINE = re.compile(r"^[\w.]*?(\w+(?:Error|Exception|Failure|Exceeded|Interrupt))(?::|$)")
_AGENT = -1
_PRINTED: Mapping[str, ExitKind] = {
    "UsageError": "usage",
    "PolicyError": "usage",
    "PeerFailure": "loss",
    "DeadlineExceeded": "deadline",
}
_CONSEQUENCE: Mapping[ExitKind, int] = {"loss": 1, "deadline": 2}  # who lost others, or waited for them in vain
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
    names: Mapping[int, str],
    first: int,
    late: bool,
    told: Mapping[int, ExitKind] | None = None,
) -> Failure:
    """Of the peers that ended badly (id to how), the one whose end is not explained by another's.

    A peer that was killed, or whose program raised something of its own, comes before those that only report that they
    lost somebody, and those before a wait that expired. ``told`` is what peers said themselves of how they ended; only
    of one that ended before it could say anything, the last error in its output is looked at.

    >>> ended = {0: "exit code 1", 1: "killed by SIGKILL"}
    >>> tails = {0: ["kungfu.errors.PeerFailure: peer 1 died"], 1: []}
    >>> find_root_cause(ended, tails, names={0: "rank 0", 1: "rank 1"}, first=0, late=False).text
    'rank 1 (peer 1): killed by SIGKILL'
    """
    # The agent itself only ever loses somebody.
    kinds: dict[int, ExitKind] = {peer: _printed_kind(tails.get(peer, ())) for peer in ended}
    kinds |= {peer: kind for peer, kind in (told or {}).items() if peer in ended}
    kinds |= {_AGENT: "loss"} if _AGENT in ended else {}
    root = min(ended, key=lambda peer: (_CONSEQUENCE.get(kinds[peer], 0), peer != first, peer))
    said = headline(tails.get(root, ()))
    text = ended[root] + (f": {said}" if said and said not in ended[root] else "")
    code = 3 if late else _CODES.get(kinds[root], 1)
    return Failure(root, named(root, text, names), code, tuple(tails.get(root, ())))


def named(peer: int, text: str, names: Mapping[int, str]) -> str:
    """What is said of a peer, after what people call it; of none, the text alone.

    >>> named(3, "exit code 1", {3: "rank 2"}), named(-1, "no host", {})
    ('rank 2 (peer 3): exit code 1', 'no host')
    """
    if peer == _AGENT:
        return text
    name = names.get(peer, "")
    return f"{name} (peer {peer}): {text}" if name.startswith("rank") else f"peer {peer}: {text}"


def _printed_kind(tail: Sequence[str]) -> ExitKind:
    """What the last error in the output of a peer counts as that never came to ``attach``."""
    match = _HEADLINE.match(headline(tail))
    return _PRINTED.get(match[1] if match else "", "exception")


def headline(tail: Sequence[str]) -> str:
    """The last error in the last lines of a peer's output, '' if there is none.

    >>> headline(["Traceback (most recent call last):", "ValueError: too wide", "bye"])
    'ValueError: too wide'
    """
    return next((line for line in reversed(list(tail)) if _HEADLINE.match(line)), "")
