"""Merge: what rules, hooks and somebody outside ask of one barrier becomes one request.

A request is a size and peers by name: those who leave now, and those who leave when others have come for them.

| asked beside each other                | becomes                                                                 |
| -------------------------------------- | ----------------------------------------------------------------------- |
| a size, peers to evict or to replace   | that size, without those peers                                          |
| peers of several rules                 | all of them; whom one evicts and another replaces leaves now            |
| two sizes                              | that of somebody outside, else the first one; the others are superseded |
| a size, peers let go from outside      | the peers leave and nobody comes for them; the size is superseded       |
| a size, peers replaced on a named host | the peers; the size is superseded, or others would run on that host     |
| peers replaced on a named host, others | those who go to the host; others to replace are superseded              |
| a size, peers that are taken away      | that size, without those peers                                          |

A rule between policies (``at_most``, ``at_least``, ``first``) chooses a size before it comes here, and two rules that
rescale without one are refused at attach: two sizes can only be a hook's and another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kungfu.runtime.core.decide import Wish

__all__ = ["Superseded", "merged"]


@dataclass(frozen=True)
class Superseded:
    """A wish that a barrier did not take up, and the rule, or the command from outside, that came before it."""

    wish: Wish
    by: str


def merged(wishes: Sequence[Wish], outside: Wish | None = None) -> tuple[Wish | None, tuple[Superseded, ...]]:
    """The one wish of a barrier, ``None`` where nobody asks for anything; and those that are not part of it.

    ``wishes`` are those of rules and hooks, the one that comes first first. Of several the part that asks for a size
    leads; the others are in its ``others``.

    >>> grow = Wish(4, "local_batch_size", "grow", 7)
    >>> both, superseded = merged([grow, Wish(3, "local_batch_size", "hook", 7)])
    >>> both == grow, [(one.wish.rule, one.by) for one in superseded]
    (True, [('hook', 'grow')])
    """
    given = [part for wish in wishes for part in wish.parts]
    first = [] if outside is None else [*outside.parts]
    size = next((one for one in (*first, *given) if one.leave is None), None)
    taken, superseded = list(first), list[Superseded]()
    for one in given:
        before = _before(one, size=size, outside=first)
        if before is None:
            taken.append(one)
        else:
            superseded.append(Superseded(one, before))
    return _together(taken), tuple(superseded)


def _before(wish: Wish, *, size: Wish | None, outside: Iterable[Wish]) -> str | None:
    """By what a wish of a rule is superseded, ``None`` where it can be part of the request."""
    for one in outside:
        goes_to_host = one.leave is not None and one.leave.host is not None
        lets_go = one.leave is not None and one.leave.when == "now"
        if wish.leave is None and (goes_to_host or lets_go):
            return one.rule
        if wish.leave is not None and wish.leave.when == "replaced" and goes_to_host:
            return one.rule
    return size.rule if wish.leave is None and size is not None and size is not wish else None


def _together(wishes: Sequence[Wish]) -> Wish | None:
    """One wish of all these, of which at most one asks for a size."""
    lead = next((one for one in wishes if one.leave is None), next(iter(wishes), None))
    return None if lead is None else replace(lead, others=tuple(one for one in wishes if one is not lead))
