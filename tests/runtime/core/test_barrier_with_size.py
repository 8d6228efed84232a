"""A batch and a rate that are requested with a size: they come into force with its peers, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide, with_settings
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Keep, Resize, SetBatch, SetRate
from kungfu.runtime.core.size_limits import Hold, SizeLimits
from kungfu.runtime.core.terms import Ramp, RunPosition, Terms, awaited_size
from kungfu.runtime.core.view import View
from tests.runtime.core.deciding import LIMITS, leaving, peers, size_request, terms_of, view_of

AT = RunPosition(steps=40, samples=4000, epoch_samples=1000, learning_rate=0.1)
RAMP = Ramp(0.1, 0.4, since=40, over=10.0, asked=0.4)


def decision_for(
    size: int, batch: float | None = 256, rate: float | None = 0.4, keep: Keep = "local_batch_size"
) -> Asked:
    """One decision about a size, a batch and a rate."""
    samples = None if batch is None else SetBatch(batch)
    return Asked(Resize(size, keep, 0, None, samples, None if rate is None else SetRate(rate, 10.0)), "grow", 39)


def at_barrier(
    view: View,
    terms: Terms,
    *asked: Asked,
    offer: JoinerOffer | None = None,
    on_rescale: Sequence[Asked] = (),
    seen: list[int] | None = None,
    position: RunPosition = AT,
) -> Decision:
    """The decision of a barrier with its settings; ``seen`` gets the batch that rules on a rescale read."""

    def settings(previous: int, size: int, decided: Terms) -> Sequence[Asked]:
        if seen is not None:
            seen.append(decided.global_batch_size)
        return on_rescale

    def adjust(before: View, decision: Decision) -> Terms:
        return with_settings(decision, before=(before, terms), position=position, on_rescale=settings)

    return decide(BarrierInput(view, terms, LIMITS, asked, offer), adjust=adjust)


def waiting_for_5() -> Terms:
    """The terms of three peers with 96 samples a step, while two joiners are under way with a batch and a rate."""
    return at_barrier(view_of(3), terms_of(3), decision_for(5)).terms


def test_a_growth_brings_its_batch_and_its_rate_when_its_peers_join() -> None:
    terms, seen = waiting_for_5(), list[int]()
    assert (terms.global_batch_size, terms.ramp, terms.target_size) == (96, None, 5)
    assert awaited_size(terms) == 5
    checked = at_barrier(view_of(3), terms)
    assert checked.terms == terms, "another barrier in between changes nothing"
    joined = at_barrier(view_of(3), terms, offer=JoinerOffer(peers(7, 8)), seen=seen)
    assert (joined.view.size, joined.terms.global_batch_size, joined.terms.batch_per_peer) == (5, 256, 51.2)
    assert (joined.terms.ramp, joined.terms.awaiting_size) == (RAMP, None)
    assert [(one.what, one.by, one.step) for one in joined.settings] == [
        (SetBatch(256), "grow", 39), (SetRate(0.4, 10.0), "grow", 39)
    ]  # fmt: skip
    assert seen == [256], "rules on a rescale see the batch that comes with it"
    assert at_barrier(joined.view, joined.terms).terms == joined.terms, "it is set once"


@pytest.mark.parametrize(
    ("offer", "size", "batch"),
    [(JoinerOffer(peers(7), missing=(8,)), 4, 128), (JoinerOffer((), missing=(7, 8)), 3, 96)],
)
def test_with_fewer_peers_neither_the_batch_nor_the_rate_comes(offer: JoinerOffer, size: int, batch: int) -> None:
    after = at_barrier(view_of(3), waiting_for_5(), offer=offer)
    assert (after.view.size, after.terms.global_batch_size, after.terms.ramp) == (size, batch, None)
    assert (after.terms.awaiting_size, after.settings, after.terms.refused_size) == (None, (), 5)


def test_a_kept_global_batch_has_a_sample_for_each_of_the_peers_that_came() -> None:
    asked = at_barrier(view_of(3), Terms(3, 1.0), decision_for(6, 60, keep="global_batch_size"))
    assert asked.terms.target_size == 6, "the batch that comes with the peers is large enough for them"
    after = at_barrier(view_of(3), asked.terms, offer=JoinerOffer(peers(7, 8), missing=(9,)))
    assert (after.view.size, after.terms.global_batch_size) == (5, 5)


@pytest.mark.parametrize("size", [1, 3])
def test_a_size_that_needs_no_joiner_brings_them_at_once(size: int) -> None:
    after = at_barrier(view_of(3), terms_of(3), decision_for(size, 60))
    assert (after.view.size, after.terms.global_batch_size, after.terms.ramp) == (size, 60, RAMP)
    assert after.terms.awaiting_size is None


def test_a_size_is_clipped_and_what_comes_with_it_comes_with_what_can_be_had() -> None:
    asked = at_barrier(view_of(3), terms_of(3), decision_for(50))
    assert (asked.terms.target_size, awaited_size(asked.terms)) == (6, 6)
    joined = at_barrier(view_of(3), asked.terms, offer=JoinerOffer(peers(7, 8, 9)))
    assert (joined.view.size, joined.terms.global_batch_size) == (6, 256)


def test_a_batch_is_at_least_a_sample_for_each_peer_and_at_most_an_epoch() -> None:
    for asked, had in ((2, 3), (5000, 1000)):
        assert at_barrier(view_of(3), terms_of(3), decision_for(3, asked)).terms.global_batch_size == had


@pytest.mark.parametrize("newer", [size_request(4), replace(size_request(5), id="person"), size_request(3)])
def test_a_newer_size_replaces_the_pending_one_with_its_batch_and_its_rate(newer: Asked) -> None:
    after = at_barrier(view_of(3), waiting_for_5(), newer)
    assert (after.terms.awaiting_size, after.settings, after.terms.global_batch_size) == (None, (), 96)


def test_the_pending_size_with_another_batch_is_a_newer_decision() -> None:
    again = at_barrier(view_of(3), waiting_for_5(), decision_for(5))
    assert (again.requests, again.terms) == ((), waiting_for_5()), "the pending decision itself changes nothing"
    other = at_barrier(view_of(3), waiting_for_5(), decision_for(5, 320))
    assert other.requests == (decision_for(5, 320),)
    joined = at_barrier(view_of(3), other.terms, offer=JoinerOffer(peers(7, 8)))
    assert joined.terms.global_batch_size == 320


def test_a_present_size_while_a_command_grows_the_job_sets_its_batch() -> None:
    command = replace(size_request(5, "global_batch_size"), id="person")
    growing = at_barrier(view_of(3), terms_of(3), command).terms
    after = at_barrier(view_of(3), growing, decision_for(3, 60))
    assert (after.terms.target_size, after.terms.global_batch_size, after.terms.ramp) == (5, 60, RAMP)


def test_a_peer_that_is_evicted_meanwhile_leaves_another_size() -> None:
    evicted = at_barrier(view_of(3), waiting_for_5(), leaving(1))
    assert (evicted.terms.target_size, awaited_size(evicted.terms)) == (4, 5)
    joined = at_barrier(evicted.view, evicted.terms, offer=JoinerOffer(peers(7, 8)))
    assert (joined.view.size, joined.terms.global_batch_size, joined.terms.ramp) == (4, 128, None)
    assert (joined.settings, joined.terms.awaiting_size) == ((), None)


def test_an_exchange_of_peers_beside_the_growth_leaves_the_decision_as_it_is() -> None:
    both = at_barrier(view_of(3), waiting_for_5(), leaving(0, when="replaced"))
    joined = at_barrier(view_of(3), both.terms, offer=JoinerOffer(peers(7, 8, 9)))
    assert (joined.view.size, joined.terms.global_batch_size, joined.terms.ramp) == (5, 256, RAMP)


def test_a_hold_stops_the_decision_as_a_whole_but_not_that_about_the_held_size() -> None:
    held = replace(terms_of(3), sizes=SizeLimits(hold=Hold(3), revision=1))
    after = at_barrier(view_of(3), held, decision_for(5))
    assert ([one.by for one in after.held], after.settings, after.terms.target_size) == (["grow"], (), 0)
    assert at_barrier(view_of(3), held, decision_for(3)).terms.global_batch_size == 256


def test_rules_on_a_rescale_choose_before_the_decision_itself() -> None:
    scaled = Asked(SetRate(0.2), "linear", 40)
    joined = at_barrier(view_of(3), waiting_for_5(), offer=JoinerOffer(peers(7, 8)), on_rescale=[scaled])
    assert joined.terms.ramp == RAMP
    alone = at_barrier(view_of(3), terms_of(3), decision_for(2, 60, None), on_rescale=[scaled])
    assert (alone.terms.global_batch_size, alone.terms.ramp) == (60, Ramp(0.1, 0.2, since=40, over=0.0, asked=0.2))


def test_a_rate_under_a_schedule_is_the_one_that_was_asked_for() -> None:
    position = replace(AT, schedule=0.5, learning_rate=1.0)
    after = at_barrier(view_of(3), terms_of(3), decision_for(3, None), position=position)
    assert after.terms.ramp == Ramp(1.0, 0.8, since=40, over=10.0, asked=0.4)


@given(st.lists(st.tuples(st.sampled_from(["decide", "resize", "command", "evict", "offer"]), st.integers(1, 6))))
def test_a_batch_comes_into_force_with_its_size_and_with_no_other(history: list[tuple[str, int]]) -> None:
    """Whatever comes before the peers: the batch for n peers is 100 n, which nothing else sets."""
    view, terms, newest = view_of(3), terms_of(3), 3
    for kind, number in history:
        coming = terms.target_size - view.size if terms.target_size else 0
        ids = range(newest + 1, newest + 1 + coming)
        asked = {
            "decide": [decision_for(number, 100 * number)],
            "resize": [size_request(number)],
            "command": [replace(size_request(number), id="person")],
            "evict": [leaving(view.ids[number % view.size])],
            "offer": [],
        }[kind]
        offer = JoinerOffer(peers(*ids[:number]), missing=tuple(ids[number:])) if kind == "offer" and coming else None
        after = at_barrier(view, terms, *asked, offer=offer)
        newest = max([newest, *ids])
        for one in after.settings:
            if isinstance(one.what, SetBatch):
                assert one.what.samples == 100 * after.view.size == after.terms.global_batch_size
        if awaited := awaited_size(after.terms):
            assert after.terms.target_size > after.view.size
            assert awaited > after.view.size
        view, terms = after.view, after.terms
