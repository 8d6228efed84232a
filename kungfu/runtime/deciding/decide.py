"""What a barrier decides: a pure function of the view, its terms, what a rule wishes and who is ready to join.

| wish                     | prepared peers | becomes                                                      |
| ------------------------ | -------------- | ------------------------------------------------------------ |
| smaller than the view    | any            | the newest peers leave at once; those under way are dismissed |
| larger than the view     | none yet       | the agent prepares peers, the view stays, triggers hold       |
| larger, under way        | all there      | they join; surplus ones are dismissed                         |
| larger, under way        | some missing   | those who are there join; the target is marked as refused     |
| as large as the view     | any            | nothing; those under way are dismissed                        |
| some peers to leave now  | any            | they leave, rank 0 included; more are prepared if it says so  |
| some to be replaced      | none yet       | the agent prepares as many, the view stays                    |
| to be replaced, under way | some or all   | as many leave as have come, but the last one who was there    |
|                          |                | before: it leaves at the next barrier                         |
| a notice to the only peer | any           | the same: another one comes before it leaves                  |

A view always has somebody of the view before it, who holds the state: who has just joined holds all of it only behind
its first step.

The newest wish wins over one that is under way. An offer that does not account for exactly the peers that were asked
for last was made for an older wish, and some of its peers may be dismissed by now: the agent is asked for a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.deciding.ramp import Ramp
from kungfu.runtime.deciding.view import Peer, View
from kungfu.runtime.settings import Limits

__all__ = ["Contest", "Decision", "Keep", "Leave", "Prepared", "Terms", "When", "Wish", "decide", "meant_size"]

Keep = Literal["local_batch_size", "global_batch_size"]
When = Literal["now", "noticed", "replaced"]


@dataclass(frozen=True)
class Terms:
    """What the peers of a view agree on besides its members; batch sizes in samples.

    ``leaving`` are the ids of those who leave when the peers under way have come, ``departing`` of those who stay only
    until these hold the state: they leave at the next barrier.
    """

    global_batch_size: int = 0
    batch_per_peer: float = 0.0
    target_size: int = 0
    refused_size: int = 0
    keep: Keep = "local_batch_size"
    ramp: Ramp | None = None
    stopped: bool = False
    leaving: tuple[int, ...] = ()
    departing: tuple[int, ...] = ()


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
class Wish:
    """A rule that fired: the size it asks for, what it saw, and who is to leave if it names them."""

    size: int
    keep: Keep
    rule: str
    step: int
    saw: Mapping[str, float] = field(default_factory=dict)
    contest: Contest = field(default_factory=Contest)
    leave: Leave | None = None


@dataclass(frozen=True)
class Prepared:
    """What the agent says of the peers it was told to prepare: who is ready, who is missing and why."""

    ready: tuple[Peer, ...] = ()
    missing: tuple[int, ...] = ()
    reason: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The view and terms after the barrier, and the wish that they follow from.

    ``prepare`` is a size for the agent to bring the job to. It counts the processes of the job, so those too who leave
    when others have come. ``host`` is the number of the one on which new processes shall run, ``None`` for any.
    """

    view: View
    terms: Terms
    prepare: int | None = None
    wish: Wish | None = None
    host: int | None = None


def decide(
    view: View, terms: Terms, limits: Limits, *, wish: Wish | None = None, prepared: Prepared | None = None
) -> Decision:
    """What becomes of ``view``; see the table of this module.

    >>> two = View(1, (Peer(0, "a:1"), Peer(1, "a:2")))
    >>> wish = Wish(4, "local_batch_size", "gns_batch", 50)
    >>> decide(two, Terms(64, 32.0), Limits(1, 4), wish=wish).prepare
    4
    """
    terms = _without_the_lost(view, terms)
    if terms.departing and len(terms.departing) < view.size:
        return _departed(view, terms, limits, wish=wish, prepared=prepared)
    if wish is not None:
        terms = replace(terms, departing=())  # they are alone: who was to come for them was lost, and a wish is newer
    if wish is not None and wish.leave is not None:
        return _left(view, terms, limits, wish, wish.leave, prepared)
    under_way = terms.target_size > 0
    terms = replace(terms, leaving=tuple(peer for peer in terms.leaving if view.rank_of(peer) is not None))
    asked = terms.target_size - view.size + len(terms.leaving)  # so many peers are under way
    if wish is not None:
        terms = replace(terms, keep=wish.keep, refused_size=0, target_size=0, leaving=())
        target = _reachable(wish.size, terms, limits)
        terms = replace(terms, refused_size=wish.size if target != wish.size else 0)
    elif prepared is not None and under_way:
        target = terms.target_size
    else:
        return Decision(view, terms)
    if target < view.size:
        shrunk = view.changed(leave=view.newest(view.size - target))
        return Decision(*_settled(shrunk, terms), target if under_way else None)
    if target == view.size and not terms.leaving:
        return Decision(view, replace(terms, target_size=0), target if under_way else None)
    coming = target - view.size + len(terms.leaving)
    if prepared is None or not _accounts_for(prepared, asked, view) or coming > asked:
        return Decision(view, replace(terms, target_size=target), target + len(terms.leaving))
    return _joined(view, terms, target, prepared)


