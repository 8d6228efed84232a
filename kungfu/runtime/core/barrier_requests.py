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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.core.terms import Keep

__all__ = [
    "Contest",
    "ExternalRequest",
    "ExternalRequestKind",
    "Leave",
    "RescaleRequest",
    "Superseded",
    "When",
    "merged",
]

When = Literal["now", "noticed", "replaced"]
ExternalRequestKind = Literal["resize", "leave", "notice", "replace", "checkpoint", "stop"]


@dataclass(frozen=True)
class ExternalRequest:
    """One wish that the agent passes to the leader, carried out at a barrier.

    | kind         | what                                                                        |
    | ------------ | --------------------------------------------------------------------------- |
    | `resize`     | the job shall have ``size`` peers                                            |
    | `leave`      | ``peers`` leave at once, down to the job's minimum, and nobody comes instead |
    | `notice`     | ``peers`` leave at once: they will be taken away; ``size`` with those to come |
    | `replace`    | ``peers`` leave when as many others are ready to take their places           |
    | `checkpoint` | the state is written down                                                    |
    | `stop`       | training ends on all peers                                                   |

    ``why`` stands where an event names the rule that decided; ``keep`` is the batch size that stays when the size
    changes: the whole one, unless it says else, for nobody outside may change what is trained without saying so.
    ``host`` is the number of the host on which those who replace others shall run, ``None`` for any.
    """

    kind: ExternalRequestKind
    why: str
    size: int = 0
    peers: tuple[int, ...] = ()
    id: str = ""
    keep: Keep = "global_batch_size"
    host: int | None = None


@dataclass(frozen=True)
class Contest:
    """Whose wish won and whose lost, where a rule stands for several."""

    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leave:
    """Peers by id that are to leave: now, as far as the job's minimum allows; now, because they were given notice,
    which nothing can refuse; or when others have come to replace them, who run on the ``host`` of this number if one is
    named."""

    peers: tuple[int, ...]
    when: When
    host: int | None = None


@dataclass(frozen=True)
class RescaleRequest:
    """A rule that fired: the size it asks for, what it saw, and who is to leave if it names them.

    One without ``leave`` asks for a size. ``others`` name peers that are to leave as well, in the same request: see
    ``kungfu.runtime.core.barrier_requests``.
    """

    size: int
    keep: Keep
    rule: str
    step: int
    saw: Mapping[str, float] = field(default_factory=dict)
    contest: Contest = field(default_factory=Contest)
    leave: Leave | None = None
    others: tuple[RescaleRequest, ...] = ()

    @property
    def parts(self) -> tuple[RescaleRequest, ...]:
        """The wishes that were merged into this one, each by itself; this one alone where none were."""
        return (replace(self, others=()), *self.others)


@dataclass(frozen=True)
class Superseded:
    """A wish that a barrier did not take up, and the rule, or the command from outside, that came before it."""

    wish: RescaleRequest
    by: str


def merged(
    wishes: Sequence[RescaleRequest], outside: RescaleRequest | None = None
) -> tuple[RescaleRequest | None, tuple[Superseded, ...]]:
    """The one wish of a barrier, ``None`` where nobody asks for anything; and those that are not part of it.

    ``wishes`` are those of rules and hooks, the one that comes first first. Of several the part that asks for a size
    leads; the others are in its ``others``.

    >>> grow = RescaleRequest(4, "local_batch_size", "grow", 7)
    >>> both, superseded = merged([grow, RescaleRequest(3, "local_batch_size", "hook", 7)])
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


def _before(wish: RescaleRequest, *, size: RescaleRequest | None, outside: Iterable[RescaleRequest]) -> str | None:
    """By what a wish of a rule is superseded, ``None`` where it can be part of the request."""
    for one in outside:
        goes_to_host = one.leave is not None and one.leave.host is not None
        lets_go = one.leave is not None and one.leave.when == "now"
        if wish.leave is None and (goes_to_host or lets_go):
            return one.rule
        if wish.leave is not None and wish.leave.when == "replaced" and goes_to_host:
            return one.rule
    return size.rule if wish.leave is None and size is not None and size is not wish else None


def _together(wishes: Sequence[RescaleRequest]) -> RescaleRequest | None:
    """One wish of all these, of which at most one asks for a size."""
    lead = next((one for one in wishes if one.leave is None), next(iter(wishes), None))
    return None if lead is None else replace(lead, others=tuple(one for one in wishes if one is not lead))
