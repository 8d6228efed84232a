"""The next membership that a barrier decides on: the peers that leave or join, and the change under way.

The decision is a pure function of a `BarrierInput`; ``core.barrier`` is its only caller. An *exchange* replaces peers.

| requested                 | prepared peers | result                                                        |
| ------------------------- | -------------- | ------------------------------------------------------------- |
| smaller than the view     | any            | peers under exchange leave at once, then slow peers, slowest  |
|                           |                | first, then the newest (`View.leave_order`); joiners under    |
|                           |                | way are dismissed, except those for the rest of an exchange   |
| larger than the view      | none yet       | the agent prepares peers; the view remains; triggers pause    |
| larger, under way         | all ready      | they join; surplus joiners are dismissed                      |
| larger, under way         | some missing   | the ready joiners join; the target is marked as refused       |
| as large as the view      | any            | no change; joiners under way are dismissed, as above          |
| some peers to leave now   | any            | they leave, including rank 0; joiners are prepared if a       |
|                           |                | notice gives a size above the number of remaining peers       |
| some to be replaced       | none yet       | the agent prepares as many joiners; the view stays the same   |
| to be replaced, under way | some or all    | as many leave as have come; if all would leave, the           |
|                           |                | coordinator stays until the next barrier                      |
| a notice to the only peer | any            | as above: a replacement comes before the peer leaves          |
| a size and peers by name  | any            | the named peers leave first; a smaller size removes others,   |
|                           |                | in the same order                                             |

A view always keeps a member of the previous view, to hold the state: a joiner holds all of the state only after its
first step.

A change under way has a size *and* peers to exchange, and the same joiners serve both. A request of a rule or a
hook is added to the change under way:

| under way            | a rule or hook requests | result                                                           |
| -------------------- | ----------------------- | ---------------------------------------------------------------- |
| a size               | peers to be replaced    | that size, and the exchange; more joiners are prepared           |
| an exchange          | more peers to be        | all of them; a peer already under exchange is exchanged once     |
|                      | replaced                |                                                                  |
| an exchange          | a size                  | that size, and the exchange                                      |
| a size               | another size            | the newer size                                                   |
| a size, an exchange  | peers to leave now      | the exchange of the others, and that size minus the leavers      |
| a size               | that size, same `keep`  | nothing: it is requested already (`is_under_way`)                |
| a command's size     | the present size        | nothing                                                          |

If fewer joiners come than requested, exchanges are served first, the slowest peers before others: an exchange frees
the slot that it takes, and a slow peer costs the job more than a missing peer. The size is then marked as refused. A
peer under exchange stays until its replacement has come.

A request from outside replaces the whole change under way; only a notice keeps the exchanges. If an offer does not
account for exactly the peers requested last, it was made for an older request, and some of the offered peers may have
been dismissed: the agent is asked for a new offer, and keeps the joiners under way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from kungfu.runtime.core.request import Asked, Leave, Resize, When, settings_with_size
from kungfu.runtime.core.terms import Terms, meant_size
from kungfu.runtime.core.view import Peer, View, is_slow
from kungfu.runtime.settings import Limits


@dataclass(frozen=True)
class JoinerOffer:
    """The agent's report to the coordinator on the joiners that it was asked to prepare: ready or missing."""

    ready: tuple[Peer, ...] = ()  # the peers that are ready to join
    missing: tuple[int, ...] = ()  # the ids of the joiners that will not come
    reason: str = ""
    # The seconds that each part of the preparation took, by name: ``spawn`` and ``ready``.
    parts: Mapping[str, float] = field(default_factory=dict)
    # The number that the leading agent assigns, so that the later of two offers counts; 0 in an offer not yet sent.
    number: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Decision:
    """The decision of a barrier; the leading agent is notified if processes are to be started or ended."""

    view: View  # the view after the barrier
    terms: Terms
    # The number of processes that the agent should provide, including the peers that leave once their replacements have
    # come; ``None`` if the agent has nothing to do.
    prepare: int | None = None
    host: int | None = None  # the number of the host on which new processes should run; ``None`` for any
    # The membership requests that are carried out together; the request for a size comes first, if there is one.
    requests: tuple[Asked, ...] = ()
    settings: tuple[Asked, ...] = ()  # the requests for a new batch or learning rate, and for the end of training
    superseded: tuple[Asked, ...] = ()
    # The requests of rules and hooks that a hold has stopped, the first one of each rule and hook.
    held: tuple[Asked, ...] = ()
    # The peers removed because they are slow: their speeds, as fractions of the median peer's, by id in the order of
    # removal. Peers that a request names are excluded.
    slow: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BarrierInput:
    """The input of a barrier's decision: the view with its terms, the requests, the offered joiners and speeds."""

    view: View  # the view that holds the barrier
    terms: Terms
    limits: Limits  # the minimum and the maximum number of peers of the job
    # The requests to the barrier; for `next_membership` only the membership requests to carry out, led by the request
    # for a size, if there is one.
    requests: Sequence[Asked] = ()
    offer: JoinerOffer | None = None  # the agent's newest offer, if there is one
    # The measured speeds of peers by id, as fractions of the median peer's.
    speeds: Mapping[int, float] = field(default_factory=dict)

    @property
    def outside(self) -> Asked | None:
        """The first request of a person, a scheduler or an agent; ``None`` if there is none."""
        return next((one for one in self.requests if one.is_outside), None)

    @property
    def exchanged(self) -> tuple[int, ...]:
        """The peers whose replacement continues; a request from outside, other than a preemption notice, cancels it."""
        what = None if self.outside is None else self.outside.what
        is_notice = isinstance(what, Leave) and what.when == "noticed"
        return self.terms.leaving if what is None or is_notice else ()

    def leave_order(self, named: Sequence[int], *, without: Collection[int] = ()) -> list[int]:
        """The order in which a smaller size removes peers: named peers, slow peers, then the newest."""
        others = (peer for peer in self.view.leave_order(self.speeds) if peer not in (*named, *without))
        return [*named, *others]