def meant_size(view: View, terms: Terms) -> int:
    """How many peers a view is meant to have: who stays only until others hold the state does not count.

    >>> three = View(2, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> meant_size(three, Terms(departing=(0,)))
    2
    """
    return max(1, view.size - len(set(terms.departing) & set(view.ids)))


def _without_the_lost(view: View, terms: Terms) -> Terms:
    """Who was about to leave and was lost is not replaced once more: those in its place have come."""
    departing = tuple(peer for peer in terms.departing if view.rank_of(peer) is not None)
    if departing == terms.departing:
        return terms
    target = terms.target_size - (len(terms.departing) - len(departing))
    return replace(terms, departing=departing, target_size=max(view.size, target) if terms.target_size else 0)


def _departed(view: View, terms: Terms, limits: Limits, *, wish: Wish | None, prepared: Prepared | None) -> Decision:
    """Those leave whose places others have taken; whatever else the barrier is asked for is decided about the rest."""
    gone = len(terms.departing)
    rest = replace(view.changed(leave=terms.departing), version=view.version)
    target = terms.target_size - gone
    terms = replace(terms, departing=(), target_size=target if target > rest.size else 0)
    after = decide(rest, terms, limits, wish=wish, prepared=prepared)
    prepare = None if after.prepare is None else after.prepare + gone
    return replace(after, view=View(view.version + 1, after.view.peers), prepare=prepare)


def _left(view: View, terms: Terms, limits: Limits, wish: Wish, leave: Leave, prepared: Prepared | None) -> Decision:
    """Peers leave by name; a notice cannot be refused, but the last peer of a job stays until another one has come."""
    least = 1 if leave.when == "noticed" else limits.minimum
    named = tuple(peer for peer in view.ids if peer in leave.peers)
    going = named[: max(0, view.size - least)]
    refused = view.size - len(named) if len(going) < len(named) else 0
    last = leave.when == "noticed" and not going and wish.size > 0
    if named and (leave.when == "replaced" or last):
        # As many as now, and those who come for peers that were lost since it was asked for.
        target = max(view.size, min(wish.size, terms.target_size))
        terms = replace(terms, target_size=target, leaving=named, refused_size=0)
        return Decision(view, terms, target + len(named), host=leave.host)
    if not going:
        return decide(view, replace(terms, refused_size=refused), limits, prepared=prepared)
    shrunk, under_way = view.changed(leave=going), terms.target_size > 0
    wanted = max(shrunk.size, limits.clip(wish.size))
    if leave.when == "noticed":
        terms = replace(terms, target_size=0)  # who is taken away does not change what is trained: the batch stays
    else:
        shrunk, terms = _settled(shrunk, replace(terms, keep=wish.keep, refused_size=refused))
    if wanted == shrunk.size:
        return Decision(shrunk, terms, wanted + len(going) if under_way else None)
    return Decision(shrunk, replace(terms, target_size=wanted), wanted + len(going))


def _accounts_for(prepared: Prepared, asked: int, view: View) -> bool:
    """An offer of somebody who is in the view by now is an old one: peers were lost since, and others are asked for."""
    joined = any(view.rank_of(peer.id) is not None for peer in prepared.ready)
    return not joined and len(prepared.ready) + len(prepared.missing) == asked


def _joined(view: View, terms: Terms, target: int, prepared: Prepared) -> Decision:
    growth, leaving = target - view.size, terms.leaving
    welcome = prepared.ready[: growth + len(leaving)]
    going = leaving[: max(0, len(welcome) - growth)]
    reached = view.size + len(welcome) - len(going)
    terms = replace(terms, refused_size=target if reached < target else terms.refused_size)
    if not welcome:
        return Decision(view, replace(terms, target_size=0, leaving=(), departing=()), reached)
    if len(going) == view.size:  # nobody who holds the state would stay: the lowest rank leads, and does
        terms, going = replace(terms, departing=going[:1]), going[1:]
    # The agent hears of it when the view trains. Told a size before, it would offer once more those who are joining.
    return Decision(*_settled(view.changed(leave=going, join=welcome), terms))


def _reachable(size: int, terms: Terms, limits: Limits) -> int:
    """Within the job's limits, and no more peers than a batch that must not change has samples."""
    target = limits.clip(size)
    if terms.keep == "global_batch_size" and terms.global_batch_size:
        return max(1, min(target, terms.global_batch_size))
    return target


def _settled(view: View, terms: Terms) -> tuple[View, Terms]:
    """The terms of a view that has just changed its size: the change is over, and the batch follows."""
    terms, size = replace(terms, target_size=0, leaving=()), meant_size(view, terms)
    if terms.keep == "global_batch_size":
        return view, replace(terms, batch_per_peer=terms.global_batch_size / size)
    return view, replace(terms, global_batch_size=round(terms.batch_per_peer * size))
