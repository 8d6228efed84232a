"""The decision of a barrier: a pure function of the view, its terms, the requests and the peers ready to join.

`decide` first merges the requests (see ``core.request``), then chooses the next view (see
``core.next_membership``), then the terms with the settings that rules request. Real peers and the model of
``kungfu.testing`` hold their barriers with it.

Nothing that can be done at once waits for joiners. The table shows what a request becomes in the next barrier of three
peers, where two more are on their way: they start, they are offered to this barrier, or they are on their way to the
survivors of a loss.

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

Joiners that come are offered again to the barrier after. A request of a barrier that a loss broke is requested again in
the next one (`kungfu.training.loop.barrier`). One thing waits, for one step: a rule that requests a size, a batch, a
rate or a call does not look in a step whose barrier may admit joiners or let peers go (the source ``change_due``),
where it would judge by a size that is about to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kungfu.runtime.core.next_membership import (
    BarrierInput,
    Decision,
    JoinerOffer,
    is_under_way,
    next_membership,
    without_joiners,
)
from kungfu.runtime.core.request import (
    Asked,
    Leave,
    Retry,
    SetBatch,
    SetRate,
    Setting,
    StopTraining,
    changes_membership,
    merge,
)
from kungfu.runtime.core.terms import Ramp, RunPosition, Terms, meant_size
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
    """A recovery: how the others were lost, by id, how this peer noticed, and the rank whose state all continue
    with."""

    lost: Mapping[int, str]
    error: str
    source: int  # rank in the new view


@dataclass(frozen=True)
class BarrierResult:
    """The result of a barrier, or of the entry into a view, on one peer.

    Args:
        before: The decision that was in force before; ``None`` for a joiner.
        after: The one in force now. What the coordinator passed over, and whom it let go as slow, it alone knows.
        peer: The id of the peer.
        offer: The agent's offer that the coordinator decided with; known to the coordinator only.
        parts: Seconds that the parts took, by name.
        recovery: The recovery of this peer, if others were lost.
        sources: The ranks of the view after it that held the state when that view began.
    """

    before: Decision | None
    after: Decision
    peer: int
    offer: JoinerOffer | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    recovery: LossRecovery | None = None
    sources: tuple[int, ...] = ()

    @property
    def rank(self) -> int | None:
        """The rank of the peer now; ``None`` if the view let it go."""
        return self.after.view.rank_of(self.peer)


# The terms that follow from the view before a barrier and from its decision.
Adjust = Callable[[View, Decision], Terms]


def as_decided(before: View, decision: Decision) -> Terms:
    """The terms that come with the decision, as they are."""
    return decision.terms


def decide(at: BarrierInput, *, adjust: Adjust = as_decided) -> Decision:
    """The decision of a barrier; see the table of this module.

    Args:
        at: The view that holds the barrier, and what it decides from.
        adjust: Makes the terms of what was decided about the membership; see `with_settings`.

    >>> from kungfu.runtime.core.request import Resize
    >>> from kungfu.runtime.core.view import Peer
    >>> from kungfu.runtime.settings import Limits
    >>> two = View(1, (Peer(0, "a:1"), Peer(1, "a:2")))
    >>> grow = Asked(Resize(4, "local_batch_size"), "gns_batch", 50)
    >>> decide(BarrierInput(two, Terms(64, 32.0), Limits(1, 4), requests=[grow])).prepare
    4
    """
    at = replace(at, terms=_without_refusals(at.terms, at.requests))
    merged = merge(one for one in at.requests if not is_under_way(one, at))
    ends = any(isinstance(one.what, StopTraining) and not one.superseded_by for one in merged)
    requests = tuple(one for one in merged if changes_membership(one) and not one.superseded_by)
    # Nobody has to come to training that ends.
    at = replace(at, requests=requests, offer=None if ends else at.offer)
    view, terms, decision = at.view, at.terms, next_membership(at)
    if ends:
        decision = without_joiners(decision, preparing=terms.target_size > 0)
    if decision.view.version != view.version:
        # Other peers, or the same ones elsewhere: slots may be free.
        decision = replace(decision, terms=replace(decision.terms, replacement_refused=False))
    replaced = terms.replaced_peers + _replaced_peers((view, terms), (decision.view, decision.terms))
    decision = replace(decision, terms=replace(decision.terms, replaced_peers=replaced))
    decision = replace(with_requests(decision, merged), slow=_slow_leavers(at, decision.view))
    return replace(decision, terms=adjust(view, decision))


def with_requests(decision: Decision, merged: Sequence[Asked]) -> Decision:
    """A decision with the requests that it carries out, as ``merge`` gave them, and those that it passes over."""
    taken = [one for one in merged if not one.superseded_by]
    return replace(
        decision,
        requests=tuple(one for one in taken if changes_membership(one)),
        settings=tuple(one for one in taken if isinstance(one.what, Setting)),
        superseded=tuple(one for one in merged if one.superseded_by),
    )


def with_settings(
    decision: Decision,
    *,
    before: tuple[View, Terms],
    position: RunPosition,
    on_rescale: Callable[[int, int], Sequence[Asked]],
) -> Terms:
    """The terms of a decision, with the settings in force that belong to it.

    Args:
        decision: The decision; its settings take effect after those of the rescale.
        before: The view before the barrier and its terms.
        position: The position of the job.
        on_rescale: Gives the settings that rules choose, from the size before and the size after, where these differ.
    """
    previous, size = meant_size(*before), meant_size(decision.view, decision.terms)
    on_rescale_settings = on_rescale(previous, size) if size != previous else ()
    terms = apply_settings(decision.terms, on_rescale_settings, position, size=size)
    if any(isinstance(one.what, SetBatch) for one in on_rescale_settings):
        # The next rescale goes by the same batch as this one, so that a growth and a return leave it as it was.
        batch, peers = before[1].base(previous)
        terms = replace(terms, base_batch=batch, base_size=peers)
    return apply_settings(terms, decision.settings, position, size=size)


def apply_settings(terms: Terms, settings: Sequence[Asked], position: RunPosition, *, size: int) -> Terms:
    """The terms with these settings in force, the later ones over the earlier.

    Args:
        terms: The terms without the settings.
        settings: A batch is held between one sample per peer and the samples of an epoch. A learning rate begins to
            move at the next step, from where it is.
        position: The position of the job.
        size: Peers.

    >>> position = RunPosition(steps=40, samples=4000, epoch_samples=1000, learning_rate=0.1)
    >>> apply_settings(Terms(64, 16.0), [Asked(SetBatch(128.4), "rule", 39)], position, size=4).batch_per_peer
    32.0
    """
    for setting in settings:
        match setting.what:
            case SetBatch(samples):
                # A step takes at least a sample per peer, and at most an epoch.
                most = position.epoch_samples or round(samples)
                whole = max(size, min(round(samples), most))
                terms = replace(terms, global_batch_size=whole, batch_per_peer=whole / size, policy_share=0.0)
                terms = replace(terms, base_batch=0, base_size=0)
            case SetRate(rate, over, unit):
                # A ramp begins at the rate that is in force, also within another ramp.
                since = position.steps if unit == "steps" else position.samples
                terms = replace(terms, ramp=Ramp(position.learning_rate, rate, since, over, unit))
            case StopTraining():
                # Training ends at this barrier.
                terms = replace(terms, stopped=True)
    return terms


def _without_refusals(terms: Terms, requests: Sequence[Asked]) -> Terms:
    """The terms without outdated refusals: all once slots may be free again, replacements on a request from outside."""
    if any(isinstance(one.what, Retry) for one in requests):
        return replace(terms, refused_size=0, replacement_refused=False)
    asked = any(one.is_outside and changes_membership(one) for one in requests)
    return replace(terms, replacement_refused=False) if asked else terms


def _replaced_peers(before: tuple[View, Terms], after: tuple[View, Terms]) -> int:
    """The number of joining peers that replace others, and do not make the job larger."""
    joined = sum(before[0].rank_of(peer) is None for peer in after[0].ids)
    return joined - min(joined, max(0, meant_size(*after) - meant_size(*before)))


def _slow_leavers(at: BarrierInput, after: View) -> dict[int, float]:
    """The slow peers that a shrink let go, in the order in which they left, with their speeds."""
    view, terms, speeds = at.view, at.terms, at.speeds
    named = {peer for one in at.requests if isinstance(one.what, Leave) for peer in one.what.peers}
    # A peer whose replacement joins leaves because of that, and not because the job shrinks.
    joined = any(view.rank_of(peer) is None for peer in after.ids)
    named |= {*terms.departing, *(terms.leaving if joined else ())}
    return {
        peer: speeds[peer]
        for peer in view.leave_order(speeds)
        if is_slow(peer, speeds) and peer not in named and after.rank_of(peer) is None
    }