def next_membership(at: BarrierInput) -> Decision:
    """Decides on the next view and its terms; requests for a batch, a rate or the end of training are applied later."""
    view, at = at.view, replace(at, terms=_without_lost(at.view, at.terms))
    if at.terms.departing and len(at.terms.departing) < view.size:
        # The peers that joined at the last barrier hold the state by now, so the peers they replace can leave.
        return _let_departing_leave(at)
    if at.requests:
        # Only departing peers are left: their replacements were lost, and a new request takes precedence.
        at = replace(at, terms=replace(at.terms, departing=()))
    if any(isinstance(one.what, Leave) for one in at.requests):
        # Named peers leave, and perhaps a size is requested too.
        return _let_named_leave(at)
    if at.requests and isinstance(lead := at.requests[0].what, Resize):
        # Only a size is requested; the merge has chosen it among several.
        return _resize(at, lead)
    if at.offer is not None and at.terms.target_size > 0:
        # The agent offers joiners for the change under way.
        return _change_size(at, at.terms.target_size, asked=_under_way(view, at.terms), preparing=True)
    # The barrier serves another purpose, such as a checkpoint.
    return Decision(view, at.terms)


def is_under_way(asked: Asked, at: BarrierInput) -> bool:
    """True if a request of a rule or a hook does not affect the change under way.

    The request is either for the size under way, or for the present size while joiners come for a command: a rule that
    is satisfied with the present size does not undo a command.
    """
    terms = at.terms
    if asked.is_outside or not isinstance(asked.what, Resize) or not terms.target_size:
        return False
    wanted, target = with_reachable_size(asked.what, terms, at.limits)
    if terms.by_command and target == at.view.size:
        return True
    same_terms = (wanted.keep, wanted.max_global_batch) == (terms.keep, terms.max_global_batch)
    pending = () if terms.awaiting_size is None else settings_with_size(terms.awaiting_size)
    same_settings = [one.what for one in settings_with_size(asked)] == [one.what for one in pending]
    return same_terms and same_settings and target == terms.target_size


def _resize(at: BarrierInput, request: Resize) -> Decision:
    """Handles a request for a size only: the requested size replaces the size under way."""
    preparing, asked = at.terms.target_size > 0, _under_way(at.view, at.terms)
    terms = replace(at.terms, target_size=0, leaving=at.exchanged)
    terms, target = with_reachable_size(request, terms, at.limits)
    if target != at.view.size:
        terms = replace(terms, by_command=at.outside is not None)
    return replace(_change_size(replace(at, terms=terms), target, asked=asked, preparing=preparing), host=request.host)


