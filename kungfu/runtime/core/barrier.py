"""The decision of a barrier: a pure function of the view, its terms, the requests and the peers ready to join.

`decide` first merges the requests (see ``core.barrier_requests``), then chooses the next view, then the terms with the
settings that rules ask for. Real peers and the model of ``kungfu.testing`` hold their barriers with it.

| requested                 | prepared peers | becomes                                                      |
| ------------------------- | -------------- | ------------------------------------------------------------ |
| smaller than the view     | any            | slow peers leave at once, slowest first, then the newest ones |
|                           |                | (`View.leave_order`); those under way are dismissed           |
| larger than the view      | none yet       | the agent prepares peers, the view stays, triggers hold       |
| larger, under way         | all there      | they join; surplus ones are dismissed                         |
| larger, under way         | some missing   | those who are there join; the target is marked as refused     |
| as large as the view      | any            | nothing; those under way are dismissed                        |
| some peers to leave now   | any            | they leave, rank 0 included; more are prepared if it says so  |
| some to be replaced       | none yet       | the agent prepares as many, the view stays                    |
| to be replaced, under way | some or all    | as many leave as have come, but the last one who was there    |
|                           |                | before: it leaves at the next barrier                         |
| a notice to the only peer | any            | the same: another one comes before it leaves                  |
| a size and peers by name  | any            | the named peers go first; a smaller size lets others go, in   |
|                           |                | the same order                                                |

A view always has a member of the view before it, which holds the state: a peer that has just joined holds all of it
only after its first step.

The newest request wins over one that is under way. An offer that does not account for exactly the peers that were
asked for last was made for an older request, and some of its peers may be dismissed by now: the agent is asked for a
new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from kungfu.runtime.core.barrier_requests import (
    NO_REQUESTS,
    BarrierRequests,
    RescaleRequest,
    Superseded,
    When,
    merge,
)
from kungfu.runtime.core.terms import RunPosition, SettingChange, Terms, apply_settings
from kungfu.runtime.core.view import NO_SPEEDS, Peer, View, is_slow
from kungfu.runtime.settings import Limits

__all__ = ["Adjust", "Decision", "Prepared", "as_decided", "decide", "meant_size", "with_settings"]


@dataclass(frozen=True)
class Prepared:
    """What the agent says of the peers that it was told to prepare.

    Args:
        ready: The peers that are ready to join.
        missing: The ids of those that will not come.
        reason: Why they will not.
        parts: Seconds that the parts of the preparation took, by name: ``spawn`` and ``ready``.
    """

    ready: tuple[Peer, ...] = ()
    missing: tuple[int, ...] = ()
    reason: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What a barrier decides.

    Args:
        view: The view after the barrier.
        terms: Its terms.
        prepare: A number of processes for the agent to bring the job to, those included that leave when others have
            come; ``None`` if the agent has nothing to do.
        host: The number of the host on which new processes shall run; ``None`` for any.
        requests: The requests that were carried out together; the first one asks for a size, if one does.
        superseded: The requests that were passed over.
        slow: The peers that left first since they are slow, by id, in that order: their speeds as fractions of the
            median peer's. Those that a request names are not among them.
    """

    view: View
    terms: Terms
    prepare: int | None = None
    host: int | None = None
    requests: tuple[RescaleRequest, ...] = ()
    superseded: tuple[Superseded, ...] = ()
    slow: Mapping[int, float] = field(default_factory=dict)


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

    >>> two = View(1, (Peer(0, "a:1"), Peer(1, "a:2")))
    >>> grow = RescaleRequest(4, "local_batch_size", "gns_batch", 50)
    >>> decide(two, Terms(64, 32.0), Limits(1, 4), requests=BarrierRequests((grow,))).prepare
    4
    """
    merged = merge(requests.rescale, requests.external)
    decision = _next_membership(view, terms, limits, merged.taken, prepared, speeds)
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
    return apply_settings(decision.terms, (*on_rescale_settings, *settings), position, size=size)


def meant_size(view: View, terms: Terms) -> int:
    """How many peers a view is meant to have: a peer that stays only until others hold the state does not count.

    Args:
        view: The view.
        terms: Its terms, which name the peers that stay only so long.

    >>> three = View(2, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> meant_size(three, Terms(departing=(0,)))
    2
    """
    return max(1, view.size - len(set(terms.departing) & set(view.ids)))


# ---- the membership --------------------------------------------------------------------------------------------------


def _next_membership(
    view: View,
    terms: Terms,
    limits: Limits,
    requests: Sequence[RescaleRequest],
    prepared: Prepared | None,
    speeds: Mapping[int, float],
) -> Decision:
    """The next view and its terms, before settings change them; of the requests the first asks for a size, if any."""
    terms = _without_lost_departing(view, terms)
    if terms.departing and len(terms.departing) < view.size:
        # Those who came at the last barrier hold the state by now, so the peers that they replace can leave.
        return _let_departing_leave(view, terms, limits, requests, prepared, speeds)
    if requests:
        # Only departing peers are left: those who were to come for them were lost, and a new request is newer.
        terms = replace(terms, departing=())
    if any(one.leave is not None for one in requests):
        # Peers leave by name, and perhaps a size is requested too.
        return _let_named_leave(view, terms, limits, requests, prepared, speeds)
    terms = replace(terms, leaving=tuple(peer for peer in terms.leaving if view.rank_of(peer) is not None))
    if requests:
        # Only a size is requested: of two sizes one was chosen.
        return _resize(view, terms, limits, requests[0], prepared, speeds)
    if prepared is not None and terms.target_size > 0:
        # The agent offers peers for the change that is under way.
        return _change_size(view, terms, terms.target_size, prepared, asked=_under_way(view, terms), preparing=True)
    # A barrier for something else, a checkpoint say.
    return Decision(view, terms)


def _resize(
    view: View,
    terms: Terms,
    limits: Limits,
    request: RescaleRequest,
    prepared: Prepared | None,
    speeds: Mapping[int, float],
) -> Decision:
    """A size alone is requested: it takes the place of a change that is under way."""
    preparing, asked = terms.target_size > 0, _under_way(view, terms)
    terms = replace(terms, target_size=0, leaving=())
    terms, target = _with_reachable_size(request, terms, limits)
    return _change_size(view, terms, target, prepared, asked=asked, preparing=preparing, speeds=speeds)


def _change_size(
    view: View,
    terms: Terms,
    target: int,
    prepared: Prepared | None,
    *,
    asked: int,
    preparing: bool,
    speeds: Mapping[int, float] = NO_SPEEDS,
) -> Decision:
    """The change to ``target`` peers; ``asked`` are under way, if the agent was ``preparing`` any."""
    if target < view.size:
        # A shrink needs nobody's preparation: peers leave at once, those under way are dismissed.
        shrunk = view.changed(leave=view.leave_order(speeds)[: view.size - target])
        return Decision(*_with_batch_of_size(shrunk, terms), target if preparing else None)
    if target == view.size and not terms.leaving:
        # The view is as large as requested: those under way are dismissed.
        return Decision(view, replace(terms, target_size=0), target if preparing else None)
    coming = target - view.size + len(terms.leaving)
    if prepared is None or not _accounts_for(prepared, asked, view) or coming > asked:
        # Peers have yet to be prepared: for the first time, or more of them, or again after an older offer.
        return Decision(view, replace(terms, target_size=target), target + len(terms.leaving))
    return _admit_offered(view, terms, target, prepared)


def _under_way(view: View, terms: Terms) -> int:
    """How many peers the agent was asked to prepare that are not in the view yet."""
    return terms.target_size - view.size + len(terms.leaving)


def _without_lost_departing(view: View, terms: Terms) -> Terms:
    """A peer that was about to leave and was lost is not replaced once more: its replacement has come."""
    departing = tuple(peer for peer in terms.departing if view.rank_of(peer) is not None)
    if departing == terms.departing:
        # None of them was lost.
        return terms
    target = terms.target_size - (len(terms.departing) - len(departing))
    return replace(terms, departing=departing, target_size=max(view.size, target) if terms.target_size else 0)


def _let_departing_leave(
    view: View,
    terms: Terms,
    limits: Limits,
    requests: Sequence[RescaleRequest],
    prepared: Prepared | None,
    speeds: Mapping[int, float],
) -> Decision:
    """The replaced peers leave; whatever else the barrier is asked for is decided about the rest."""
    gone = len(terms.departing)
    rest = replace(view.changed(leave=terms.departing), version=view.version)
    target = terms.target_size - gone
    terms = replace(terms, departing=(), target_size=target if target > rest.size else 0)
    after = _next_membership(rest, terms, limits, requests, prepared, speeds)
    prepare = None if after.prepare is None else after.prepare + gone
    return replace(after, view=View(view.version + 1, after.view.peers), prepare=prepare)


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


def _admit_offered(view: View, terms: Terms, target: int, prepared: Prepared) -> Decision:
    """The offered peers join, and as many leave as were to leave for them."""
    growth, leaving = target - view.size, terms.leaving
    welcome = prepared.ready[: growth + len(leaving)]
    going = leaving[: max(0, len(welcome) - growth)]
    reached = view.size + len(welcome) - len(going)
    terms = replace(terms, refused_size=target if reached < target else terms.refused_size)
    if not welcome:
        # Nobody came: the change is over, and nothing has changed.
        return Decision(view, replace(terms, target_size=0, leaving=(), departing=()), reached)
    if len(going) == view.size:
        # Nobody who holds the state would stay. The lowest rank does, for it leads, and departs at the next barrier.
        terms, going = replace(terms, departing=going[:1]), going[1:]
    # The agent hears of it when the view trains. Told a size before, it would offer once more those who are joining.
    return Decision(*_with_batch_of_size(view.changed(leave=going, join=welcome), terms))


def _accounts_for(prepared: Prepared, asked: int, view: View) -> bool:
    """Whether an offer is the newest one. One with a member of the view is old: peers were lost since, and others are
    asked for."""
    joined = any(view.rank_of(peer.id) is not None for peer in prepared.ready)
    return not joined and len(prepared.ready) + len(prepared.missing) == asked


# ---- peers by name ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Named:
    """The peers that requests name, in rank order.

    Args:
        now: Those that leave now.
        replaced: Those that leave when others have come.
        kept: How many would leave now, and have to stay for the job's minimum.
        noticed_only: Whether all that leave now are taken away by their platform.
        host: The number of the host on which the replacements shall run.
    """

    now: tuple[int, ...]
    replaced: tuple[int, ...]
    kept: int
    noticed_only: bool
    host: int | None


def _let_named_leave(
    view: View,
    terms: Terms,
    limits: Limits,
    requests: Sequence[RescaleRequest],
    prepared: Prepared | None,
    speeds: Mapping[int, float],
) -> Decision:
    """Peers leave by name; where a size is requested too, the named ones go first.

    A notice cannot be refused, but the last peer of a job stays until another one has come.

    Args:
        view: The view that holds the barrier.
        terms: Its terms.
        limits: The least and the most peers of the job.
        requests: Those that are carried out; the first one asks for a size, if one does.
        prepared: The agent's newest offer, if there is one.
        speeds: Of peers by id, where they are measured.
    """
    lead, named, preparing = requests[0], _named(view, terms, limits, requests), terms.target_size > 0
    if lead.leave is None:
        # A size is requested too.
        terms, wanted = _with_reachable_size(lead, terms, limits)
    else:
        # How many there shall be follows from who leaves.
        wanted = _size_after_named_leave(view, terms, limits, lead, named)
        refused = view.size - len(named.now) - named.kept if named.kept else 0
        terms = terms if named.noticed_only else replace(terms, refused_size=refused)
        if not named.now and not named.replaced:
            # Nobody of them is in the view, or all have to stay: whatever is under way goes on.
            return _next_membership(view, terms, limits, (), prepared, speeds)
    staying = [peer for peer in view.ids if peer not in named.now]
    # A smaller size lets the named peers go first, then slow ones, then the newest.
    others = (peer for peer in view.leave_order(speeds) if peer not in (*named.now, *named.replaced))
    order = [*named.replaced, *others]
    gone = (*named.now, *order[: max(0, len(staying) - wanted)])
    leaving = tuple(peer for peer in named.replaced if peer not in gone)
    shrunk = view.changed(leave=gone) if gone else view
    pending = wanted > shrunk.size or bool(leaving)
    if gone:
        # Some leave at this barrier.
        stays = named.noticed_only and (pending or lead.leave is not None)
        shrunk, terms = _after_leaving(shrunk, terms, lead, batch_stays=stays)
    terms = replace(terms, target_size=wanted if pending else 0, leaving=leaving)
    processes = wanted + len(leaving) + len(gone)  # the agent still counts those who leave
    return Decision(shrunk, terms, processes if pending or preparing else None, host=named.host)


def _named(view: View, terms: Terms, limits: Limits, requests: Sequence[RescaleRequest]) -> _Named:
    """The peers that requests name; one that is to leave now is not replaced."""
    lead, leaves = requests[0], [one.leave for one in requests if one.leave is not None]
    of = {when: {peer for one in leaves if one.when == when for peer in one.peers} for when in get_args(When)}
    given_notice = [peer for peer in view.ids if peer in of["noticed"]]
    noticed = given_notice[: view.size - 1]
    evicted = [peer for peer in view.ids if peer in of["now"] and peer not in noticed]
    free = evicted[: max(0, view.size - len(noticed) - limits.minimum)]
    now = tuple(peer for peer in view.ids if peer in noticed or peer in free)
    others = of["replaced"] - {*now}
    if given_notice and not noticed and lead.size > 0:
        # The only peer of the job is given notice: it leaves when another one has come.
        others |= {*given_notice}
    if lead.leave is None:
        # The size says how many there shall be: a peer that cannot leave now leaves for one that comes.
        others |= {*evicted} - {*now}
    elif noticed and not others:
        # A peer that is taken away changes nothing about the replacements that are under way.
        others = set(terms.leaving) - {*now}
    host = next((one.host for one in leaves if one.host is not None), None)
    replaced = tuple(peer for peer in view.ids if peer in others)
    return _Named(now, replaced, len(evicted) - len(free), bool(noticed) and not evicted, host)


def _size_after_named_leave(view: View, terms: Terms, limits: Limits, lead: RescaleRequest, named: _Named) -> int:
    """The size that the job shall have after requests that name peers and ask for no size."""
    staying = view.size - len(named.now)
    if named.now and named.noticed_only:
        # A notice says how many the job shall have with those under way.
        under_exchange = sum(view.rank_of(peer) is not None for peer in terms.leaving)
        return max(staying, limits.clip(lead.size - under_exchange))
    if named.now or not named.replaced:
        # Evicted peers leave a smaller job.
        return staying
    # As many as now, and those who come for peers that were lost since it was asked for.
    return max(staying, min(lead.size, terms.target_size))


def _after_leaving(view: View, terms: Terms, lead: RescaleRequest, *, batch_stays: bool) -> tuple[View, Terms]:
    if batch_stays:
        # A peer that is taken away does not change what is trained: the batch stays until others have come.
        return view, replace(terms, target_size=0, leaving=())
    return _with_batch_of_size(view, replace(terms, keep=lead.keep))


# ---- sizes and batches -----------------------------------------------------------------------------------------------


def _with_reachable_size(request: RescaleRequest, terms: Terms, limits: Limits) -> tuple[Terms, int]:
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


def _with_batch_of_size(view: View, terms: Terms) -> tuple[View, Terms]:
    """The terms of a view that has just changed its size: the change is done, and the batch follows."""
    terms, size = replace(terms, target_size=0, leaving=()), meant_size(view, terms)
    if terms.keep == "global_batch_size":
        # Each peer has another share of the same batch.
        return view, replace(terms, batch_per_peer=terms.global_batch_size / size)
    samples = round(terms.batch_per_peer * size)
    if terms.max_global_batch:
        # Beyond the limit the global batch stays; each peer's share is remembered as it is meant, for a smaller size.
        samples = min(samples, max(_largest_batch(terms), size))
    return view, replace(terms, global_batch_size=samples)
