"""What rules that fired ask of a barrier together, and what somebody outside asks for beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kungfu.compiler.fired import FiredRule
from kungfu.compiler.rule_requests import call_hook, requests_of
from kungfu.control import Call, Evict, Replace, Rescale
from kungfu.control.hook import Control, HookRequest
from kungfu.errors import PolicyError
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


def asked(fired: list[FiredRule], *, hook: int | None = None, hooks: Sequence[HookRequest] = ()) -> BarrierRequests:
    requests = hooks if hook is None else (HookRequest("rescale", hook),)
    return requests_of(fired, VIEW, call=lambda *_: requests)


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


def test_a_hooks_request_beside_a_rule_is_superseded_or_comes_first() -> None:
    """A hook's request beside a rule is superseded and reported, or comes first if the hook is first."""
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


# ---- hooks -----------------------------------------------------------------------------------------------------------


def called(hook: Any, *, over_budget: bool = False) -> BarrierRequests:
    """What a barrier is asked for by a rule that calls this hook, between two others."""
    fired = replace(HOOK, action=Call(hook, ()), over_budget=over_budget)
    answer = call_hook(fired, fired.action, size=VIEW.size)
    return asked([GROW, fired, marked(Evict, 0)], hooks=answer.requests)


def test_a_hook_asks_for_what_rules_ask_for_in_the_order_of_the_policies() -> None:
    def hook(control: Control) -> None:
        control.set_learning_rate(0.5, over_samples=640)
        control.set_global_batch_size(128.4)
        control.checkpoint()
        control.replace(2)
        control.rescale(3, keep="global_batch_size")
        control.stop()

    found = called(hook)
    assert [(one.rule, one.size, one.keep) for one in found.rescale if one.leave is None] == [
        ("grow", 6, "global_batch_size"),
        ("hook", 3, "global_batch_size"),
    ]
    leaves = [(one.rule, one.leave) for one in found.rescale if one.leave is not None]
    assert leaves == [("hook", Leave((7,), "replaced")), ("slow", Leave((5,), "now"))]
    rate, batch, stop = found.settings
    assert (rate.kind, rate.value, rate.over, rate.unit, rate.rule) == ("learning_rate", 0.5, 640, "samples", "hook")
    assert (batch.kind, batch.value, batch.step) == ("global_batch_size", 128, 7)
    assert (stop.kind, found.checkpoints) == ("stop", ("hook",))


def test_a_size_that_a_hook_asks_for_beside_its_own_eviction_is_one_request() -> None:
    def hook(control: Control) -> None:
        control.evict([1])
        control.evict([3])
        control.rescale(4)

    fired = replace(HOOK, action=Call(hook, ()))
    answer = call_hook(fired, fired.action, size=VIEW.size)
    lead, other = merged(asked([fired], hooks=answer.requests)).taken
    assert (lead.size, other.leave) == (4, Leave((6, 8), "now"))


def test_a_used_up_budget_passes_over_changes_of_the_cluster_only() -> None:
    """Requests that would change the cluster are passed over if the budget is used up, and the others are not."""

    def hook(control: Control) -> None:
        control.rescale(4)
        control.evict(1)
        control.checkpoint()

    found = called(hook, over_budget=True)
    assert [one.rule for one in found.rescale] == ["grow", "slow"]
    assert found.checkpoints == ("hook",)
    fired = replace(HOOK, action=Call(hook, ()), over_budget=True)
    answer = call_hook(fired, fired.action, size=4)
    assert (answer.asked, answer.ignored) == (4, "its budget of rescales is used up")


def test_the_slowest_peers_are_replaced_if_too_few_replacements_are_left() -> None:
    """If fewer replacements are left than a rule asks for, the slowest peers are replaced."""

    def replaced(speeds: dict[int, float], *, left: int | None) -> tuple[int, ...]:
        fired = replace(marked(Replace, 0, 1, 3), replacements_left=left)
        (one,) = requests_of([fired], VIEW, call=lambda *_: (), speeds=lambda: speeds).rescale
        assert one.leave is not None
        return one.leave.peers

    # Of the peers 5, 6, 7 and 8 the rule names 5, 6 and 8.
    speeds = {5: 0.7, 6: 1.0, 7: 0.1, 8: 0.6}
    assert replaced(speeds, left=None) == replaced(speeds, left=3) == replaced(speeds, left=9) == (5, 6, 8)
    assert replaced(speeds, left=2) == (5, 8)
    assert replaced(speeds, left=1) == (8,)
    assert replaced({6: 0.8, 8: math.nan}, left=2) == (5, 6), "one whose speed is not known is as any other"
    assert replaced({}, left=2) == (5, 6), "nobody measures them: by rank"


def test_speeds_are_looked_at_only_where_some_peers_have_to_be_chosen() -> None:
    def speeds() -> dict[int, float]:
        raise AssertionError("nothing is to be chosen")

    requests_of([GROW, marked(Evict, 0), replace(marked(Replace, 1), replacements_left=1)], VIEW,
                call=lambda *_: (), speeds=speeds)  # fmt: skip


def test_a_hook_replaces_as_many_peers_as_its_budget_allows() -> None:
    """A hook replaces as many peers as its budget allows, and the message says so of the others."""

    def hook(control: Control) -> None:
        control.rescale(6)
        control.replace([0, 2, 3])

    def answer(*, left: int | None, over_budget: bool = False) -> tuple[list[str], str]:
        fired = replace(HOOK, action=Call(hook, ()), replacements_left=left, over_budget=over_budget)
        found = call_hook(fired, fired.action, size=VIEW.size)
        return [str(one) for one in found.requests], found.ignored

    assert answer(left=3) == (["rescale(6)", "replace([0, 2, 3])"], "")
    some = "of replace([0, 2, 3]) 2 are within its budget"
    assert answer(left=2) == (["rescale(6)", "replace([0, 2])"], some)
    assert answer(left=0) == (["rescale(6)"], "its budget of replacements is used up")
    used_up = "its budget of rescales is used up"
    assert answer(left=1, over_budget=True) == (
        ["replace([0])"],
        f"{used_up}; of replace([0, 2, 3]) 1 is within its budget",
    )
    assert answer(left=None, over_budget=True) == ([], used_up), "they are not counted apart"


def test_an_error_of_a_hooks_call_names_the_rule_and_the_line() -> None:
    def hook(control: Control) -> None:
        control.evict(9)

    with pytest.raises(PolicyError, match=r"hook 'hook' \(.*test_rule_requests.py:\d+\): control.evict\(9\)") as caught:
        called(hook)
    assert caught.value.policy == "hook"