def _change_size(at: BarrierInput, target: int, *, asked: int, preparing: bool) -> Decision:
    """Changes the size to ``target`` peers. If ``preparing``, the agent is preparing ``asked`` joiners already."""
    view, terms, offer = at.view, at.terms, at.offer
    if target < view.size:
        # A shrink needs no joiners.
        return _shrink(at, target, preparing=preparing)
    if target == view.size and not terms.leaving:
        # The view has the requested size: joiners under way are dismissed. A size requested from outside may be below
        # the size before a loss, which the agent would restore.
        refused = terms.replacement_refused and not preparing
        terms = replace(terms, target_size=0, replacement_refused=refused)
        return Decision(view, terms, target if preparing or at.outside is not None else None)
    coming = target - view.size + len(terms.leaving)
    if offer is None or not _accounts_for(offer, asked, view) or coming > asked:
        # Joiners must be prepared: for the first time, or more of them, or again after an outdated offer.
        return Decision(view, replace(terms, target_size=target), target + len(terms.leaving))
    return _admit_offered(at, target, offer)


def _shrink(at: BarrierInput, target: int, *, preparing: bool) -> Decision:
    """Removes peers at once, first the peers that are being replaced, which then need no replacements."""
    view, leaving = at.view, at.terms.leaving
    gone = at.leave_order(leaving)[: view.size - target]
    left = tuple(peer for peer in leaving if peer not in gone)
    shrunk, terms = _with_batch_of_size(view, view.changed(leave=gone), at.terms)
    if not left:
        # No exchange is left: joiners under way are dismissed.
        return Decision(shrunk, terms, target if preparing else None)
    # More peers are under exchange than leave now. The agent still counts the leaving peers.
    return Decision(shrunk, replace(terms, target_size=target, leaving=left), target + len(left) + len(gone))


def _under_way(view: View, terms: Terms) -> int:
    """The number of joiners that the agent was asked to prepare and that are not yet in the view."""
    return terms.target_size - view.size + len(terms.leaving)


def _without_lost(view: View, terms: Terms) -> Terms:
    """Removes lost peers from ``leaving`` and ``departing``; a lost departing peer has its replacement already."""
    terms = replace(terms, leaving=tuple(peer for peer in terms.leaving if view.rank_of(peer) is not None))
    departing = tuple(peer for peer in terms.departing if view.rank_of(peer) is not None)
    if departing == terms.departing:
        # No departing peer was lost.
        return terms
    target = terms.target_size - (len(terms.departing) - len(departing))
    return replace(terms, departing=departing, target_size=max(view.size, target) if terms.target_size else 0)


def _let_departing_leave(at: BarrierInput) -> Decision:
    """Removes the departing peers, whose replacements hold the state by now; then decides on the requests."""
    view, terms, gone = at.view, at.terms, len(at.terms.departing)
    rest = replace(view.changed(leave=terms.departing), version=view.version)
    target = terms.target_size - gone
    terms = replace(terms, departing=(), target_size=target if target > rest.size else 0)
    after = next_membership(replace(at, view=rest, terms=terms))
    prepare = None if after.prepare is None else after.prepare + gone
    return replace(after, view=View(view.version + 1, after.view.peers), prepare=prepare)


def _admit_offered(at: BarrierInput, target: int, offer: JoinerOffer) -> Decision:
    """Admits the offered peers, first the replacements of leaving peers."""
    view, terms = at.view, at.terms
    leaving = sorted(terms.leaving, key=lambda peer: at.speeds[peer] if is_slow(peer, at.speeds) else math.inf)
    welcome = offer.ready[: target - view.size + len(leaving)]
    going = leaving[: len(welcome)]
    reached = view.size + len(welcome) - len(going)
    terms = replace(terms, refused_size=target if reached < target else terms.refused_size)
    if not welcome:
        # No joiner came: the change is over without effect, and a rule does not request the same again.
        refused = bool(leaving) or terms.replacement_refused
        terms = replace(terms, target_size=0, leaving=(), departing=(), replacement_refused=refused)
        return Decision(view, terms, reached)
    if len(going) == view.size:
        # No holder of the state would remain, so the coordinator stays until the next barrier.
        leads = view.ids[0]
        terms, going = replace(terms, departing=(leads,)), [peer for peer in going if peer != leads]
    # The agent is notified when the view trains. If notified now, it would offer the joining peers again.
    return Decision(*_with_batch_of_size(view, view.changed(leave=going, join=welcome), terms))


