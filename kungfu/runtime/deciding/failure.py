"""Which of several failures is the root: what a person must read first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["EXIT_CODES", "Failure", "find_root_cause", "headline"]

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

_HEADLINE = re.compile(r"^[\w.]*?(\w+(?:Error|Exception|Failure|Exceeded|View|Interrupt))(?::|$)")
_AGENT = -1
_CONSEQUENCES = {"PeerFailure", "StaleView"}
_USAGE = {"UsageError", "PolicyError"}


@dataclass(frozen=True)
class Failure:
    """The first cause, in a line, with the last output of the peer it happened in; ``code`` is the job's exit code."""

    peer: int
    text: str
    code: int
    output: tuple[str, ...] = ()


def find_root_cause(
    ended: Mapping[int, str], tails: Mapping[int, Sequence[str]], *, names: Mapping[int, str], first: int, late: bool
) -> Failure:
    """Of the peers that ended badly (id to how), the one whose end is not explained by another's.

    A peer that was killed, or whose program raised something of its own, comes before those that only report that they
    lost somebody, and those before a wait that expired.

    >>> ended = {0: "exit code 1", 1: "killed by SIGKILL"}
    >>> tails = {0: ["kungfu.errors.PeerFailure: peer 1 died"], 1: []}
    >>> find_root_cause(ended, tails, names={0: "rank 0", 1: "rank 1"}, first=0, late=False).text
    'rank 1 (peer 1): killed by SIGKILL'
    """
    # The agent itself only ever loses somebody.
    kinds = {peer: "PeerFailure" if peer == _AGENT else _kind(tails.get(peer, ())) for peer in ended}
    root = min(ended, key=lambda peer: (_rank_of_kind(kinds[peer]), peer != first, peer))
    name = names.get(root, "")
    who = f"{name} (peer {root})" if name.startswith("rank") else f"peer {root}"
    said = headline(tails.get(root, ()))
    text = ended[root] if root == _AGENT else f"{who}: {ended[root]}" + (f": {said}" if said else "")
    return Failure(root, text, 3 if late else _code(kinds[root], ended[root]), tuple(tails.get(root, ())))


def _kind(tail: Sequence[str]) -> str:
    """The class of the last error in the output, '' if there is none."""
    match = _HEADLINE.match(headline(tail))
    return match[1] if match else ""


def headline(tail: Sequence[str]) -> str:
    """The last error in the last lines of a peer's output, '' if there is none.

    >>> headline(["Traceback (most recent call last):", "ValueError: too wide", "bye"])
    'ValueError: too wide'
    """
    return next((line for line in reversed(list(tail)) if _HEADLINE.match(line)), "")


def _rank_of_kind(kind: str) -> int:
    return 2 if kind == "DeadlineExceeded" else 1 if kind in _CONSEQUENCES else 0


def _code(kind: str, how: str) -> int:
    if kind in _USAGE or "kf.attach()" in how:
        return 2
    return 3 if kind == "DeadlineExceeded" else 1
