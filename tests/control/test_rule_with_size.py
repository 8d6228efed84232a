"""A rule that decides a size, a batch and a rate at once: when it fires, and what it asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import kungfu as kf
from kungfu.compiler import FiredRule, compile_policies, explain, fired_rules, summarize
from kungfu.compiler.replay import Replay
from kungfu.errors import PolicyError
from kungfu.policies import schedule
from kungfu.policy_definition import Policy
from kungfu.rule_requests import requests_of
from kungfu.runtime.core.request import Resize, SetBatch, SetRate
from kungfu.runtime.core.view import Peer, View
from kungfu.signal import TrainingSignals

CALM: dict[str, Any] = {
    "step": 1, "size": 2, "min_size": 1, "max_size": 8, "refused_size": 0, "pending": False, "target_size": 0,
    "view": 1, "epoch_samples": 0, "global_batch_size": 64, "learning_rate": 0.5, "requested_rate": 0.0,
    "mean_loss": 0.0, "total_samples": 0.0, "samples_done": 0,
}  # fmt: skip


@kf.policy
def decides(training: Any, *, peers: float = 4, keep: str = "local_batch_size") -> Any:
    """The batch is the loss, the rate the number of samples."""
    rule = kf.control.always()
    return rule.rescale(peers, keep=keep, batch=training.mean_loss, rate=training.total_samples, over_steps=10)


def fired(policy: Policy | list[Policy], *steps: dict[str, Any]) -> list[list[FiredRule]]:
    """The rules that fire in consecutive steps with these sources."""
    plan = compile_policies([policy] if isinstance(policy, Policy) else policy)
    replay, found = Replay(plan, size=2), []
    for number, one in enumerate(steps, start=1):
        known = {**CALM, "step": number, **one}
        if known["size"] != replay.size:
            replay.rescale(known["size"])
        found.append(fired_rules(plan, replay.step([{}] * known["size"], known), step=number))
    return found


def asked(one: FiredRule) -> Any:
    (request,) = requests_of([one], View(1, (Peer(0, "a"), Peer(1, "b"))), call=lambda *_: ())
    return request.what


def test_a_decision_is_one_request_for_all_of_it() -> None:
    ((one,),) = fired(decides(), {"mean_loss": 200.4, "total_samples": 0.25})
    assert asked(one) == Resize(4, "local_batch_size", 0, None, SetBatch(200.0), SetRate(0.25, 10.0))
    seen = {name: one.inputs[name] for name in ("size", "global_batch_size", "target_batch", "target_rate", "target")}
    assert seen == {"size": 2, "global_batch_size": 64, "target_batch": 200, "target_rate": 0.25, "target": 4}


GIVEN = {"mean_loss": 200.0, "total_samples": 0.25}


@pytest.mark.parametrize(
    ("known", "fires"),
    [
        ({}, True),
        # A number of the decision that is no number above 0 holds all of it.
        *(({name: value}, False) for name in GIVEN for value in (math.nan, math.inf, 0.0, -1.0)),
        ({"target_size": 4}, False),  # under way
        ({"refused_size": 4}, False),
        ({"change_due": True}, False),
        # With the size in place, only another batch or another rate is news.
        ({"size": 4}, True),
        ({"size": 4, "global_batch_size": 200}, True),
        ({"size": 4, "learning_rate": 0.25}, True),
        ({"size": 4, "global_batch_size": 200, "learning_rate": 0.25}, False),
        ({"size": 4, "global_batch_size": 200, "learning_rate": 0.3, "requested_rate": 0.25}, False),  # on its ramp
        # It would dismiss the peers that come for another request; those of an exchange come all the same.
        ({"size": 4, "target_size": 6}, False),
        ({"size": 4, "target_size": 4}, True),
    ],
)
def test_a_decision_fires_for_what_is_new_in_it(known: dict[str, Any], fires: bool) -> None:
    (found,) = fired(decides(), {"change_due": False, **GIVEN, **known})
    assert bool(found) == fires


def test_a_batch_has_a_sample_for_each_of_the_peers_it_comes_with_and_fits_an_epoch() -> None:
    for batch, had in ((2.0, 4.0), (900.0, 640.0)):
        ((one,),) = fired(decides(), {**GIVEN, "mean_loss": batch, "epoch_samples": 640})
        assert one.inputs["target_batch"] == had


def test_a_shadow_is_recorded_whenever_a_number_of_its_decision_changes() -> None:
    steps = [{**GIVEN, **one} for one in ({}, {}, {"mean_loss": 300.0}, {"total_samples": 0.5}, {})]
    found = fired(kf.shadow(decides()), *steps)
    assert [len(one) for one in found] == [1, 0, 1, 1, 1]


def test_a_used_up_budget_holds_a_size_back_but_not_a_batch() -> None:
    @kf.policy(budget=kf.Budget(rescales=1, per_steps=1000))
    def limited(training: Any) -> Any:
        peers = kf.ops.where(training.step > 3, 6, 4)
        return kf.control.always().rescale(peers, batch=training.mean_loss)

    grown = {"size": 4, "view": 2, "global_batch_size": 200}
    found = fired(limited(), GIVEN, {**GIVEN, **grown}, {**GIVEN, **grown, "mean_loss": 300.0}, {**GIVEN, **grown})
    assert [[(one.mode, one.value) for one in each] for each in found] == [
        [("acting", 4.0)], [], [("acting", 4.0)], [("held", 6.0)]
    ]  # fmt: skip


# ---- several policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("combined", "expected"),
    [
        # A cap that is met first brings no batch, and the present size counts for a policy without a request.
        (kf.at_most(decides(peers=6), schedule({1: 3})), Resize(3, "local_batch_size", 0)),
        (kf.at_most(schedule({1: 3}), decides(peers=6)), Resize(3, "local_batch_size", 0)),
        *(
            (one, Resize(6, "local_batch_size", 0, None, SetBatch(200.0), SetRate(0.25, 10.0)))
            for one in (
                kf.at_most(decides(peers=6), schedule({1: 7})),
                kf.at_most(schedule({1: 6}), decides(peers=6)),
                kf.at_least(schedule({1: 3}), decides(peers=6)),
                kf.first(schedule({50: 3}), decides(peers=6)),
            )
        ),
    ],
)
def test_the_numbers_of_the_chosen_size_come_with_it(combined: Policy, expected: Resize) -> None:
    ((one,),) = fired(combined, GIVEN)
    assert asked(one) == expected


def test_a_combined_decision_follows_the_last_request_of_each_policy() -> None:
    combined = kf.at_most(decides(peers=4), schedule({1: 6}))
    known = {"size": 4, "global_batch_size": 200, "learning_rate": 0.25}
    found = fired(combined, {**GIVEN, **known}, {**known, "mean_loss": 300.0, "total_samples": 0.25}, {**known})
    batches = [[one.inputs["target_batch"] for one in each] for each in found]
    assert batches == [[], [300.0], [300.0]], "a number that is none leaves the last decision in force"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: kf.control.always().set_global_batch_size(3), "all set the global batch size, and 'decides' as one"),
        (lambda: kf.control.on_rescale().set_learning_rate(3), "all set the learning rate, and 'decides' as one"),
        (lambda: kf.control.always().rescale(3), "all rescale the cluster and nothing says which one wins"),
    ],
)
def test_what_a_decision_sets_nothing_else_sets(other: Callable[[], Any], message: str) -> None:
    @kf.policy
    def also(training: Any) -> Any:
        return other()

    with pytest.raises(PolicyError, match=message):
        compile_policies([decides(), also()])


def test_ramps_that_differ_are_not_merged() -> None:
    @kf.policy
    def at_once(training: Any) -> Any:
        return kf.control.always().rescale(3, rate=0.5)

    with pytest.raises(PolicyError, match="decides moves the rate over 10 steps, at_once moves the rate over 0 steps"):
        compile_policies([kf.at_most(decides(), at_once())])


# ---- what is refused, and what is shown ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda training: kf.control.always().rescale(4, over_steps=3), r"rescale\(over_steps=3\): a ramp leads to"),
        (
            lambda training: kf.control.always().rescale(4, rate=1, over_steps=3, over_samples=3),
            r"rescale\(over_steps=3, over_samples=3\): a ramp has one length",
        ),
        (lambda training: kf.control.always().rescale(4, batch=training.loss), "the global batch size that policy"),
        (lambda training: kf.control.always().rescale(4, rate=-1), "the size and learning rate that it asks for never"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(made: Callable[[TrainingSignals], Any], message: str) -> None:
    @kf.policy
    def wrong(training: Any) -> Any:
        return made(training)

    with pytest.raises(PolicyError, match=message):
        compile_policies([wrong()])


def test_a_decision_is_explained_with_all_its_numbers() -> None:
    @kf.policy
    def grow(training: Any) -> Any:
        noise = training.mean_loss.ema(0.5).named("noise")
        return kf.control.every(50).rescale(noise, batch=noise * 32, rate=0.1, over_steps=100)

    plan = compile_policies([grow()])
    text = " ".join(summarize(plan).split())
    assert (
        "it keeps the local batch size; with it a global batch size: noise * 32; with it a learning rate: 0.1" in text
    )
    assert "over 100 steps" in text
    assert "or with that size in place another global batch size or learning rate" in text
    assert "with a global batch size of" in explain(plan)
