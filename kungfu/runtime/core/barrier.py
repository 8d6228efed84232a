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
| a size and peers by name  | any            | who is named goes first; the others make up the size          |

A view always has somebody of the view before it, who holds the state: who has just joined holds all of it only behind
its first step.

The newest wish wins over one that is under way. An offer that does not account for exactly the peers that were asked
for last was made for an older wish, and some of its peers may be dismissed by now: the agent is asked for a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from kungfu.runtime.core.barrier_requests import RescaleRequest, When
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits

__all__ = ["Decision", "Prepared", "decide", "meant_size"]


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
    wish: RescaleRequest | None = None
    host: int | None = None


def decide(
    view: View, terms: Terms, limits: Limits, *, wish: RescaleRequest | None = None, prepared: Prepared | None = None
) -> Decision:
    """What becomes of ``view``; see the table of this module.

    >>> two = View(1, (Peer(0, "a:1"), Peer(1, "a:2")))
    >>> wish = RescaleRequest(4, "local_batch_size", "gns_batch", 50)
    >>> decide(two, Terms(64, 32.0), Limits(1, 4), wish=wish).prepare
    4
    """
    terms = _without_the_lost(view, terms)
    if terms.departing and len(terms.departing) < view.size:
        return _departed(view, terms, limits, wish=wish, prepared=prepared)
    if wish is not None:
        terms = replace(terms, departing=())  # they are alone: who was to come for them was lost, and a wish is newer
    if wish is not None and (wish.leave is not None or wish.others):
        return _left(view, terms, limits, wish, prepared)
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


def _departed(
    view: View, terms: Terms, limits: Limits, *, wish: RescaleRequest | None, prepared: Prepared | None
) -> Decision:
    """Those leave whose places others have taken; whatever else the barrier is asked for is decided about the rest."""
    gone = len(terms.departing)
    rest = replace(view.changed(leave=terms.departing), version=view.version)
    target = terms.target_size - gone
    terms = replace(terms, departing=(), target_size=target if target > rest.size else 0)
    after = decide(rest, terms, limits, wish=wish, prepared=prepared)
    prepare = None if after.prepare is None else after.prepare + gone
    return replace(after, view=View(view.version + 1, after.view.peers), prepare=prepare)


@dataclass(frozen=True)
class _Named:
    """Who is named, in rank order: who leaves now, who is to be replaced; and who has to stay for the job's minimum."""

    now: tuple[int, ...]
    replaced: tuple[int, ...]
    kept: int
    noticed_only: bool
    host: int | None


def _left(view: View, terms: Terms, limits: Limits, wish: RescaleRequest, prepared: Prepared | None) -> Decision:
    """Peers leave by name; where the wish asks for a size too, those who are named go first.

    A notice cannot be refused, but the last peer of a job stays until another one has come.
    """
    named, under_way = _named(view, terms, limits, wish), terms.target_size > 0
    if wish.leave is None:
        terms = replace(terms, keep=wish.keep, refused_size=0)
        wanted = _reachable(wish.size, terms, limits)
        terms = replace(terms, refused_size=wish.size if wanted != wish.size else 0)
    else:
        wanted = _unasked(view, terms, limits, wish, named)
        refused = view.size - len(named.now) - named.kept if named.kept else 0
        terms = terms if named.noticed_only else replace(terms, refused_size=refused)
        if not named.now and not named.replaced:
            return decide(view, terms, limits, prepared=prepared)
    staying = [peer for peer in view.ids if peer not in named.now]
    # A smaller size is made of those who are named first, and then of the newest.
    order = [*named.replaced, *(peer for peer in reversed(staying) if peer not in named.replaced)]
    gone = (*named.now, *order[: max(0, len(staying) - wanted)])
    leaving = tuple(peer for peer in named.replaced if peer not in gone)
    shrunk = view.changed(leave=gone) if gone else view
    pending = wanted > shrunk.size or bool(leaving)
    if gone:
        stays = named.noticed_only and (pending or wish.leave is not None)
        shrunk, terms = _after_leaving(shrunk, terms, wish, batch_stays=stays)
    terms = replace(terms, target_size=wanted if pending else 0, leaving=leaving)
    processes = wanted + len(leaving) + len(gone)  # the agent still counts those who leave
    return Decision(shrunk, terms, processes if pending or under_way else None, host=named.host)


def _named(view: View, terms: Terms, limits: Limits, wish: RescaleRequest) -> _Named:
    """Whom a wish and those that came with it name; who is to leave now is not replaced."""
    leaves = [one.leave for one in wish.parts if one.leave is not None]
    of = {when: {peer for one in leaves if one.when == when for peer in one.peers} for when in get_args(When)}
    told = [peer for peer in view.ids if peer in of["noticed"]]
    noticed = told[: view.size - 1]
    evicted = [peer for peer in view.ids if peer in of["now"] and peer not in noticed]
    free = evicted[: max(0, view.size - len(noticed) - limits.minimum)]
    now = tuple(peer for peer in view.ids if peer in noticed or peer in free)
    others = of["replaced"] - {*now}
    if told and not noticed and wish.size > 0:
        others |= {*told}  # the only peer
    if wish.leave is None:
        others |= {*evicted} - {*now}  # the size says how many there shall be, and those who come let them go
    elif noticed and not others:
        others = set(terms.leaving) - {*now}  # who is taken away changes nothing that is under way
    host = next((one.host for one in leaves if one.host is not None), None)
    replaced = tuple(peer for peer in view.ids if peer in others)
    return _Named(now, replaced, len(evicted) - len(free), bool(noticed) and not evicted, host)


def _unasked(view: View, terms: Terms, limits: Limits, wish: RescaleRequest, named: _Named) -> int:
    """The size after a wish that names peers only: a notice says how many the job shall have with those under way."""
    staying = view.size - len(named.now)
    if named.now and named.noticed_only:
        under_exchange = sum(view.rank_of(peer) is not None for peer in terms.leaving)
        return max(staying, limits.clip(wish.size - under_exchange))
    if named.now or not named.replaced:
        return staying
    # As many as now, and those who come for peers that were lost since it was asked for.
    return max(staying, min(wish.size, terms.target_size))


def _after_leaving(view: View, terms: Terms, wish: RescaleRequest, *, batch_stays: bool) -> tuple[View, Terms]:
    """Who is taken away does not change what is trained: the batch stays until others have come."""
    if batch_stays:
        return view, replace(terms, target_size=0, leaving=())
    return _settled(view, replace(terms, keep=wish.keep))


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
