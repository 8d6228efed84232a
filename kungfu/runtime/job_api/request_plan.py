"""Previews a request: the job's decisions about it, made on a copy of the job's state.

The request log, the barrier's decision, the agent's choice of hosts and the admission of joiners are pure functions:
a plan runs them one after the other, and carries out none of their decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from kungfu.runtime.core.barrier import BarrierInput, Decision, JoinerOffer, decide
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.core.cluster.joiners import on_decision
from kungfu.runtime.core.cluster.placement import NO_SLOT
from kungfu.runtime.core.request import Asked, Keep, Resize, in_words
from kungfu.runtime.core.requests.admission import AdmissionContext, refusal_of
from kungfu.runtime.core.requests.request_log import RequestLog, first_answer, react, refusal_of_id
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View

# The maximum number of barriers for a request: one decides, one admits joiners, one lets departing peers leave.
_BARRIERS = 3
# The maximum number of sizes examined, for jobs that allow thousands of peers.
_MOST_SIZES = 1024


@dataclass(frozen=True)
class PlannedPeer:
    """A peer that would join or leave, with its host."""

    id: int
    host: str


@dataclass(frozen=True)
class RefusedSizes:
    """A range of sizes that the job cannot have, from ``first`` to ``last`` (``None``: unlimited), with the reason."""

    first: int
    last: int | None
    reason: str


@dataclass(frozen=True)
class RequestPlan:
    """The effects of a request.

    Args:
        words: The request as a person would type it.
        refusal: The reason why the request would be refused; empty if it would be accepted.
        view: The version of the view in force.
        before: The number of peers now.
        after: The number of peers once the request is carried out.
        joins: The peers that would join, with their hosts, including joiners already on their way.
        leaves: The peers that would leave, in rank order.
        missing: The number of additional peers for which no host has a free slot.
        batch_before: Samples per step now; ``None`` before steps were measured.
        batch_after: Samples per step afterwards, if no rule sets another batch.
        refused_sizes: The sizes that the job cannot have now.
        held_at: The size at which the job is held once the request is accepted; ``None`` without a hold.
        held_for_s: Seconds until the end of this hold; ``None`` for a hold until it is released.
    """

    words: str
    refusal: str
    view: int
    before: int
    after: int
    joins: tuple[PlannedPeer, ...] = ()
    leaves: tuple[PlannedPeer, ...] = ()
    missing: int = 0
    batch_before: int | None = None
    batch_after: int | None = None
    refused_sizes: tuple[RefusedSizes, ...] = ()
    held_at: int | None = None
    held_for_s: float | None = None


def plan_request(
    request: Asked,
    *,
    log: RequestLog,
    context: AdmissionContext,
    cluster: Cluster,
    hosts: Mapping[int, str],
    speeds: Mapping[int, float],
    now: float,
) -> RequestPlan:
    """Previews the effects of a request.

    Args:
        speeds: The speeds of peers by id, as fractions of the median peer's speed, if known.
    """
    before = view = context.view or View(0, ())
    keep: Keep = getattr(request.what, "keep", "global_batch_size")
    after_log, externals = react(log, request, context, now)
    limited = replace(context, limits=after_log.sizes.within(context.limits))
    hold = after_log.hold
    plan = RequestPlan(
        in_words(request.what), "", before.version, before.size, before.size, batch_before=context.batch,
        batch_after=context.batch, refused_sizes=tuple(_refused_sizes(keep, limited)),
        held_at=None if hold is None else hold.size, held_for_s=None if hold is None else hold.seconds_left(now),
    )  # fmt: skip
    answer = first_answer(after_log, request)
    refusal = refusal_of_id(log, request) or (answer.reason if answer and answer.state == "refused" else "")
    if refusal or not externals:
        return replace(plan, refusal=refusal)
    # Barriers carry out the request; joiners start between them.
    terms, missing = _batch_terms(cluster.terms, context.batch or 0, size=before.size), 0
    requests = tuple(replace(one, sizes=after_log.sizes) for one in externals[:1])
    offer = None
    for _ in range(_BARRIERS):
        decision = decide(BarrierInput(view, terms, context.limits, requests=requests, offer=offer, speeds=speeds))
        view, terms, requests, offer = decision.view, decision.terms, (), None
        if decision.prepare is not None:
            cluster, offer = _offer(replace(cluster, view=view), decision, now)
            missing += len(offer.missing)
        # All peers are present, and no peer is about to leave.
        elif not terms.departing:
            break
    return replace(
        plan,
        after=view.size,
        joins=_planned([peer for peer in view.ids if before.rank_of(peer) is None], cluster, hosts),
        leaves=_planned([peer for peer in before.ids if view.rank_of(peer) is None], cluster, hosts),
        missing=missing,
        batch_after=None if context.batch is None else terms.global_batch_size,
    )


def _batch_terms(began: Terms, batch: int, *, size: int) -> Terms:
    """The terms of the batch in force, by those with which the view began and the measured batch."""
    # If a limit has capped the batch, the intended share of each peer is larger. If a rule has set another batch since
    # then, all peers share that batch.
    share = began.batch_per_peer if batch == began.global_batch_size else batch / size
    return Terms(batch, share, max_global_batch=began.max_global_batch)


def _offer(cluster: Cluster, decision: Decision, now: float) -> tuple[Cluster, JoinerOffer]:
    """Returns the cluster after a decision, and the agent's offer of joiners once all starting peers are ready."""
    after, commands = on_decision(cluster, decision, now)
    # Joiners without a slot are still to be offered as missing, or were offered if no other joiner is on its way.
    offered = [one.missing for one in commands if isinstance(one, JoinerOffer)]
    lacking = len(after.missing) + len(after.hosts.queue) + sum(map(len, offered))
    ready = tuple(Peer(peer, "") for peer in sorted(after.starting))
    return after, JoinerOffer(ready, tuple(range(-lacking, 0)), NO_SLOT if lacking else "")


def _planned(peers: list[int], cluster: Cluster, hosts: Mapping[int, str]) -> tuple[PlannedPeer, ...]:
    return tuple(PlannedPeer(peer, hosts.get(cluster.hosts.of.get(peer, 0), "")) for peer in peers)


def _refused_sizes(keep: Keep, context: AdmissionContext) -> Iterator[RefusedSizes]:
    """Yields the ranges of sizes that the job cannot have."""
    if context.view is None:
        return
    room = context.view.size + sum(context.free.values())
    last = min(context.limits.maximum + 1, _MOST_SIZES)
    whys = {
        size: refusal_of(Asked(Resize(size, keep)), context) or (NO_SLOT if size > room else "")
        for size in range(1, last + 1)
    }
    # A refusal names its size: the first reason represents its whole range; sizes without slots form one range.
    for (is_refused, _), run in groupby(whys, key=lambda size: (bool(whys[size]), whys[size] == NO_SLOT)):
        first, *others = run
        end = others[-1] if others else first
        if is_refused:
            yield RefusedSizes(first, None if end == last else end, whys[first])
