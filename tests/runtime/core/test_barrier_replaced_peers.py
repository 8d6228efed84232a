"""How many peers a barrier has replaced: those that joined in the places of others, as somebody asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import Decision, JoinerOffer, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Leave
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from tests.runtime.core.deciding import LIMITS, leaving, peers, size_request


def replaced(*ids: int) -> Asked:
    return leaving(*ids, when="replaced")


def held(before: Decision, *asked: Asked, offer: JoinerOffer | None = None) -> Decision:
    """The barrier after a decision."""
    return decide(BarrierInput(before.view, before.terms, LIMITS, requests=asked, offer=offer))


def start(size: int, *, replaced: int = 0) -> Decision:
    return Decision(View(5, peers(*range(size))), Terms(32 * size, 32.0, replaced_peers=replaced))


def joined(asked: Decision, *, ready: int, missing: int = 0) -> Decision:
    """The peers that were asked for are offered."""
    return held(asked, offer=JoinerOffer(peers(*range(50, 50 + ready)), tuple(range(90, 90 + missing))))


def counts(*decisions: Decision) -> list[int]:
    return [one.terms.replaced_peers for one in decisions]


MOVE = Asked(Leave((1,), "replaced", 2, host=0), "kungfu migrate 1 a", id="r")
NOTICE = Asked(Leave((1,), "noticed", 3, "local_batch_size"), "notice", 10)


@pytest.mark.parametrize(
    ("size", "requests", "ready", "missing", "ids", "count"),
    [
        (3, [replaced(0, 2)], 2, 0, (1, 50, 51), 2),
        (3, [replaced(0, 2)], 1, 1, (1, 2, 50), 1),  # only those that have come count
        (3, [replaced(0, 2)], 0, 2, (0, 1, 2), 0),
        (2, [size_request(4)], 2, 0, (0, 1, 50, 51), 0),  # a change of the size replaces nobody
        (3, [size_request(4), replaced(0)], 2, 0, (1, 2, 50, 51), 1),
        (3, [size_request(4), leaving(0)], 2, 0, (1, 2, 50, 51), 0),  # the job was smaller before they came
        (2, [replaced(0, 1)], 2, 0, (0, 50, 51), 2),  # one stays for another barrier, and counts once
        (2, [MOVE], 1, 0, (0, 50), 1),  # from outside
        (3, [NOTICE], 1, 0, (0, 2, 50), 0),  # makes the job smaller
    ],
)
def test_each_peer_that_is_replaced_counts_once_its_replacement_joins(
    size: int, requests: list[Asked], ready: int, missing: int, ids: tuple[int, ...], count: int
) -> None:
    asked = held(start(size, replaced=4), *requests)
    done = joined(asked, ready=ready, missing=missing)
    assert done.view.ids == ids
    assert counts(asked, done, held(done), held(done, size_request(1))) == [4, *[4 + count] * 3]


def test_those_who_come_for_lost_peers_replace_nobody() -> None:
    # Of three peers one was lost, and the survivors wait for another one.
    survivors = Decision(View(7, peers(0, 2)), Terms(96, 48.0, target_size=3, replaced_peers=2))
    assert counts(joined(survivors, ready=1)) == [2]
    # An exchange was under way: the newcomer that it asked for comes for the lost peer.
    exchanging = held(start(3, replaced=2), replaced(1))
    lost = replace(exchanging, view=View(7, peers(0, 1)), terms=replace(exchanging.terms, leaving=()))
    assert counts(joined(lost, ready=1)) == [2]


@given(st.data(), st.integers(1, 4))
def test_in_any_history_a_view_keeps_a_holder_and_the_replaced_are_counted(data: st.DataObject, size: int) -> None:
    now, spare = start(size), 50
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["size", "now", "noticed", "replaced", None]))
        named, wanted = sorted(data.draw(st.sets(st.sampled_from(now.view.ids)))), data.draw(st.integers(0, 6))
        asked = size_request(wanted) if kind == "size" else leaving(*named, when=kind, size=wanted)
        offer, coming = None, now.terms.target_size - now.view.size + len(now.terms.leaving)
        if now.terms.target_size and data.draw(st.booleans()):
            ready = data.draw(st.integers(0, max(0, coming)))
            offer = JoinerOffer(peers(*range(spare, spare + ready)), tuple(range(90, 90 + coming - ready)))
            spare += ready
        after = held(now, *([] if kind is None else [asked]), offer=offer)
        assert set(after.view.ids) & set(now.view.ids), "nobody would hold the state"
        assert after.view.version == now.view.version + (after.view.ids != now.view.ids)
        assert after.terms.global_batch_size > 0
        assert not set(after.terms.departing) - set(after.view.ids)
        more = after.terms.replaced_peers - now.terms.replaced_peers
        new = set(after.view.ids) - set(now.view.ids)
        assert 0 <= more <= len(new)
        if after.view.size - len(after.terms.departing) == now.view.size - len(now.terms.departing):
            assert more == len(new)
        now = after
