"""The next membership that a barrier decides on: who leaves, who joins, and what is under way.

A pure function of a `BarrierInput`; ``core.barrier`` is its only caller.

| requested                 | prepared peers | becomes                                                      |
| ------------------------- | -------------- | ------------------------------------------------------------ |
| smaller than the view     | any            | peers under exchange leave at once, then slow ones, slowest   |
|                           |                | first, then the newest (`View.leave_order`); those under way  |
|                           |                | are dismissed, but for those who come for the rest of an      |
|                           |                | exchange                                                      |
| larger than the view      | none yet       | the agent prepares peers, the view stays, triggers hold       |
| larger, under way         | all there      | they join; surplus ones are dismissed                         |
| larger, under way         | some missing   | those who are there join; the target is marked as refused     |
| as large as the view      | any            | nothing; those under way are dismissed, as above              |
| some peers to leave now   | any            | they leave, rank 0 included; more are prepared if it says so  |
| some to be replaced       | none yet       | the agent prepares as many, the view stays                    |
| to be replaced, under way | some or all    | as many leave as have come, but the last one who was there    |
|                           |                | before: it leaves at the next barrier                         |
| a notice to the only peer | any            | the same: another one comes before it leaves                  |
| a size and peers by name  | any            | the named peers go first; a smaller size lets others go, in   |
|                           |                | the same order                                                |

A view always has a member of the view before it, which holds the state: a peer that has just joined holds all of it
only after its first step.

What is under way is a size *and* peers to exchange, and one wave of joiners serves both. A rule or a hook adds to it:

| under way            | a rule or hook requests | becomes                                                         |
| -------------------- | ----------------------- | --------------------------------------------------------------- |
| a size               | peers to be replaced    | that size, and the exchange; more joiners are prepared           |
| an exchange          | more peers to be        | all of them; one that is under exchange already is exchanged     |
|                      | replaced                | once                                                             |
| an exchange          | a size                  | that size, and the exchange                                      |
| a size               | another size            | the newer size                                                   |
| a size, an exchange  | peers to leave now      | the exchange of the others, and that size less those who leave   |
| a size               | that size, kept alike   | nothing: it is requested already (`is_under_way`)                |
| a command's size     | the present size        | nothing                                                         |

Where fewer come than were requested, peers are exchanged first, the slowest before others: an exchange gives back the
slot that it takes, and a slow peer costs the job more than one peer that is missing. The size is then marked as
refused. Nobody leaves for a peer that has not come.

A request from outside takes the place of all that is under way; only a notice leaves the exchanges as they are. An
offer that does not account for exactly the peers that were requested last was made for an older request, and some of
its peers may be dismissed by now: the agent is asked for a new one, and keeps those who are on their way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from kungfu.runtime.core.request import Asked, Keep, Leave, Resize, When
from kungfu.runtime.core.terms import Terms, meant_size
from kungfu.runtime.core.view import Peer, View, is_slow
from kungfu.runtime.settings import Limits


@dataclass(frozen=True)
class JoinerOffer:
    """The agent's report on the peers that it was told to prepare.

    Args:
        ready: The peers that are ready to join.
        missing: The ids of those that will not come.
        reason: Why they will not.
        parts: Seconds that the parts of the preparation took, by name: ``spawn`` and ``ready``.
        number: Counted by the leading agent, so that of two offers the later one counts; 0 before it is sent.
    """

    ready: tuple[Peer, ...] = ()
    missing: tuple[int, ...] = ()
    reason: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    number: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Decision:
    """The decision of a barrier. The agent hears of it where it has processes to start or to end.

    Args:
        view: The view after the barrier.
        terms: Its terms.
        prepare: A number of processes for the agent to bring the job to, those included that leave when others have
            come; ``None`` if the agent has nothing to do.
        host: The number of the host on which new processes should run; ``None`` for any.
        requests: The requests for a size or about peers that were carried out together; the first one requests a size,
            if one does.
        settings: The requests for another batch or learning rate, and for the end of training.
        superseded: The requests that were passed over.
        slow: The peers that left first since they are slow, by id, in that order: their speeds as fractions of the
            median peer's. Those that a request names are not among them.
    """

    view: View
    terms: Terms
    prepare: int | None = None
    host: int | None = None
    requests: tuple[Asked, ...] = ()
    settings: tuple[Asked, ...] = ()
    superseded: tuple[Asked, ...] = ()
    slow: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BarrierInput:
    """The input of a barrier's decision.

    Args:
        view: The view that holds the barrier.
        terms: Its terms.
        limits: The least and the most peers of the job.
        requests: The requests to the barrier; `next_membership` takes those of the membership that are carried out
            together, of which the first one requests a size, if one does.
        offer: The agent's newest offer, if there is one.
        speeds: The speeds of peers by id, as fractions of the median peer's, if they are measured.
    """

    view: View
    terms: Terms
    limits: Limits
    requests: Sequence[Asked] = ()
    offer: JoinerOffer | None = None
    speeds: Mapping[int, float] = field(default_factory=dict)

    @property
    def outside(self) -> Asked | None:
        """The request of somebody outside, if one is among them."""
        return next((one for one in self.requests if one.is_outside), None)

    @property
    def exchanged(self) -> tuple[int, ...]:
        """The peers whose exchange continues whatever is requested: somebody outside ends it, but not by a notice."""
        what = None if self.outside is None else self.outside.what
        is_notice = isinstance(what, Leave) and what.when == "noticed"
        return self.terms.leaving if what is None or is_notice else ()

    def leave_order(self, named: Sequence[int], *, without: Collection[int] = ()) -> list[int]:
        """The order in which peers go to a smaller size: named ones, slow ones, the newest."""
        others = (peer for peer in self.view.leave_order(self.speeds) if peer not in (*named, *without))
        return [*named, *others]


def next_membership(at: BarrierInput) -> Decision:
    """The next view and its terms, before settings change them."""
    view, at = at.view, replace(at, terms=_without_lost(at.view, at.terms))
    if at.terms.departing and len(at.terms.departing) < view.size:
        # Those who came at the last barrier hold the state by now, so the peers that they replace can leave.
        return _let_departing_leave(at)
    if at.requests:
        # Only departing peers are left: those who were to come for them were lost, and a new request is newer.
        at = replace(at, terms=replace(at.terms, departing=()))
    if any(isinstance(one.what, Leave) for one in at.requests):
        # Peers leave by name, and perhaps a size is requested too.
        return _let_named_leave(at)
    if at.requests and isinstance(lead := at.requests[0].what, Resize):
        # Only a size is requested: of two sizes one was chosen.
        return _resize(at, lead)
    if at.offer is not None and at.terms.target_size > 0:
        # The agent offers peers for the change that is under way.
        return _change_size(at, at.terms.target_size, asked=_under_way(view, at.terms), preparing=True)
    # A barrier for something else, a checkpoint say.
    return Decision(view, at.terms)


def is_under_way(asked: Asked, at: BarrierInput) -> bool:
    """True if a request of a rule or a hook changes nothing of what joiners are on their way for.

    It requests that size; or for the present one, while they come because of a command: that it is content undoes
    nothing that somebody else has requested.
    """
    terms = at.terms
    if asked.is_outside or not isinstance(asked.what, Resize) or not terms.target_size:
        return False
    wanted, target = _with_reachable_size(asked.what, terms, at.limits)
    if terms.by_command and target == at.view.size:
        return True
    same_terms = (wanted.keep, wanted.max_global_batch) == (terms.keep, terms.max_global_batch)
    return same_terms and target == terms.target_size


def without_joiners(decision: Decision, *, preparing: bool) -> Decision:
    """The decision of a barrier that ends training: nobody comes, nobody waits; who is on the way is dismissed."""
    terms = replace(decision.terms, target_size=0, leaving=())
    return replace(decision, terms=terms, prepare=decision.view.size if preparing else None)


def _resize(at: BarrierInput, request: Resize) -> Decision:
    """A size alone is requested: it takes the place of the one that is under way."""
    preparing, asked = at.terms.target_size > 0, _under_way(at.view, at.terms)
    terms = replace(at.terms, target_size=0, leaving=at.exchanged)
    terms, target = _with_reachable_size(request, terms, at.limits)
    if target != at.view.size:
        terms = replace(terms, by_command=at.outside is not None)
    return _change_size(replace(at, terms=terms), target, asked=asked, preparing=preparing)


def _change_size(at: BarrierInput, target: int, *, asked: int, preparing: bool) -> Decision:
    """The change to ``target`` peers; ``asked`` are under way, if the agent was ``preparing`` any."""
    view, terms, offer = at.view, at.terms, at.offer
    if target < view.size:
        # A shrink needs nobody's preparation.
        return _shrink(at, target, preparing=preparing)
    if target == view.size and not terms.leaving:
        # The view is as large as requested: those under way are dismissed.
        refused = terms.replacement_refused and not preparing
        terms = replace(terms, target_size=0, replacement_refused=refused)
        return Decision(view, terms, target if preparing else None)
    coming = target - view.size + len(terms.leaving)
    if offer is None or not _accounts_for(offer, asked, view) or coming > asked:
        # Peers have yet to be prepared: for the first time, or more of them, or again after an older offer.
        return Decision(view, replace(terms, target_size=target), target + len(terms.leaving))
    return _admit_offered(at, target, offer)


def _shrink(at: BarrierInput, target: int, *, preparing: bool) -> Decision:
    """Peers leave at once, first those under exchange: nobody needs to come for them any more."""
    view, leaving = at.view, at.terms.leaving
    gone = at.leave_order(leaving)[: view.size - target]
    left = tuple(peer for peer in leaving if peer not in gone)
    shrunk, terms = _with_batch_of_size(view, view.changed(leave=gone), at.terms)
    if not left:
        # Those under way are dismissed.
        return Decision(shrunk, terms, target if preparing else None)
    # More were under exchange than leave now. The agent still counts those who leave.
    return Decision(shrunk, replace(terms, target_size=target, leaving=left), target + len(left) + len(gone))


def _under_way(view: View, terms: Terms) -> int:
    """The number of peers that the agent was asked to prepare and that are not in the view yet."""
    return terms.target_size - view.size + len(terms.leaving)


def _without_lost(view: View, terms: Terms) -> Terms:
    """A peer that was about to leave and was lost is not replaced once more: its replacement has come."""
    terms = replace(terms, leaving=tuple(peer for peer in terms.leaving if view.rank_of(peer) is not None))
    departing = tuple(peer for peer in terms.departing if view.rank_of(peer) is not None)
    if departing == terms.departing:
        # None of them was lost.
        return terms
    target = terms.target_size - (len(terms.departing) - len(departing))
    return replace(terms, departing=departing, target_size=max(view.size, target) if terms.target_size else 0)


def _let_departing_leave(at: BarrierInput) -> Decision:
    """The replaced peers leave; whatever else the barrier is requested is decided about the rest."""
    view, terms, gone = at.view, at.terms, len(at.terms.departing)
    rest = replace(view.changed(leave=terms.departing), version=view.version)
    target = terms.target_size - gone
    terms = replace(terms, departing=(), target_size=target if target > rest.size else 0)
    after = next_membership(replace(at, view=rest, terms=terms))
    prepare = None if after.prepare is None else after.prepare + gone
    return replace(after, view=View(view.version + 1, after.view.peers), prepare=prepare)


def _admit_offered(at: BarrierInput, target: int, offer: JoinerOffer) -> Decision:
    """The offered peers join, first those in whose place others leave."""
    view, terms = at.view, at.terms
    leaving = sorted(terms.leaving, key=lambda peer: at.speeds[peer] if is_slow(peer, at.speeds) else math.inf)
    welcome = offer.ready[: target - view.size + len(leaving)]
    going = leaving[: len(welcome)]
    reached = view.size + len(welcome) - len(going)
    terms = replace(terms, refused_size=target if reached < target else terms.refused_size)
    if not welcome:
        # Nobody came: the change is over, and nothing has changed. A rule does not ask again for the same.
        refused = bool(leaving) or terms.replacement_refused
        terms = replace(terms, target_size=0, leaving=(), departing=(), replacement_refused=refused)
        return Decision(view, terms, reached)
    if len(going) == view.size:
        # Nobody who holds the state would stay. The lowest rank does, for it leads, and departs at the next barrier.
        leads = view.ids[0]
        terms, going = replace(terms, departing=(leads,)), [peer for peer in going if peer != leads]
    # The agent hears of it when the view trains. Told a size before, it would offer once more those who are joining.
    return Decision(*_with_batch_of_size(view, view.changed(leave=going, join=welcome), terms))


def _accounts_for(offer: JoinerOffer, asked: int, view: View) -> bool:
    """True if an offer is the newest one. One with a member of the view is old: peers were lost since, and others are
    requested."""
    joined = any(view.rank_of(peer.id) is not None for peer in offer.ready)
    return not joined and len(offer.ready) + len(offer.missing) == asked


# ---- peers by name ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Named:
    """The peers that requests name, in rank order.

    Args:
        now: The peers that leave now.
        replaced: The peers that leave when others have come, including those that were under exchange before.
        kept: The number of peers that would leave now, and have to stay for the job's minimum.
        noticed_only: True if all peers that leave now are taken away by their platform.
        host: The number of the host on which the replacements should run.
    """

    now: tuple[int, ...]
    replaced: tuple[int, ...]
    kept: int
    noticed_only: bool
    host: int | None


def _let_named_leave(at: BarrierInput) -> Decision:
    """Peers leave by name; where a size is requested too, the named ones go first.

    A notice cannot be refused, but the last peer of a job stays until another one has come.
    """
    view, terms, lead, named = at.view, at.terms, at.requests[0].what, _named(at)
    by_command = at.requests[0].is_outside
    preparing, asked = terms.target_size > 0, _under_way(view, terms)
    assert isinstance(lead, Resize | Leave), lead
    if isinstance(lead, Resize):
        # A size is requested too.
        terms, wanted = _with_reachable_size(lead, terms, at.limits)
        terms = replace(terms, by_command=by_command)
    else:
        # How many there shall be follows from who leaves.
        wanted = _size_after_named_leave(at, lead, named)
        if not named.noticed_only and (named.now or named.kept):
            # Evicted peers that the minimum holds: that size is out of reach, and no other one any more.
            terms = replace(terms, refused_size=view.size - len(named.now) - named.kept if named.kept else 0)
        if not named.now and not named.replaced:
            # Nobody of them is in the view, or all have to stay: whatever is under way goes on.
            return next_membership(replace(at, terms=terms, requests=()))
    staying = view.size - len(named.now)
    # A smaller size lets the named peers go first, then slow ones, then the newest.
    order = at.leave_order(named.replaced, without=named.now)
    gone = (*named.now, *order[: max(0, staying - wanted)])
    leaving = tuple(peer for peer in named.replaced if peer not in gone)
    if not gone and at.outside is None:
        # Nobody leaves at this barrier: those who were offered may be enough for all.
        return _change_size(
            replace(at, terms=replace(terms, leaving=leaving)), wanted, asked=asked, preparing=preparing
        )
    shrunk = view.changed(leave=gone) if gone else view
    pending = wanted > shrunk.size or bool(leaving)
    if gone:
        # Some leave at this barrier.
        stays, asked_for = named.noticed_only and (pending or isinstance(lead, Leave)), terms
        terms = replace(terms, by_command=by_command)
        shrunk, terms = _after_leaving(view, shrunk, terms, lead.keep, batch_stays=stays)
        if pending and preparing:
            # Those under way come on the terms on which they were asked for.
            terms = replace(terms, keep=asked_for.keep, by_command=asked_for.by_command)
    terms = replace(terms, target_size=wanted if pending else 0, leaving=leaving)
    processes = wanted + len(leaving) + len(gone)  # the agent still counts those who leave
    return Decision(shrunk, terms, processes if pending or preparing else None, host=named.host)


def _named(at: BarrierInput) -> _Named:
    """The peers that requests name, and those under exchange; one that is to leave now is not replaced."""
    view, lead, leaves = at.view, at.requests[0].what, [one.what for one in at.requests if isinstance(one.what, Leave)]
    of = {when: {peer for one in leaves if one.when == when for peer in one.peers} for when in get_args(When)}
    given_notice = [peer for peer in view.ids if peer in of["noticed"]]
    noticed = given_notice[: view.size - 1]
    evicted = [peer for peer in view.ids if peer in of["now"] and peer not in noticed]
    free = evicted[: max(0, view.size - len(noticed) - at.limits.minimum)]
    now = tuple(peer for peer in view.ids if peer in noticed or peer in free)
    others = of["replaced"] - {*now}
    if at.outside is None or noticed or others:
        # The exchanges that are under way go on.
        others |= {*at.exchanged} - {*now}
    if given_notice and not noticed and isinstance(lead, Resize | Leave) and lead.size > 0:
        # The only peer of the job is given notice: it leaves when another one has come.
        others |= {*given_notice}
    if isinstance(lead, Resize):
        # The size says how many there shall be: a peer that cannot leave now leaves for one that comes.
        others |= {*evicted} - {*now}
    host = next((one.host for one in leaves if one.host is not None), None)
    replaced = tuple(peer for peer in view.ids if peer in others)
    return _Named(now, replaced, len(evicted) - len(free), bool(noticed) and not evicted, host)


def _size_after_named_leave(at: BarrierInput, lead: Leave, named: _Named) -> int:
    """The size that the job should have after requests that name peers and request no size."""
    staying, terms = at.view.size - len(named.now), at.terms
    if named.now and named.noticed_only:
        # A notice says how many the job shall have with those under way.
        return max(staying, at.limits.clip(lead.size - len(terms.leaving)))
    if at.outside is None and named.now:
        # Evicted peers leave a smaller job, also of those who are on their way.
        return max(staying, terms.target_size - len(named.now))
    if named.now or not named.replaced:
        # Peers that somebody outside lets go: nobody comes, whoever was under way.
        return staying
    if at.outside is None:
        # A size that is under way stays so.
        return max(staying, terms.target_size)
    # As many as now, and those who come for peers that were lost since it was asked for.
    return max(staying, min(lead.size, terms.target_size))


def _after_leaving(before: View, view: View, terms: Terms, keep: Keep, *, batch_stays: bool) -> tuple[View, Terms]:
    if batch_stays:
        # A peer that is taken away does not change what is trained: the batch stays until others have come.
        return view, replace(terms, target_size=0, leaving=())
    return _with_batch_of_size(before, view, replace(terms, keep=keep))


# ---- sizes and batches -----------------------------------------------------------------------------------------------


def _with_reachable_size(request: Resize, terms: Terms, limits: Limits) -> tuple[Terms, int]:
    """The size that a request can have, and the terms that say which one was out of reach."""
    # A rule says what its limit is. A hook and somebody outside have none to give: the one in force stays.
    most = terms.max_global_batch if request.max_global_batch is None else request.max_global_batch
    terms = replace(terms, keep=request.keep, max_global_batch=most)
    target = _reachable(request.size, terms, limits)
    return replace(terms, refused_size=request.size if target != request.size else 0), target


def _reachable(size: int, terms: Terms, limits: Limits) -> int:
    """Within the job's limits, and no more peers than a batch that must not change has samples."""
    target = limits.clip(size)
    if terms.keep == "global_batch_size" and terms.global_batch_size:
        # Every peer needs a sample of it.
        return max(1, min(target, terms.global_batch_size))
    return max(1, min(target, _largest_batch(terms))) if terms.max_global_batch else target


