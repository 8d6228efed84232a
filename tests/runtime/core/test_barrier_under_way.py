"""Each request against what is under way: the table of ``core.barrier``, cell by cell, in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kungfu.runtime.core import barrier
from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, SaveCheckpoint, SetBatch, StopTraining
from kungfu.runtime.core.terms import Terms
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
    still, surplus = (
        coming(after.size, decision.terms),
        coming(3, before) - len(joined) - coming(after.size, decision.terms),
    )
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
    assert (
        in_words(requests, terms, decide(BarrierInput(view_of(3), terms, LIMITS, requests=requests, offer=offer)))
        == becomes
    )


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
    for asked in (size_request(5), size_request(2), leaving(1, when="replaced")):
        decision = decide(BarrierInput(view_of(3), terms_of(3), LIMITS, requests=(*stop, asked)))
        assert (decision.view, decision.terms.target_size, decision.prepare) == (view_of(3), 0, None)
        assert decision.superseded == (replace(asked, superseded_by="stop_on_nan"),)
    outside = (*stop, replace(size_request(5), id="r"))
    assert (
        decide(BarrierInput(view_of(3), terms_of(3), LIMITS, requests=outside)).superseded[0].superseded_by
        == "stop_on_nan"
    )


def test_a_peer_that_is_taken_away_leaves_a_job_that_ends_and_nobody_comes_for_it() -> None:
    notice = leaving(1, when="noticed", size=3)
    ends = (*REQUESTS["the end of training"], replace(notice, id="r"))
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