def _accounts_for(offer: JoinerOffer, asked: int, view: View) -> bool:
    """True if an offer accounts for all ``asked`` joiners. An offer with a member of the view is outdated: since then,
    peers were lost and further joiners were requested."""
    joined = any(view.rank_of(peer.id) is not None for peer in offer.ready)
    return not joined and len(offer.ready) + len(offer.missing) == asked


# ---- peers by name ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Named:
    """The peers named by requests, in rank order."""

    now: tuple[int, ...]  # the peers that leave now
    replaced: tuple[int, ...]  # the peers that leave once their replacements have come, including earlier exchanges
    kept: int  # the number of peers that should leave now, but must stay to keep the job's minimum
    noticed_only: bool  # True if all peers that leave now are preempted by their platform
    host: int | None  # the number of the host on which the replacements should run


def _let_named_leave(at: BarrierInput) -> Decision:
    """Removes the peers named by requests; if a size is requested too, the named peers leave first.

    A preemption notice cannot be refused, but the last peer of a job stays until a replacement has come.
    """
    view, terms, lead, named = at.view, at.terms, at.requests[0].what, _named(at)
    by_command = at.requests[0].is_outside
    preparing, asked = terms.target_size > 0, _under_way(view, terms)
    assert isinstance(lead, Resize | Leave), lead
    if isinstance(lead, Resize):
        # A size is requested too.
        terms, wanted = with_reachable_size(lead, terms, at.limits)
        terms = replace(terms, by_command=by_command)
    else:
        # The size follows from the number of peers that leave.
        wanted = _size_after_named_leave(at, lead, named)
        if not named.noticed_only and (named.now or named.kept):
            # If some named peers must stay, the size without them is refused; earlier refusals are void in any case.
            terms = replace(terms, refused_size=view.size - len(named.now) - named.kept if named.kept else 0)
        if not named.now and not named.replaced:
            # No named peer is in the view, or all must stay: the change under way continues.
            return next_membership(replace(at, terms=terms, requests=()))
    staying = view.size - len(named.now)
    # A smaller size removes the named peers first, then slow peers, then the newest.
    order = at.leave_order(named.replaced, without=named.now)
    gone = (*named.now, *order[: max(0, staying - wanted)])
    leaving = tuple(peer for peer in named.replaced if peer not in gone)
    if not gone and at.outside is None:
        # No peer leaves at this barrier: the offered joiners may suffice for the change.
        return _change_size(
            replace(at, terms=replace(terms, leaving=leaving)), wanted, asked=asked, preparing=preparing
        )
    shrunk = view.changed(leave=gone) if gone else view
    pending = wanted > shrunk.size or bool(leaving)
    if gone:
        # Some peers leave at this barrier.
        asked_for, terms = terms, replace(terms, by_command=by_command)
        # A preemption does not change the training: the batch stays the same until replacements have come.
        if not (named.noticed_only and (pending or isinstance(lead, Leave))):
            shrunk, terms = _with_batch_of_size(view, shrunk, replace(terms, keep=lead.keep))
        if pending and preparing:
            # Joiners under way come on the terms under which they were requested.
            terms = replace(terms, keep=asked_for.keep, by_command=asked_for.by_command)
    terms = replace(terms, target_size=wanted if pending else 0, leaving=leaving)
    processes = wanted + len(leaving) + len(gone)  # the agent still counts the leaving peers
    return Decision(shrunk, terms, processes if pending or preparing else None, host=named.host)