def _largest_batch(terms: Terms) -> int:
    """The most samples that a change of size makes of a step: up to the limit, or as many as were set already."""
    return max(terms.max_global_batch, terms.global_batch_size)


def _with_batch_of_size(before: View, view: View, terms: Terms) -> tuple[View, Terms]:
    """The terms of a view that has just changed its size: the change is done, and the batch follows."""
    terms, size = replace(terms, target_size=0, leaving=()), meant_size(view, terms)
    is_rescale = size != before.size
    if terms.keep == "global_batch_size":
        # Each peer has another share of the same batch. A command sets that of the policies aside.
        aside = (terms.policy_share or terms.batch_per_peer) if terms.by_command else 0.0
        return view, replace(terms, batch_per_peer=terms.global_batch_size / size, policy_share=aside)
    if terms.policy_share and not terms.by_command and is_rescale:
        # A policy decides again: the share is the one that policies had set.
        terms = replace(terms, batch_per_peer=terms.policy_share, policy_share=0.0)
    samples = round(terms.batch_per_peer * size)
    if terms.max_global_batch:
        # Beyond the limit the global batch stays; each peer's share is remembered as it is meant, for a smaller size.
        samples = min(samples, max(_largest_batch(terms), size))
    return view, replace(terms, global_batch_size=samples)
