"""What rules that fired ask of a barrier together, and what somebody outside asks for beside it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kungfu.compiler.fired import FiredRule
from kungfu.compiler.rule_requests import requests_of
from kungfu.control import Call, Evict, Replace, Rescale
from kungfu.runtime.core.barrier_requests import (
    BarrierRequests,
    ExternalRequest,
    ExternalRequestKind,
    Leave,
    Merged,
    RescaleRequest,
    merge,
)
from kungfu.runtime.core.view import Peer, View
from kungfu.signal import Constant

RULES = BarrierRequests((RescaleRequest(3, "local_batch_size", "grow", 7),), checkpoints=("a rule",))


@pytest.mark.parametrize(
    ("kind", "leave"),
    [
        ("resize", None),
        ("leave", Leave((1,), "now")),
        ("notice", Leave((1,), "noticed")),
        ("replace", Leave((1,), "replaced")),
    ],
)
def test_an_external_request_for_other_peers_stands_beside_those_of_the_rules(
    kind: ExternalRequestKind, leave: Leave | None
) -> None:
    found = RULES.with_external(ExternalRequest(kind, "kungfu says so", size=2, peers=(1,)), step=9)
    assert found.external == RescaleRequest(2, "global_batch_size", "kungfu says so", 9, leave=leave)
    assert (found.rescale, found.settings, found.checkpoints) == (RULES.rescale, (), ("a rule",))


def test_the_batch_that_stays_is_the_one_that_was_asked_for() -> None:
    resize = ExternalRequest("resize", "kungfu resize 2", size=2, keep="local_batch_size")
    found = BarrierRequests().with_external(resize, step=9)
    assert found.external is not None
    assert found.external.keep == "local_batch_size"


def test_a_checkpoint_and_the_end_of_training_change_no_peers() -> None:
    found = RULES.with_external(ExternalRequest("checkpoint", "kungfu checkpoint"), step=9)
    assert (found.external, found.checkpoints) == (None, ("a rule", "kungfu checkpoint"))
    (setting,) = RULES.with_external(ExternalRequest("stop", "kungfu stop"), step=9).settings
    assert (setting.kind, setting.rule, setting.step) == ("stop", "kungfu stop", 9)


# ---- several rules in one step ---------------------------------------------------------------------------------------

VIEW = View(3, tuple(Peer(number, "") for number in (5, 6, 7, 8)))
GROW = FiredRule(7, "grow", Rescale(Constant(6.0), "global_batch_size"), 6.0, {})
HOOK = FiredRule(7, "hook", Call(print, ()), math.nan, {})


def marked(action: Any, *ranks: int, rule: str = "slow") -> FiredRule:
    return FiredRule(7, rule, action(Constant(False)), math.nan, {}, ranks)


def asked(fired: list[FiredRule], *, hook: int | None = None) -> BarrierRequests:
    return requests_of(fired, VIEW, call=lambda *_: hook)


def merged(requests: BarrierRequests) -> Merged:
    return merge(requests.rescale, requests.external)


def test_a_size_and_peers_that_two_rules_ask_for_in_one_step_are_one_request() -> None:
    for order in ([GROW, marked(Replace, 1)], [marked(Replace, 1), GROW]):
        lead, *others = merged(asked(order)).taken
        assert (lead.size, lead.keep, lead.rule) == (6, "global_batch_size", "grow")
        assert [(one.rule, one.leave) for one in others] == [("slow", Leave((6,), "replaced"))]


def test_two_rules_that_mark_peers_are_one_request() -> None:
    taken = merged(asked([marked(Evict, 0), marked(Replace, 3, rule="worn")])).taken
    assert [one.leave for one in taken] == [Leave((5,), "now"), Leave((8,), "replaced")]


def test_what_a_hook_asks_for_beside_a_rule_is_superseded_and_told_or_comes_first_where_it_is_first() -> None:
    found = merged(asked([GROW, HOOK], hook=2))
    assert ([one.rule for one in found.taken], [(one.request.rule, one.by) for one in found.superseded]) == (
        ["grow"],
        [("hook", "grow")],
    )
    found = merged(asked([HOOK, GROW], hook=2))
    assert ([one.size for one in found.taken], [one.request.rule for one in found.superseded]) == ([2], ["grow"])


def test_a_command_comes_before_the_size_of_a_rule_and_beside_its_peers() -> None:
    rules = asked([GROW, marked(Replace, 1)])
    both = rules.with_external(ExternalRequest("resize", "kungfu resize 3", size=3), step=9)
    assert both.rescale == rules.rescale, "what the rules ask for is held against what those of other peers do"
    found = merged(both)
    assert [one.rule for one in found.taken] == ["kungfu resize 3", "slow"]
    assert [(one.request.rule, one.by) for one in found.superseded] == [("grow", "kungfu resize 3")]


def test_what_a_broken_barrier_was_asked_for_is_asked_again_behind_what_is_newer() -> None:
    newer = FiredRule(9, "grow", GROW.action, 4.0, {})
    found = merged(asked([newer]).after(asked([GROW, marked(Evict, 2)])))
    assert (found.taken[0].size, [one.rule for one in found.taken[1:]]) == (4, ["slow"])
    assert [(one.request.size, one.request.step) for one in found.superseded] == [(6, 7)]