def _named(at: BarrierInput) -> _Named:
    """The peers that requests name or that are being replaced; a peer that leaves now is not replaced."""
    view, lead, leaves = at.view, at.requests[0].what, [one.what for one in at.requests if isinstance(one.what, Leave)]
    of = {when: {peer for one in leaves if one.when == when for peer in one.peers} for when in get_args(When)}
    given_notice = [peer for peer in view.ids if peer in of["noticed"]]
    noticed = given_notice[: view.size - 1]
    evicted = [peer for peer in view.ids if peer in of["now"] and peer not in noticed]
    free = evicted[: max(0, view.size - len(noticed) - at.limits.minimum)]
    now = tuple(peer for peer in view.ids if peer in noticed or peer in free)
    others = of["replaced"] - {*now}
    if at.outside is None or noticed or others:
        # The exchanges under way continue.
        others |= {*at.exchanged} - {*now}
    if given_notice and not noticed and isinstance(lead, Resize | Leave) and lead.size > 0:
        # The only peer of the job is given notice: it leaves once a replacement has come.
        others |= {*given_notice}
    if isinstance(lead, Resize):
        # With a requested size, an evicted peer that cannot leave now leaves once a joiner has come.
        others |= {*evicted} - {*now}
    host = next((one.host for one in (lead, *leaves) if isinstance(one, Resize | Leave) and one.host is not None), None)
    replaced = tuple(peer for peer in view.ids if peer in others)
    return _Named(now, replaced, len(evicted) - len(free), bool(noticed) and not evicted, host)


def _size_after_named_leave(at: BarrierInput, lead: Leave, named: _Named) -> int:
    """The size that the job should have after requests that name peers but no size."""
    staying, terms = at.view.size - len(named.now), at.terms
    if named.now and named.noticed_only:
        # A notice gives the size of the job including the joiners under way.
        return max(staying, at.limits.clip(lead.size - len(terms.leaving)))
    if at.outside is None and named.now:
        # Evictions reduce the size of the job, including a size under way.
        return max(staying, terms.target_size - len(named.now))
    if named.now or not named.replaced:
        # A command removes peers: no joiner comes, even if some were under way.
        return staying
    if at.outside is None:
        # A size under way remains.
        return max(staying, terms.target_size)
    # The present size, plus the joiners for peers that were lost since the request.
    return max(staying, min(lead.size, terms.target_size))


# ---- sizes and batches -----------------------------------------------------------------------------------------------


def with_reachable_size(request: Resize, terms: Terms, limits: Limits) -> tuple[Terms, int]:
    """Returns the terms with this request, and the nearest possible size; if that is another size, the terms say so."""
    # A rule gives its limit. Hooks and requests from outside give none, so the limit in force remains.
    most = terms.max_global_batch if request.max_global_batch is None else request.max_global_batch
    terms = replace(terms, keep=request.keep, max_global_batch=most)
    target = _reachable(request, terms, limits)
    return replace(terms, refused_size=request.size if target != request.size else 0), target


def _reachable(request: Resize, terms: Terms, limits: Limits) -> int:
    """Clips a size to the job's limits and, if the global batch is fixed or limited, to the number of its samples."""
    target = limits.clip(request.size)
    if request.batch is not None:
        # The batch that comes with the size has a sample for each of its peers.
        return target
    if terms.keep == "global_batch_size" and terms.global_batch_size:
        # Every peer needs a sample of the batch.
        return max(1, min(target, terms.global_batch_size))
    return max(1, min(target, _largest_batch(terms))) if terms.max_global_batch else target


def _largest_batch(terms: Terms) -> int:
    """The largest global batch that a change of size may set: the limit, or the present batch if that is larger."""
    return max(terms.max_global_batch, terms.global_batch_size)


def _with_batch_of_size(before: View, view: View, terms: Terms) -> tuple[View, Terms]:
    """Completes a change of size: adjusts the batch, and returns the view with its new terms."""
    terms, size = replace(terms, target_size=0, leaving=()), meant_size(view, terms)
    is_rescale = size != before.size
    if terms.keep == "global_batch_size":
        # Each peer gets a new share of the same batch. A command saves the share that policies had set.
        aside = (terms.policy_share or terms.batch_per_peer) if terms.by_command else 0.0
        # Of the peers for which another batch was requested, fewer may have come, and each needs a sample.
        samples = max(terms.global_batch_size, size) if terms.global_batch_size else 0
        return view, replace(terms, global_batch_size=samples, batch_per_peer=samples / size, policy_share=aside)
    if terms.policy_share and not terms.by_command and is_rescale:
        # A policy decides again: the share that policies had set is restored.
        terms = replace(terms, batch_per_peer=terms.policy_share, policy_share=0.0)
    samples = round(terms.batch_per_peer * size)
    if terms.max_global_batch:
        # The limit caps the global batch; the intended share of each peer is kept for a smaller size.
        samples = min(samples, max(_largest_batch(terms), size))
    return view, replace(terms, global_batch_size=samples)
