"""The decision of a barrier: a pure function of the view, its terms, the requests and the peers ready to join.

`decide` first merges the requests (see ``core.barrier_requests``), then chooses the next view (see
``core.next_membership``), then the terms with the settings that rules ask for. Real peers and the model of
``kungfu.testing`` hold their barriers with it.

Nothing that can be done at once waits for joiners. The table shows what a request becomes in the next barrier of three
peers, where two more are on their way: they start, they are offered to this barrier, or they are on their way to the
survivors of a loss.

| a rule or hook asks for | nothing under way | joiners start         | joiners offered       | after a loss          |
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

Joiners that come are offered again to the barrier after. A request of a barrier that a loss broke is asked for again in
the next one (`BarrierRequests.after`). One thing waits, for one step: a rule that asks for a size, a batch, a rate or a
call does not look in a step whose barrier may admit joiners or let peers go (the source ``change_due``), where it would
judge by a size that is about to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kungfu.runtime.core.barrier_requests import NO_REQUESTS, BarrierRequests, RescaleRequest, merge
from kungfu.runtime.core.next_membership import (
    Decision,
    Prepared,
    Situation,
    is_under_way,
    next_membership,
    without_joiners,
)
from kungfu.runtime.core.terms import RunPosition, SettingChange, Terms, apply_settings, meant_size
from kungfu.runtime.core.view import NO_SPEEDS, View, is_slow
from kungfu.runtime.settings import Limits

__all__ = ["Adjust", "Decision", "Prepared", "as_decided", "decide", "with_settings"]

# The terms that follow from the view before a barrier and from its decision.
Adjust = Callable[[View, Decision], Terms]


def as_decided(before: View, decision: Decision) -> Terms:
    """The terms that come with the decision, as they are."""
    return decision.terms


def decide(
    view: View,
    terms: Terms,
    limits: Limits,
    *,
    requests: BarrierRequests = NO_REQUESTS,
    prepared: Prepared | None = None,
    adjust: Adjust = as_decided,
    speeds: Mapping[int, float] = NO_SPEEDS,
) -> Decision:
    """What a barrier decides; see the table of this module.

    Args:
        view: The view that holds the barrier.
        terms: Its terms.
        limits: The least and the most peers of the job.
        requests: What the barrier is asked for.
        prepared: The agent's newest offer, if there is one.
        adjust: Makes the terms of what was decided about the membership; see `with_settings`.
        speeds: Of peers by id, as fractions of the median peer's, where they are measured.

    >>> from kungfu.runtime.core.view import Peer
    >>> two = View(1, (Peer(0, "a:1"), Peer(1, "a:2")))
    >>> grow = RescaleRequest(4, "local_batch_size", "gns_batch", 50)
    >>> decide(two, Terms(64, 32.0), Limits(1, 4), requests=BarrierRequests((grow,))).prepare
    4
    """
    terms = _without_refusals(terms, requests)
    news = tuple(one for one in requests.rescale if not is_under_way(one, terms, limits, view))
    merged, stop = merge(news, requests.external), next((one for one in requests.settings if one.kind == "stop"), None)
    if stop is not None:
        # Nobody has to come to training that ends; those who leave now leave.
        merged, prepared = merged.without_joiners(by=stop.rule), None
    outside = requests.external if requests.external in merged.taken else None
    decision = next_membership(Situation(view, terms, limits, merged.taken, outside, prepared, speeds))
    if stop is not None:
        decision = without_joiners(decision, preparing=terms.target_size > 0)
    if decision.view.version != view.version:
        # Other peers, or the same ones elsewhere: slots may be free.
        decision = replace(decision, terms=replace(decision.terms, replacement_refused=False))
    slow = _slow_leavers(view, terms, decision.view, merged.taken, speeds)
    replaced = terms.replaced_peers + _replaced_peers((view, terms), (decision.view, decision.terms))
    decision = replace(decision, terms=replace(decision.terms, replaced_peers=replaced))
    decision = replace(decision, requests=merged.taken, superseded=merged.superseded, slow=slow)
    return replace(decision, terms=adjust(view, decision))


def with_settings(
    decision: Decision,
    *,
    before: tuple[View, Terms],
    position: RunPosition,
    on_rescale: Callable[[int, int], Sequence[SettingChange]],
    settings: Sequence[SettingChange] = (),
) -> Terms:
    """The terms of a decision, with the settings in force that belong to it.

    Args:
        decision: What was decided about the membership.
        before: The view before the barrier and its terms.
        position: How far the job is.
        on_rescale: Gives the settings that rules choose, from the size before and the size after, where these differ.
        settings: Those that were asked for beside them; they take effect after those of the rescale.
    """
    previous, size = meant_size(*before), meant_size(decision.view, decision.terms)
    on_rescale_settings = on_rescale(previous, size) if size != previous else ()
    terms = apply_settings(decision.terms, on_rescale_settings, position, size=size)
    if any(one.kind == "global_batch_size" for one in on_rescale_settings):
        # The next rescale goes by the same batch as this one, so that a growth and a return leave it as it was.
        batch, peers = before[1].base(previous)
        terms = replace(terms, base_batch=batch, base_size=peers)
    return apply_settings(terms, settings, position, size=size)


def _without_refusals(terms: Terms, requests: BarrierRequests) -> Terms:
    """What was refused is forgotten where slots may be free again, and a replacement where somebody outside asks."""
    if requests.free_slots:
        return replace(terms, refused_size=0, replacement_refused=False)
    return replace(terms, replacement_refused=False) if requests.external is not None else terms


def _replaced_peers(before: tuple[View, Terms], after: tuple[View, Terms]) -> int:
    """How many of the peers that join take the places of others, and do not make the job larger."""
    joined = sum(before[0].rank_of(peer) is None for peer in after[0].ids)
    return joined - min(joined, max(0, meant_size(*after) - meant_size(*before)))


def _slow_leavers(
    view: View, terms: Terms, after: View, requests: Sequence[RescaleRequest], speeds: Mapping[int, float]
) -> dict[int, float]:
    """The slow peers that a shrink let go, in the order in which they left, with their speeds."""
    named = {peer for one in requests if one.leave is not None for peer in one.leave.peers}
    # A peer whose replacement joins leaves because of that, and not because the job shrinks.
    joined = any(view.rank_of(peer) is None for peer in after.ids)
    named |= {*terms.departing, *(terms.leaving if joined else ())}
    return {
        peer: speeds[peer]
        for peer in view.leave_order(speeds)
        if is_slow(peer, speeds) and peer not in named and after.rank_of(peer) is None
    }
