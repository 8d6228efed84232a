"""What a barrier made of a request, in words; what it did not do too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kungfu.runtime.core.barrier import BarrierResult, Decision, decide
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Keep, Leave, Resize, When
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import NO_SPEEDS, Peer, View
from kungfu.runtime.settings import Limits
from kungfu.training.telemetry.decision_text import describe_decision

KEEP: Keep = "local_batch_size"
LEAVES, REPLACED = "1 peer leaves at once", "1 peer will be replaced; others are being prepared"
TWO_MORE = "2 more are being prepared while training continues"


def size(number: int) -> Asked:
    return Asked(Resize(number, KEEP), "grow", 7)


def peers(*ids: int, when: When = "now") -> Asked:
    return Asked(Leave(ids, when, 4, KEEP), "slow", 7)


def texts_of(
    *requests: Asked, least: int = 1, most: int = 6, speeds: Mapping[int, float] = NO_SPEEDS, target: int = 0
) -> list[str]:
    """The text of each of these requests, carried out together in a view of four, perhaps while it grows."""
    limits = Limits(least, most)
    before = Decision(View(1, tuple(Peer(number, "") for number in range(4))), Terms(32, 8.0, target))
    decision = decide(BarrierInput(before.view, before.terms, limits, requests=requests, speeds=speeds))
    result = BarrierResult(before, decision, 0)
    return [describe_decision(result, one) for one in decision.requests]


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([size(2)], ["2 peers leave at once"]),
        ([size(5)], ["1 more is being prepared while training continues"]),
        ([size(9)], [f"{TWO_MORE}; 9 is out of reach"]),
        ([size(4)], ["nothing: the size stays 4"]),
        ([peers(1)], [LEAVES]),
        ([peers(1, when="replaced")], [REPLACED]),
        ([size(6), peers(1, when="replaced")], [TWO_MORE, REPLACED]),
        ([size(6), peers(1)], [f"{LEAVES}; 3 more are being prepared while training continues", LEAVES]),
        ([size(3), peers(1, 2, when="replaced")], [LEAVES, f"{LEAVES}; {REPLACED}"]),
        ([peers(1), peers(1, when="replaced")], [LEAVES, LEAVES]),
    ],
)
def test_each_request_is_told_what_became_of_it(requests: list[Asked], words: list[str]) -> None:
    assert texts_of(*requests) == words


def test_what_the_limits_of_the_job_do_not_allow_is_told() -> None:
    assert texts_of(size(9), most=4) == ["9 is out of reach"]
    kept = texts_of(peers(0, 1), peers(2), least=3)
    assert kept == [f"{LEAVES}; peer 1 stays: no fewer peers may be left", "peer 2 stays: no fewer peers may be left"]


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([size(3)], ["1 peer leaves at once; peer 0 left first: 0.51 of the median speed"]),
        ([size(2)], ["2 peers leave at once; peers 0 and 2 left first: 0.51 and 0.70 of the median speed"]),
        ([size(1)], ["3 peers leave at once; peers 0 and 2 left first: 0.51 and 0.70 of the median speed"]),
        # who leaves by name leaves for that
        ([peers(0)], [LEAVES]),
        ([size(2), peers(0)], ["2 peers leave at once; peer 2 left first: 0.70 of the median speed", LEAVES]),
    ],
)
def test_who_left_first_for_being_slow_is_told_with_the_speed(requests: list[Asked], words: list[str]) -> None:
    assert texts_of(*requests, speeds={0: 0.512, 1: 0.97, 2: 0.7, 3: 1.1}) == words


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (size(4), "2 peers on their way are dismissed"),
        (size(5), "1 more is being prepared while training continues; 1 peer on its way is dismissed"),
        (size(3), "1 peer leaves at once; 2 peers on their way are dismissed"),
        (peers(1), "1 peer leaves at once"),
    ],
)
def test_those_on_their_way_whom_a_newer_size_does_not_want_are_told(request_: Asked, words: str) -> None:
    assert texts_of(request_, target=6) == [words]
