"""The decision of a barrier: a pure function of the view, its terms, the requests and the peers ready to join.

`decide` first merges the requests (see ``core.request``), then chooses the next view (see
``core.next_membership``), then changes the terms by the settings that rules request. Real peers and the model of
``kungfu.testing`` both call `decide` at their barriers.

A request that can be carried out at once does not wait for joiners. The table shows the effect of a request at the
next barrier of three peers. In its last three columns, two joiners are under way: they are starting, are offered to
this barrier, or will join the survivors of a loss.

| a rule or hook requests | nothing under way | joiners start         | joiners offered       | after a loss          |
| ----------------------- | ----------------- | --------------------- | --------------------- | --------------------- |
| nothing                 | nothing           | joiners come          | joiners join          | joiners come          |
| the end of training     | ends              | ends, joiners         | ends, joiners         | ends, joiners         |
|                         |                   | dismissed             | dismissed             | dismissed             |
| a checkpoint            | written           | written, joiners come | written, joiners join | written, joiners come |
| another batch           | set               | set, joiners come     | set, joiners join     | set, joiners come     |
| the size under way: 5   | joiners start     | joiners come          | joiners join          | joiners come          |
| the present size: 3     | nothing           | joiners dismissed     | joiners dismissed     | joiners dismissed     |
| a smaller size: 2       | peers leave       | peers leave, joiners  | peers leave, joiners  | peers leave, joiners  |
|                         |                   | dismissed             | dismissed             | dismissed             |
| a size between: 4       | joiners start     | joiners come, joiners | joiners join, joiners | joiners come, joiners |
|                         |                   | dismissed             | dismissed             | dismissed             |
| a larger size: 6        | joiners start     | joiners come, joiners | joiners come, joiners | joiners come, joiners |
|                         |                   | start                 | start                 | start                 |
| a peer to evict         | peers leave       | peers leave, joiners  | peers leave, joiners  | peers leave, joiners  |
|                         |                   | come                  | come                  | come                  |
| a peer to replace       | joiners start     | joiners come, joiners | joiners come, joiners | joiners come, joiners |
|                         |                   | start                 | start                 | start                 |

A *hold* (`kungfu resize N --hold`) stops the requests of rules and hooks for any other size than N, and for peers to
evict. Joiners on their way replace lost peers, and still come. The leading agent, which requests the former size when
a host comes, gets at most N peers. All other requests are carried out: for N peers, for peers to replace, for settings
and the end of training, notices, and requests from outside. But a rule that the hold has stopped once does not request
any size or eviction again until the hold ends, not even N peers.

A batch and a learning rate that are requested with a size come into force in the barrier in which the job has that
size: at once if no joiner is needed. If the change ends with another size, they are dropped.

"Joiners come" means that the joiners stay under way and are offered again to the next barrier. Requests of a barrier
that was broken by a loss are repeated at the next barrier (`kungfu.training.loop.barrier`). Only rules wait, for one
step: a rule that requests a size, a batch, a rate or a call is not evaluated in a step whose barrier may admit joiners
or remove peers (the source ``change_due``), since the size is about to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from kungfu.runtime.core import request
from kungfu.runtime.core.next_membership import (
    BarrierInput,
    Decision,
    JoinerOffer,
    is_under_way,
    next_membership,
    with_reachable_size,
)
from kungfu.runtime.core.terms import Ramp, RunPosition, Terms, awaited_size, meant_size
from kungfu.runtime.core.view import View, is_slow

__all__ = [
    "Adjust",
    "BarrierInput",
    "BarrierResult",
    "Decision",
    "JoinerOffer",
    "LossRecovery",
    "apply_settings",
    "as_decided",
    "decide",
    "with_requests",
    "with_settings",
]


@dataclass(frozen=True)
class LossRecovery:
    """The recovery of one peer after others were lost: a description of the end of each lost peer, by id; the error by
    which this peer noticed the loss; and the rank whose state all peers adopt."""

    lost: Mapping[int, str]
    error: str
    source: int  # rank in the new view


@dataclass(frozen=True)
class BarrierResult:
    """The result of a barrier, or of the entry into a view, on one peer."""

    before: Decision | None  # the decision that was in force before; ``None`` for a joiner
    after: Decision  # the decision in force now; only the coordinator sets ``superseded`` and ``slow``
    peer: int
    # The agent's offer on which the coordinator decided, if there was one; ``None`` on all other peers.
    offer: JoinerOffer | None = None
    parts: Mapping[str, float] = field(default_factory=dict)  # the seconds that each part of the barrier took, by name
    recovery: LossRecovery | None = None  # the recovery of this peer, if others were lost
    sources: tuple[int, ...] = ()  # the ranks of the new view that held the state when the view began

    @property
    def rank(self) -> int | None:
        """The rank of the peer in the new view; ``None`` if the peer was removed."""
        return self.after.view.rank_of(self.peer)


# Computes the terms from the view before a barrier and from the barrier's decision.
Adjust = Callable[[View, Decision], Terms]


def as_decided(before: View, decision: Decision) -> Terms:
    """The terms of the decision, unchanged."""
    return decision.terms


def decide(at: BarrierInput, *, adjust: Adjust = as_decided) -> Decision:
    """The decision of a barrier; see the table of this module.

    Args:
        at: The view that holds the barrier, with the other inputs of the decision.
        adjust: Computes the terms once the membership is decided; see `with_settings`.

    >>> from kungfu.runtime.core.request import Asked, Resize
    >>> from kungfu.runtime.core.view import Peer
    >>> from kungfu.runtime.settings import Limits
    >>> two = View(1, (Peer(0, "a:1"), Peer(1, "a:2")))
    >>> grow = Asked(Resize(4, "local_batch_size"), "gns_batch", 50)
    >>> decide(BarrierInput(two, Terms(64, 32.0), Limits(1, 4), requests=[grow])).prepare
    4
    """
    terms = _with_sizes(_without_refusals(at.terms, at.requests), at.requests)
    at = replace(at, terms=terms, limits=terms.sizes.within(at.limits))
    satisfied = [one for one in at.requests if is_under_way(one, at)]
    waiting = [_within_limits(one, at) for one in at.requests if not is_under_way(one, at)]
    held = [one for one in waiting if _is_held(one, at)]
    # A rule or a hook is reported once, however often it requests another size.
    first = {one.by: one for one in reversed(held)}
    news = tuple(one for one in held if first[one.by] is one and one.by not in terms.held_rules)
    at = replace(at, terms=replace(terms, held_rules=(*terms.held_rules, *(one.by for one in news))))
    merged = request.merge(one for one in waiting if one not in held)
    ends = any(isinstance(one.what, request.StopTraining) and not one.superseded_by for one in merged)
    requests = tuple(one for one in merged if request.changes_membership(one) and not one.superseded_by)
    # Training that ends needs no joiners.
    at = replace(at, requests=requests, offer=None if ends else at.offer)
    view, terms, decision = at.view, at.terms, next_membership(at)
    if ends:
        decision = _without_joiners(decision, preparing=terms.target_size > 0)
    replaced = terms.replaced_peers + _replaced_peers((view, terms), (decision.view, decision.terms))
    # If the peers or their hosts have changed, slots may be free.
    refused = decision.terms.replacement_refused and decision.view.version == view.version
    terms = replace(decision.terms, replaced_peers=replaced, replacement_refused=refused)
    decision = replace(with_requests(decision, merged), terms=terms, slow=_slow_leavers(at, decision.view), held=news)
    decision = _with_size_settings(decision, at, satisfied)
    return replace(decision, terms=adjust(view, decision))


def _with_size_settings(decision: Decision, at: BarrierInput, satisfied: Sequence[request.Asked]) -> Decision:
    """Adds the batch and the rate that come with a size to the settings of the decision by which the job has that size.

    Until then they wait with the size under way; if the change ends with another size, they are dropped.
    """
    terms, size, lead = decision.terms, meant_size(decision.view, decision.terms), next(iter(at.requests), None)
    if lead is not None and isinstance(lead.what, request.Resize):
        # A request for a size replaces the size under way, with its batch and its rate.
        _, target = with_reachable_size(lead.what, at.terms, at.limits)
        waiting = replace(lead, what=structs.replace(lead.what, size=target))
        terms = replace(terms, awaiting_size=waiting if request.settings_with_size(lead) else None)
    # While joiners come for a command, a request for the present size is satisfied, except for its batch and its rate.
    reached = [
        one for one in satisfied if isinstance(one.what, request.Resize) and at.limits.clip(one.what.size) == size
    ]
    if terms.awaiting_size is not None and awaited_size(terms) == size:
        # The job has the requested size.
        reached = [terms.awaiting_size, *reached]
    if not terms.target_size or awaited_size(terms) == size:
        # The change has ended, with this size or another.
        terms = replace(terms, awaiting_size=None)
    settings = (setting for one in reached for setting in request.settings_with_size(one))
    return replace(decision, terms=terms, settings=(*settings, *decision.settings))


def with_requests(decision: Decision, merged: Sequence[request.Asked]) -> Decision:
    """Adds the result of ``merge`` to a decision: requests for the membership, for settings, and superseded ones."""
    chosen = [one for one in merged if not one.superseded_by]
    return replace(
        decision,
        requests=tuple(one for one in chosen if request.changes_membership(one)),
        settings=tuple(one for one in chosen if isinstance(one.what, request.Setting)),
        superseded=tuple(one for one in merged if one.superseded_by),
    )


def with_settings(
    decision: Decision,
    *,
    before: tuple[View, Terms],
    position: RunPosition,
    on_rescale: Callable[[int, int, Terms], Sequence[request.Asked]],
) -> Terms:
    """Returns a decision's terms with its settings applied; if the size changes, settings of ``on_rescale`` come first.

    ``on_rescale`` returns the settings that rules choose for a rescale, given the old and the new size, and the terms
    with the batch that the decision sets."""
    previous, size = meant_size(*before), meant_size(decision.view, decision.terms)
    batches = [one for one in decision.settings if isinstance(one.what, request.SetBatch)]
    terms = apply_settings(decision.terms, batches, position, size=size)
    on_rescale_settings = on_rescale(previous, size, terms) if size != previous else ()
    terms = apply_settings(terms, on_rescale_settings, position, size=size)
    if any(isinstance(one.what, request.SetBatch) for one in on_rescale_settings):
        # The next rescale starts from the same batch as this one, so growing and shrinking back restores the batch.
        batch, peers = before[1].base(previous)
        terms = replace(terms, base_batch=batch, base_size=peers)
    return apply_settings(terms, decision.settings, position, size=size)


def apply_settings(terms: Terms, settings: Sequence[request.Asked], position: RunPosition, *, size: int) -> Terms:
    """The terms with these settings applied; later settings override earlier ones.

    Args:
        settings: Requests for a batch, a learning rate, an averaging interval, a registered value or the end of
            training. A batch has at least one sample per peer and at most the samples of an epoch. A rate starts to
            change at the next step, from its current value.

    >>> position = RunPosition(steps=40, samples=4000, epoch_samples=1000, learning_rate=0.1)
    >>> setting = request.Asked(request.SetBatch(128.4), "rule", 39)
    >>> apply_settings(Terms(64, 16.0), [setting], position, size=4).batch_per_peer
    32.0
    """
    for setting in settings:
        match setting.what:
            case request.SetBatch(samples):
                # A step has at least one sample per peer, and at most the samples of an epoch.
                most = position.epoch_samples or round(samples)
                whole = max(size, min(round(samples), most))
                terms = replace(terms, global_batch_size=whole, batch_per_peer=whole / size, policy_share=0.0)
                terms = replace(terms, base_batch=0, base_size=0)
            case request.SetRate(rate, over, unit):
                # A ramp begins at the current rate, even in the middle of another ramp.
                since = position.steps if unit == "steps" else position.samples
                ramp = Ramp(position.learning_rate, rate / position.schedule, since, over, unit, asked=rate)
                terms = replace(terms, ramp=ramp)
            case request.SetAverageInterval(every):
                terms = replace(terms, average_every=max(1, round(every)))
            case request.SetNumber(name):
                others = (one for one in terms.variables if one.name != name)
                terms = replace(terms, variables=(*others, setting.what))
            case request.StopTraining():
                # Training ends at this barrier.
                terms = replace(terms, stopped=True)
    return terms


def _without_refusals(terms: Terms, requests: Sequence[request.Asked]) -> Terms:
    """Clears outdated refusals: a `Retry` all; a size or `Leave` from outside, only the refusal of replacements."""
    if any(isinstance(one.what, request.Retry) for one in requests):
        return replace(terms, refused_size=0, replacement_refused=False)
    asked = any(one.is_outside and request.changes_membership(one) for one in requests)
    return replace(terms, replacement_refused=False) if asked else terms


def _with_sizes(terms: Terms, requests: Sequence[request.Asked]) -> Terms:
    """Adopts the newest limits of the size, and the hold, that the leading agent has sent with these requests."""
    newest = max((one.sizes for one in requests), key=lambda sizes: sizes.revision, default=terms.sizes)
    if newest.revision <= terms.sizes.revision:
        # The limits are in force, or a later change of the limits is.
        return terms
    # A new hold has stopped no rule so far, and other limits may allow the size that was refused last.
    held_rules = terms.held_rules if newest.hold == terms.sizes.hold else ()
    return replace(terms, sizes=newest, held_rules=held_rules, refused_size=0)


def _within_limits(one: request.Asked, at: BarrierInput) -> request.Asked:
    """The request as the limits and a hold leave it.

    New limits require a resize if the present size, or the size already requested, is outside them. The leading agent,
    which asks for the former size when a host comes, restores at most the size that is held."""
    terms, hold = at.terms, at.terms.sizes.hold
    wanted = terms.target_size - len(terms.departing) if terms.target_size else meant_size(at.view, terms)
    match one.what:
        case request.SetLimits(keep=keep):
            # A rule may have acted before this barrier knew of the hold; the size is not raised, as lost peers may be
            # missing.
            size = at.limits.clip(wanted if hold is None else min(wanted, hold.size))
            return one if size == wanted else replace(one, what=request.Resize(size, keep))
        case request.Resize(size) if one.id == request.AGENT and hold is not None and size > hold.size:
            # If no lost peer is missing, only the slots of the new host are news.
            return replace(one, what=request.Resize(hold.size) if hold.size > wanted else request.Retry())
    return one


def _is_held(one: request.Asked, at: BarrierInput) -> bool:
    """True if a hold stops this request: a rule or a hook requests another size than the one that is held."""
    hold = at.terms.sizes.hold
    if hold is None or one.is_outside:
        return False
    match one.what:
        case request.Resize(size):
            return at.limits.clip(size) != hold.size
        # An exchange of peers keeps the size.
        case request.Leave(when=when):
            return when == "now"
    return False


def _without_joiners(decision: Decision, *, preparing: bool) -> Decision:
    """Removes the pending change of membership from a decision, because training ends: joiners are dismissed."""
    terms = replace(decision.terms, target_size=0, leaving=())
    return replace(decision, terms=terms, prepare=decision.view.size if preparing else None)


def _replaced_peers(before: tuple[View, Terms], after: tuple[View, Terms]) -> int:
    """The number of joining peers that replace others instead of enlarging the job."""
    joined = sum(before[0].rank_of(peer) is None for peer in after[0].ids)
    return joined - min(joined, max(0, meant_size(*after) - meant_size(*before)))


def _slow_leavers(at: BarrierInput, after: View) -> dict[int, float]:
    """The speeds of the slow peers that a shrink removes, by id, in the order of removal."""
    view, terms, speeds = at.view, at.terms, at.speeds
    named = {peer for one in at.requests if isinstance(one.what, request.Leave) for peer in one.what.peers}
    # A peer whose replacement joins leaves for that reason, not because the job shrinks.
    joined = any(view.rank_of(peer) is None for peer in after.ids)
    named |= {*terms.departing, *(terms.leaving if joined else ())}
    return {
        peer: speeds[peer]
        for peer in view.leave_order(speeds)
        if is_slow(peer, speeds) and peer not in named and after.rank_of(peer) is None
    }
