"""What rules that fired ask of a barrier together, and what somebody outside asks for beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kungfu.compiler.fired import FiredRule
from kungfu.control import Call, Evict, Replace, Rescale
from kungfu.control.hook import Control, HookRequest
from kungfu.errors import PolicyError, UsageError
from kungfu.rule_requests import HookAnswer, call_hook, call_last_hook, refuse_interval, requests_of
from kungfu.runtime.core import request
from kungfu.runtime.core.view import Peer, View
from kungfu.signal import Constant

# ---- several rules in one step ---------------------------------------------------------------------------------------

VIEW = View(3, tuple(Peer(number, "") for number in (5, 6, 7, 8)))
GROW = FiredRule(7, "grow", Rescale(Constant(6.0), "global_batch_size"), 6.0, {})
HOOK = FiredRule(7, "hook", Call(print, ()), math.nan, {})


def marked(action: Any, *ranks: int, rule: str = "slow") -> FiredRule:
    return FiredRule(7, rule, action(Constant(False)), math.nan, {}, ranks)


def leave(*peers: int, when: request.When = "now") -> request.Leave:
    size = VIEW.size - len(peers) if when == "now" else VIEW.size
    return request.Leave(peers, when, size, "local_batch_size")


def asked(fired: list[FiredRule], *, hooks: Sequence[HookRequest] = ()) -> tuple[request.Asked, ...]:
    return tuple(requests_of(fired, VIEW, call=lambda *_: hooks))


SETTINGS: list[tuple[HookRequest, HookRequest]] = [
    (HookRequest("set_global_batch_size", 64.0), HookRequest("set_global_batch_size", 128.0)),
    (HookRequest("set_learning_rate", 0.1), HookRequest("set_learning_rate", 0.2, ramp_length=9.0)),
    (HookRequest("synchronise", 4.0), HookRequest("synchronise", 16.0)),
    (HookRequest("set_value", 1, name="ema"), HookRequest("set_value", 2, name="ema")),
]


@pytest.mark.parametrize(("one", "other"), SETTINGS, ids=[one.kind for one, _ in SETTINGS])
def test_of_two_hooks_that_set_one_thing_the_first_is_taken_and_the_other_told(
    one: HookRequest, other: HookRequest
) -> None:
    later = replace(HOOK, rule="later")
    found = request.merge((*asked([HOOK], hooks=[one]), *asked([later], hooks=[other])))
    assert [(one.by, one.what) for one in found[:1]] == [("hook", asked([HOOK], hooks=[one])[0].what)]
    assert [(one.by, one.superseded_by) for one in found if one.superseded_by] == [("later", "hook")]


def test_two_values_checkpoints_and_stops_are_carried_out_beside_each_other() -> None:
    values = [HookRequest("set_value", 1, name="ema"), HookRequest("set_value", 1, name="decay")]
    several = [*values, *[HookRequest("checkpoint"), HookRequest("stop")] * 2]
    assert not any(one.superseded_by for one in request.merge(asked([HOOK], hooks=several)))


# ---- hooks -----------------------------------------------------------------------------------------------------------


def answer_of(hook: Any, **budget: Any) -> HookAnswer:
    fired = replace(HOOK, action=Call(hook, ()), **budget)
    return call_hook(fired, fired.action, size=VIEW.size)


def called(hook: Any, **budget: Any) -> tuple[request.Asked, ...]:
    """What a barrier is asked for by a rule that calls this hook, between two others."""
    return asked([GROW, HOOK, marked(Evict, 0)], hooks=answer_of(hook, **budget).requests)


def test_a_hook_asks_for_what_rules_ask_for_in_the_order_of_the_policies() -> None:
    def hook(control: Control) -> None:
        control.set_learning_rate(0.5, over_samples=640)
        control.set_global_batch_size(128.4)
        control.checkpoint()
        control.replace(2)
        control.rescale(3, keep="global_batch_size")
        control.stop()

    found = [(one.by, one.what) for one in called(hook)]
    assert found == [
        ("grow", request.Resize(6, "global_batch_size", 0)),
        ("hook", request.SetRate(0.5, 640, "samples")),
        ("hook", request.SetBatch(128)),
        ("hook", request.SaveCheckpoint()),
        ("hook", leave(7, when="replaced")),
        ("hook", request.Resize(3, "global_batch_size")),
        ("hook", request.StopTraining()),
        ("slow", leave(5)),
    ]


def test_a_hook_asks_for_averages_of_models_where_models_are_averaged() -> None:
    answer = answer_of(lambda control: control.synchronise(every=3.6))
    assert [str(one) for one in answer.requests] == ["synchronise(every=4)"]
    assert asked([HOOK], hooks=answer.requests)[0].what == request.SetAverageInterval(4.0)
    refuse_interval(answer, rule="hook", averages_models=True)
    with pytest.raises(UsageError, match=r"hook 'hook' called control\.synchronise\(every=4\), but .*gradients"):
        refuse_interval(answer, rule="hook", averages_models=False)
    nothing = answer_of(lambda control: control.synchronise(every=0))
    assert (nothing.requests, nothing.ignored) == ((), "synchronise(every=0) asks for nothing")
    late = FiredRule(7, "hook", Call(lambda control: control.synchronise(every=4), ()), math.nan, {})
    assert call_last_hook(late, late.action, size=4).requests == ()


def test_a_hook_decides_a_size_a_batch_and_a_rate_at_once() -> None:
    found = called(lambda control: control.rescale(3, batch=128.4, rate=0.5, over_samples=640))
    rate = request.SetRate(0.5, 640, "samples")
    assert request.Resize(3, "local_batch_size", batch=request.SetBatch(128.4), rate=rate) in [
        one.what for one in found
    ]
    used_up = answer_of(lambda control: control.rescale(3, batch=128), over_budget=True)
    assert (used_up.requests, used_up.ignored) == ((), "its budget of rescales is used up")


def test_a_size_that_a_hook_asks_for_beside_its_own_eviction_is_one_request() -> None:
    def hook(control: Control) -> None:
        control.evict([1])
        control.evict([3])
        control.rescale(4)

    lead, other = request.merge(asked([HOOK], hooks=answer_of(hook).requests))
    assert (lead.what, other.what) == (request.Resize(4, "local_batch_size"), leave(6, 8))


def test_a_used_up_budget_passes_over_changes_of_the_cluster_only() -> None:
    """Requests that would change the cluster are passed over if the budget is used up, and the others are not."""

    def hook(control: Control) -> None:
        control.rescale(4)
        control.evict(1)
        control.checkpoint()

    found = called(hook, over_budget=True)
    assert [one.by for one in found] == ["grow", "hook", "slow"]
    assert [type(one.what) for one in found] == [request.Resize, request.SaveCheckpoint, request.Leave]
    answer = answer_of(hook, over_budget=True)
    assert (answer.asked, answer.ignored) == (4, "its budget of rescales is used up")


def test_the_slowest_peers_are_replaced_if_too_few_replacements_are_left() -> None:
    """If fewer replacements are left than a rule asks for, the slowest peers are replaced."""

    def replaced(speeds: dict[int, float], *, left: int | None) -> tuple[int, ...]:
        fired = replace(marked(Replace, 0, 1, 3), replacements_left=left)
        (one,) = requests_of([fired], VIEW, call=lambda *_: (), speeds=lambda: speeds)
        assert isinstance(one.what, request.Leave)
        return one.what.peers

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

    few = [GROW, marked(Evict, 0), replace(marked(Replace, 1), replacements_left=1)]
    assert len([*requests_of(few, VIEW, call=lambda *_: (), speeds=speeds)]) == 3


def test_a_hook_replaces_as_many_peers_as_its_budget_allows() -> None:
    """A hook replaces as many peers as its budget allows, and the message says so of the others."""

    def hook(control: Control) -> None:
        control.rescale(6)
        control.replace([0, 2, 3])

    def answer(*, left: int | None, over_budget: bool = False) -> tuple[list[str], str]:
        found = answer_of(hook, replacements_left=left, over_budget=over_budget)
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
