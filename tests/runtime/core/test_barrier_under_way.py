"""Requests against what is under way: the table of ``core.barrier`` cell by cell, and exchanges beside a size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kungfu.runtime.core import barrier
from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Retry, SaveCheckpoint, SetBatch, StopTraining
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.settings import Limits
from tests.runtime.core.deciding import LIMITS, decided, leaving, peers, size_request, terms_of, view_of

REQUESTS: dict[str, tuple[Asked, ...]] = {
    "nothing": (),
    "the end of training": (Asked(StopTraining(), "stop_on_nan", 9),),
    "a checkpoint": (Asked(SaveCheckpoint(), "checkpoint", 9),),
    "another batch": (Asked(SetBatch(64.0), "batch", 9),),
    "the size under way: 5": (size_request(5),),
    "the present size: 3": (size_request(3),),
    "a smaller size: 2": (size_request(2),),
    "a size between: 4": (size_request(4),),
    "a larger size: 6": (size_request(6),),
    "a peer to evict": (leaving(1),),
    "a peer to replace": (leaving(1, when="replaced"),),
}
# The terms and the offer of each column. After a loss the batch is that of the peers before it.
UNDER_WAY = {
    "nothing under way": (terms_of(3), None),
    "joiners start": (terms_of(3, target=5), None),
    "joiners offered": (terms_of(3, target=5), JoinerOffer(peers(7, 8))),
    "after a loss": (Terms(128, 32.0, target_size=5), None),
}


def table() -> Iterator[tuple[str, str, str]]:
    """The cells of the table: request, what is under way, and what the request becomes."""
    head: list[str] = []
    rows: list[list[str]] = []
    for line in (barrier.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if cells and not head:
            head = cells[1:]
        elif cells and cells[0]:
            rows.append(cells)
        elif cells:
            rows[-1] = [f"{cell} {more}".strip() for cell, more in zip(rows[-1], cells, strict=True)]
    return (
        (row[0], column, cell)
        for row in rows
        if "---" not in row[0]
        for column, cell in zip(head, row[1:], strict=True)
    )


def coming(size: int, terms: Terms) -> int:
    return terms.target_size - size + len(terms.leaving) if terms.target_size else 0


def in_words(asked: tuple[Asked, ...], before: Terms, decision: Decision) -> str:
    """What became of a request in a view of three, in the words of the table."""
    view, after = view_of(3), decision.view
    left, joined = set(view.ids) - set(after.ids), set(after.ids) - set(view.ids)
    still = coming(after.size, decision.terms)
    surplus = coming(3, before) - len(joined) - still
    if decision.prepare is not None:
        # The agent counts those who leave; where nobody comes, any number up to the members dismisses all.
        assert decision.prepare == 3 + still or (not still and decision.prepare <= 3)
    elif not joined:
        assert surplus == 0, "the agent has to be told whom to start or to dismiss"
    parts = {
        "ends": any(isinstance(one.what, StopTraining) for one in decision.settings),
        "set": any(isinstance(one.what, SetBatch) for one in decision.settings),
        "written": any(isinstance(one.what, SaveCheckpoint) for one in asked),
        "peers leave": bool(left),
        "joiners join": bool(joined),
        "joiners come": bool(still) and still > max(0, -surplus),
        "joiners dismissed": surplus > 0,
        "joiners start": surplus < 0,
    }
    return ", ".join(words for words, holds in parts.items() if holds) or "nothing"


CELLS = [*table()]


@pytest.mark.parametrize(("asked", "under_way", "becomes"), CELLS, ids=[f"{row}, {column}" for row, column, _ in CELLS])
def test_each_request_becomes_what_the_table_says(asked: str, under_way: str, becomes: str) -> None:
    terms, offer = UNDER_WAY[under_way]
    requests = REQUESTS[asked]
    decision = decide(BarrierInput(view_of(3), terms, LIMITS, requests=requests, offer=offer))
    assert in_words(requests, terms, decision) == becomes


def test_the_table_has_every_request_and_everything_that_may_be_under_way() -> None:
    assert {(row, column) for row, column, _ in CELLS} == {(row, column) for row in REQUESTS for column in UNDER_WAY}


def test_joiners_of_an_evicted_peer_s_job_come_on_the_terms_of_their_growth() -> None:
    terms = replace(terms_of(3, target=5), keep="global_batch_size")
    evicted = decided(view_of(3), terms, asked=leaving(1))
    assert (evicted.view.ids, evicted.terms.global_batch_size, evicted.terms.target_size) == ((0, 2), 64, 4)
    joined = decided(evicted.view, evicted.terms, offer=JoinerOffer(peers(7, 8)))
    assert (joined.view.ids, joined.terms.global_batch_size) == ((0, 2, 7, 8), 64)


def test_a_stop_supersedes_what_others_would_have_to_come_for() -> None:
    stop = REQUESTS["the end of training"]
    for asked in (size_request(5), size_request(2), leaving(1, when="replaced"), outside(size_request(5))):
        decision = decide(BarrierInput(view_of(3), terms_of(3), LIMITS, requests=(*stop, asked)))
        assert (decision.view, decision.terms.target_size, decision.prepare) == (view_of(3), 0, None)
        assert decision.superseded == (replace(asked, superseded_by="stop_on_nan"),)


def test_a_peer_that_is_taken_away_leaves_a_job_that_ends_and_nobody_comes_for_it() -> None:
    ends = (*REQUESTS["the end of training"], outside(leaving(1, when="noticed", size=3)))
    decision = decide(BarrierInput(view_of(3), terms_of(3, target=4), LIMITS, requests=ends))
    assert (decision.view.ids, decision.terms.target_size, decision.prepare) == ((0, 2), 0, 2)
    stopped = [Asked(StopTraining(), "kungfu stop", 9, id="r")]
    assert decide(BarrierInput(view_of(3), terms_of(3, target=4), LIMITS, requests=stopped)).prepare == 3


def test_a_hook_that_wants_the_present_size_leaves_the_growth_of_a_command() -> None:
    by_hand = decided(view_of(3), terms_of(3), outside=size_request(5)).terms
    content = decided(view_of(3), by_hand, asked=size_request(3), offer=JoinerOffer(peers(7, 8)))
    assert content.view.ids == (0, 1, 2, 7, 8)
    smaller = decided(view_of(3), by_hand, asked=size_request(2))
    assert (smaller.view.ids, smaller.prepare) == ((0, 1), 2)


def test_a_size_on_other_terms_replaces_the_one_under_way() -> None:
    other = size_request(5, "global_batch_size")
    decision = decided(view_of(3), terms_of(3, target=5), asked=other)
    assert (decision.terms.keep, decision.terms.target_size, decision.prepare) == ("global_batch_size", 5, 5)


# ---- a size and peers to exchange under way at once -----------------------------------------------------------------


def under_way(size: int, *requests: Asked) -> Terms:
    """The terms after barriers that were asked for one of these each."""
    terms = terms_of(size)
    for one in requests:
        decision = decided(view_of(size), terms, asked=one)
        assert decision.view == view_of(size)
        assert decision.prepare == decision.terms.target_size + len(decision.terms.leaving)
        terms = decision.terms
    return terms


def replaced(*ids: int) -> Asked:
    """As a rule asks for it."""
    return leaving(*ids, when="replaced", size=2)


@pytest.mark.parametrize("order", [1, -1])
def test_one_wave_serves_a_growth_and_an_exchange_in_either_order(order: int) -> None:
    terms = under_way(3, *[size_request(5), replaced(0)][::order])
    assert (terms.target_size, terms.leaving) == (5, (0,))
    decision = decided(view_of(3), terms, offer=JoinerOffer(peers(7, 8, 9)))
    assert decision == Decision(View(6, peers(1, 2, 7, 8, 9)), terms_of(5))


def test_peers_of_two_requests_are_all_exchanged_and_none_twice() -> None:
    terms = under_way(4, replaced(0, 2), replaced(2, 3), replaced(0))
    assert (terms.target_size, terms.leaving) == (4, (0, 2, 3))


def test_an_older_offer_waits_for_the_joiners_that_were_asked_for_since() -> None:
    growing = under_way(2, size_request(4))
    offer = JoinerOffer(peers(7, 8))
    asked = decided(view_of(2), growing, asked=replaced(0), offer=offer)
    assert (asked.view, asked.terms.leaving, asked.prepare) == (view_of(2), (0,), 5)
    # The agent keeps those who are ready, and offers them again together with the third.
    assert decided(view_of(2), asked.terms, offer=offer).prepare == 5
    come = decided(view_of(2), asked.terms, offer=JoinerOffer(peers(7, 8, 9)))
    assert come.view.ids == (1, 7, 8, 9)


def test_an_offer_beside_a_request_for_peers_under_exchange_is_taken() -> None:
    terms = under_way(3, replaced(0))
    decision = decided(view_of(3), terms, asked=replaced(0), offer=JoinerOffer(peers(7)))
    assert (decision.view.ids, decision.terms) == ((1, 2, 7), terms_of(3))


def test_a_size_that_is_out_of_reach_stays_refused_while_a_peer_is_exchanged() -> None:
    terms = decided(view_of(2), terms_of(2), Limits(1, 3), asked=size_request(9)).terms
    exchanged = decided(view_of(2), terms, Limits(1, 3), asked=replaced(0)).terms
    assert (exchanged.target_size, exchanged.leaving, exchanged.refused_size) == (3, (0,), 9)


def outside(asked: Asked) -> Asked:
    return replace(asked, id="r")


@pytest.mark.parametrize(
    ("size", "before", "asked", "ids", "target", "left", "prepare"),
    [
        # a smaller size: those under exchange go first, and nobody comes for them; then the newest
        (4, [replaced(0, 1)], size_request(3), (1, 2, 3), 3, (1,), 5),
        (4, [replaced(0, 1)], size_request(2), (2, 3), 0, (), 2),
        (4, [replaced(0, 1)], size_request(1), (2,), 0, (), 1),
        # the present size, of a hook: it dismisses a growth and no exchange
        (3, [size_request(5), replaced(1)], size_request(3), (0, 1, 2), 3, (1,), 4),
        # a hook evicts: two leave, two stay and one comes
        (4, [replaced(0, 1)], leaving(1, 3), (0, 2), 2, (0,), 5),
        # a size from outside ends the exchange and the growth; peers from outside supersede other exchanges
        (3, [size_request(5), replaced(0)], outside(size_request(4)), (0, 1, 2), 4, (), 4),
        (3, [size_request(5), replaced(0)], outside(size_request(2)), (0, 1), 0, (), 2),
        (4, [replaced(0)], outside(leaving(3)), (0, 1, 2), 0, (), 4),
        (4, [replaced(0)], outside(leaving(2, when="replaced", size=4)), (0, 1, 2, 3), 4, (2,), 5),
    ],
)
def test_a_request_beside_an_exchange_under_way(
    size: int, before: list[Asked], asked: Asked, ids: tuple[int, ...], target: int, left: tuple[int, ...], prepare: int
) -> None:
    decision = decided(view_of(size), under_way(size, *before), asked=asked)
    assert (decision.view.ids, decision.prepare) == (ids, prepare), "the agent still counts those who leave"
    assert (decision.terms.target_size, decision.terms.leaving) == (target, left)
    assert (decision.terms.global_batch_size, decision.terms.batch_per_peer) == (32 * len(ids), 32.0)


def test_a_notice_beside_a_replacement_leaves_the_older_exchange_as_it_is() -> None:
    terms = under_way(4, replaced(0))
    decision = decided(view_of(4), terms, asked=replaced(1), outside=leaving(3, when="noticed", size=5))
    assert (decision.view.ids, decision.terms.target_size, decision.terms.leaving) == ((0, 1, 2), 4, (0, 1))
    assert decision.prepare == 7, "the one that leaves, the three that stay, its replacement and those of two others"


def test_a_notice_to_a_peer_that_has_left_leaves_all_that_is_under_way() -> None:
    terms = under_way(3, size_request(4), replaced(0))
    decision = decided(view_of(3), terms, outside=leaving(9, when="noticed", size=5), offer=JoinerOffer(peers(7, 8)))
    assert decision.view.ids == (1, 2, 7, 8)


@pytest.mark.parametrize(
    ("ready", "ids", "refused"),
    [
        (3, (1, 2, 7, 8, 9), 0),
        (2, (1, 2, 7, 8), 5),
        (1, (1, 2, 7), 5),
        (0, (0, 1, 2), 5),
    ],
)
def test_a_wave_that_is_too_small_serves_the_exchange_before_the_size(
    ready: int, ids: tuple[int, ...], refused: int
) -> None:
    terms = under_way(3, size_request(5), replaced(0))
    offer = JoinerOffer(peers(7, 8, 9)[:ready], missing=(7, 8, 9)[ready:], reason="no host has a free slot")
    decision = decided(view_of(3), terms, offer=offer)
    assert (decision.view.ids, decision.terms.refused_size) == (ids, refused)
    assert (decision.terms.target_size, decision.terms.leaving) == (0, ())


def test_the_slowest_of_several_is_exchanged_first() -> None:
    terms = under_way(3, replaced(0, 1, 2))
    offer = JoinerOffer(peers(7), missing=(8, 9))
    speeds = {0: 0.5, 1: 0.2, 2: float("nan")}
    assert decide(BarrierInput(view_of(3), terms, LIMITS, offer=offer, speeds=speeds)).view.ids == (0, 2, 7)
    assert decided(view_of(3), terms, offer=offer).view.ids == (1, 2, 7), "the lowest rank where none is known"


# ---- nobody comes ----------------------------------------------------------------------------------------------------

NOBODY = JoinerOffer(missing=(7,), reason="no host has a free slot")
REFUSED = Terms(96, 32.0, replacement_refused=True)


def test_an_exchange_without_joiners_is_remembered_and_a_served_one_is_not() -> None:
    terms = under_way(3, replaced(0))
    assert decided(view_of(3), terms, offer=NOBODY) == Decision(view_of(3), REFUSED, prepare=3)
    assert not decided(view_of(3), terms, offer=JoinerOffer(peers(7))).terms.replacement_refused
    # Of two one has come: it left a slot, for which the other may be asked for again.
    some = decided(view_of(3), under_way(3, replaced(0, 1)), offer=JoinerOffer(peers(7), missing=(8,)))
    assert not some.terms.replacement_refused
    grown = decided(view_of(3), under_way(3, size_request(4)), offer=NOBODY)
    assert (grown.terms.refused_size, grown.terms.replacement_refused) == (4, False)


def test_a_refused_exchange_is_forgotten_after_a_new_view_or_a_dismissal() -> None:
    assert decided(view_of(3), REFUSED) == Decision(view_of(3), REFUSED), "a checkpoint changes nothing"
    assert not decided(view_of(3), REFUSED, asked=size_request(2)).terms.replacement_refused
    assert not decided(view_of(3), REFUSED, asked=leaving(1)).terms.replacement_refused
    growing = decided(view_of(3), REFUSED, asked=size_request(5))
    assert growing.terms.replacement_refused, "those under way take slots, they leave none"
    grown = decided(view_of(3), growing.terms, offer=JoinerOffer(peers(7, 8)))
    assert not grown.terms.replacement_refused
    assert not decided(view_of(3), growing.terms, asked=size_request(3)).terms.replacement_refused
    assert decided(view_of(3), REFUSED, asked=size_request(3)).terms.replacement_refused, "nobody was dismissed"


def test_what_was_refused_is_forgotten_when_a_host_with_free_slots_comes() -> None:
    terms = Terms(96, 32.0, refused_size=5, replacement_refused=True)
    decision = decide(BarrierInput(view_of(3), terms, LIMITS, requests=[Asked(Retry(), "a host has come", id="r")]))
    assert (decision.view, decision.terms) == (view_of(3), terms_of(3))
    assert not decided(view_of(3), terms, outside=size_request(3)).terms.replacement_refused
