"""What tests of the barrier decide with: views, terms and requests in a few words, and a decision of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput, is_under_way
from kungfu.runtime.core.request import Asked, Keep, Leave, Resize, When
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import NO_SPEEDS, Peer, View
from kungfu.runtime.settings import Limits

LIMITS = Limits(1, 6)
Requests = tuple[Asked, ...]


def peers(*ids: int) -> tuple[Peer, ...]:
    return tuple(Peer(id_, f"host:{id_}") for id_ in ids)


def view_of(size: int, *, version: int = 5) -> View:
    return View(version, peers(*range(size)))


def terms_of(size: int, *, per_peer: float = 32.0, target: int = 0, keep: Keep = "local_batch_size") -> Terms:
    return Terms(round(per_peer * size), per_peer, target, 0, keep)


def size_request(size: int, keep: Keep = "local_batch_size", *, most: int | None = None) -> Asked:
    return Asked(Resize(size, keep, max_global_batch=most), "rule", 10)


def leaving(*ids: int, when: When = "now", size: int = 0) -> Asked:
    return Asked(Leave(ids, when, size, "local_batch_size"), "rule", 10)


def decided(
    view: View,
    terms: Terms,
    limits: Limits = LIMITS,
    *,
    asked: Asked | Requests | None = None,
    outside: Asked | None = None,
    offer: JoinerOffer | None = None,
    speeds: Mapping[int, float] = NO_SPEEDS,
) -> Decision:
    """What is decided, without the requests that it follows from, and without the count of replaced peers."""
    requests = () if asked is None else asked if isinstance(asked, tuple) else (asked,)
    given = requests if outside is None else (replace(outside, id="r"), *requests)
    at = BarrierInput(view, terms, limits, given, offer, speeds)
    decision = decide(at)
    news = [one for one in given if not is_under_way(one, at)]
    assert sorted(map(repr, decision.requests)) == sorted(map(repr, news))
    return replace(decision, requests=(), terms=replace(decision.terms, replaced_peers=0))


def admitted(size: int, terms: Terms, request: Asked, *joiners: int) -> Decision:
    """The decision of the second of two barriers: one with a request, and one to which these joiners are offered."""
    requested = decided(view_of(size), terms, asked=request)
    return decided(view_of(size), requested.terms, offer=JoinerOffer(peers(*joiners)))
