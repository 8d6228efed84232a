"""What rules ask of a barrier together, and what somebody outside demands beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kungfu.control import Call, Evict, Replace, Rescale
from kungfu.runtime.core.barrier_requests import ExternalRequest, ExternalRequestKind, Leave, RescaleRequest
from kungfu.runtime.core.view import Peer, View
from kungfu.signal import Constant
from kungfu.training.requests import Fired, Requests, demanded, gathered

RULES = Requests(RescaleRequest(3, "local_batch_size", "grow", 7), checkpoints=("a rule",))


@pytest.mark.parametrize(
    ("kind", "leave"),
    [
        ("resize", None),
        ("leave", Leave((1,), "now")),
        ("notice", Leave((1,), "noticed")),
        ("replace", Leave((1,), "replaced")),
    ],
)
def test_a_demand_for_other_peers_stands_beside_the_wish_of_the_rules(
    kind: ExternalRequestKind, leave: Leave | None
) -> None:
    found = demanded(RULES, ExternalRequest(kind, "kungfu says so", size=2, peers=(1,)), step=9)
    assert found.outside == RescaleRequest(2, "global_batch_size", "kungfu says so", 9, leave=leave)
    assert (found.wish, found.settings, found.checkpoints) == (RULES.wish, (), ("a rule",))


def test_the_batch_that_stays_is_the_one_that_was_asked_for() -> None:
    found = demanded(Requests(), ExternalRequest("resize", "kungfu resize 2", size=2, keep="local_batch_size"), step=9)
    assert found.outside is not None
    assert found.outside.keep == "local_batch_size"


def test_a_checkpoint_and_the_end_of_training_change_no_peers() -> None:
    found = demanded(RULES, ExternalRequest("checkpoint", "kungfu checkpoint"), step=9)
    assert (found.outside, found.checkpoints) == (None, ("a rule", "kungfu checkpoint"))
    (setting,) = demanded(RULES, ExternalRequest("stop", "kungfu stop"), step=9).settings
    assert (setting.kind, setting.rule, setting.step) == ("stop", "kungfu stop", 9)


# ---- several rules in one step ---------------------------------------------------------------------------------------

VIEW = View(3, tuple(Peer(number, "") for number in (5, 6, 7, 8)))
GROW = Fired(Rescale(Constant(6.0), "global_batch_size"), "grow", 7, 6.0, (), {})
HOOK = Fired(Call(print, ()), "hook", 7, math.nan, (), {})


def marked(action: Any, *ranks: int, rule: str = "slow") -> Fired:
    return Fired(action(Constant(False)), rule, 7, math.nan, ranks, {})


def asked(fired: list[Fired], *, hook: int | None = None) -> Requests:
    return gathered(fired, VIEW, call=lambda *_: hook)


def test_a_size_and_peers_that_two_rules_ask_for_in_one_step_are_one_request() -> None:
    for order in ([GROW, marked(Replace, 1)], [marked(Replace, 1), GROW]):
        wish = asked(order).wish
        assert wish is not None
        assert (wish.size, wish.keep, wish.rule) == (6, "global_batch_size", "grow")
        assert [(one.rule, one.leave) for one in wish.others] == [("slow", Leave((6,), "replaced"))]


def test_two_rules_that_mark_peers_are_one_request() -> None:
    wish = asked([marked(Evict, 0), marked(Replace, 3, rule="worn")]).wish
    assert wish is not None
    assert [one.leave for one in wish.parts] == [Leave((5,), "now"), Leave((8,), "replaced")]


def test_what_a_hook_asks_for_beside_a_rule_is_superseded_and_told_or_comes_first_where_it_is_first() -> None:
    found = asked([GROW, HOOK], hook=2)
    assert found.wish is not None
    assert (found.wish.rule, [(one.wish.rule, one.by) for one in found.superseded]) == ("grow", [("hook", "grow")])
    found = asked([HOOK, GROW], hook=2)
    assert found.wish is not None
    assert (found.wish.size, [one.wish.rule for one in found.superseded]) == (2, ["grow"])


def test_a_command_comes_before_the_size_of_a_rule_and_beside_its_peers() -> None:
    rules = asked([GROW, marked(Replace, 1)])
    found = demanded(rules, ExternalRequest("resize", "kungfu resize 3", size=3), step=9).with_outside()
    assert found.wish == rules.wish, "what the rules ask for is held against what those of other peers do"
    assert found.outside is not None
    assert [one.rule for one in found.outside.parts] == ["kungfu resize 3", "slow"]
    assert [(one.wish.rule, one.by) for one in found.superseded] == [("grow", "kungfu resize 3")]


def test_what_a_broken_barrier_was_asked_for_is_asked_again_behind_what_is_newer() -> None:
    newer = asked([Fired(GROW.action, "grow", 9, 4.0, (), {})]).after(asked([GROW, marked(Evict, 2)]))
    assert newer.wish is not None
    assert (newer.wish.size, [one.rule for one in newer.wish.others]) == (4, ["slow"])
    assert [(one.wish.size, one.wish.step) for one in newer.superseded] == [(6, 7)]
