"""Signals of the user's own: what they are, and which declarations do not go together."""

from __future__ import annotations

import numpy as np
import pytest

import kungfu as kf
from kungfu.compiler import compile_policies, explain
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.errors import PolicyError
from kungfu.signal import SignalType, TrainingSignals

training = TrainingSignals()
CLUSTER = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False}


@kf.policy
def accurate(training, *, dtype="float32", unit=""):
    """Grows the cluster where the accuracy over all samples is high."""
    own = training.published("accuracy", dtype=dtype, unit=unit)
    accuracy = kf.ops.weighted_mean(kf.ops.cast(own, "float32"), training.samples).named("accuracy")
    return kf.control.always().when(accuracy > 0.5).rescale(4)


def test_a_published_signal_is_local_known_before_the_message_and_of_its_type() -> None:
    signal = training.published("correct", dtype="int64", unit="samples", meaning="right answers")
    assert (signal.type, signal.placement, signal.known) == (SignalType("int64"), "local", "before")
    assert (signal.kind.unit, signal.kind.meaning, signal.kind.given_by) == ("samples", "right answers", "publish")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        *((name, {}, "takes a name of letters, digits and _") for name in ("", "two words", "2nd", "norm(x)", 3, None)),
        ("loss", {}, r"published\('loss'\): a step offers a signal of this name itself"),
        ("accuracy", {"dtype": "float64"}, r"dtype='float64'\): write one of bool, int64, float32"),
    ],
)
def test_a_name_or_a_dtype_that_cannot_be_is_refused(name, given, message) -> None:
    with pytest.raises(PolicyError, match=message):
        training.published(name, **given)


def test_a_rule_on_its_local_value_is_refused_with_the_collective_to_insert() -> None:
    @kf.policy
    def hasty(training):
        return kf.control.always().when(training.published("accuracy") > 0.5).stop()

    with pytest.raises(PolicyError, match=r'kf.ops.all_reduce\(training.published\("accuracy"\), "mean"\)') as caught:
        compile_policies([hasty()])
    assert caught.value.policy == "hasty"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"dtype": "int64"}, "as int64.*declares.*as float32"),
        ({"unit": "percent"}, "in 'percent'.*declares.*in ''"),
    ],
)
def test_policies_that_declare_one_name_differently_are_refused(other, told) -> None:
    with pytest.raises(PolicyError, match=rf"policy 'at_most.*' declares training.published\(.accuracy.\).*{told}"):
        compile_policies([kf.shadow(accurate()), kf.at_most(accurate(**other), kf.policies.schedule({1: 2}))])


def test_policies_that_declare_it_alike_share_it() -> None:
    plan = compile_policies([accurate(), kf.shadow(accurate())])
    assert list(plan.given_by("publish")) == ["accuracy"]
    assert plan.rules_reading("accuracy") == ("accurate", "shadow(accurate)")


def test_what_no_rule_uses_is_no_part_of_the_plan() -> None:
    @kf.policy
    def idle(training):
        training.published("accuracy")
        return kf.control.every(2).stop()

    assert not compile_policies([idle()]).given_by("publish")


def test_a_mean_by_weight_leaves_out_a_peer_of_weight_0_whatever_its_value() -> None:
    plan = compile_policies([accurate()])
    assert plan.messages_per_step == 0
    replay = Replay(plan, size=3)
    local = [{"samples": 3.0, "accuracy": 1.0}, {"samples": 1.0, "accuracy": 0.0}, {"samples": 0.0, "accuracy": np.nan}]
    assert replay.step(local, {**CLUSTER, "step": 1}).watched.tolist() == [0.75]
    silent = [{"samples": 0.0, "accuracy": np.nan}] * 3
    assert np.isnan(replay.step(silent, {**CLUSTER, "step": 2}).watched).all()


def test_a_plan_with_it_can_be_written_read_and_explained() -> None:
    plan = compile_policies([accurate(unit="share")])
    read = plan_from_json(plan_to_json(plan))
    assert explain(read) == explain(plan)
    assert read.source_kinds["accuracy"].given_by == "publish"
    assert "accuracy: local float32, share; published by the program in its step" in explain(plan)


@kf.policy
def frugal(training, *, unit=""):
    return kf.control.always().when(training.fed("price", unit=unit) > 2).stop()


def price_over(replay: Replay, *steps: list[float]) -> list[float]:
    """What the policy sees of each step's newly fed prices, rank by rank."""
    seen = []
    for number, fed in enumerate(steps, start=1):
        seen.append(float(replay.step([{"price": one} for one in fed], {**CLUSTER, "step": number}).watched[0]))
    return seen


def test_of_what_peers_are_fed_that_of_rank_0_counts_and_stands_when_rank_0_goes() -> None:
    plan = compile_policies([frugal()])
    assert plan.messages_per_step == 0
    assert len(plan.piggybacked.collectives) == 1
    replay, nothing = Replay(plan, size=2), np.nan
    assert price_over(replay, [1.5, 9.0], [nothing, 9.0], [nothing, nothing]) == [1.5, 1.5, 1.5]
    replay.rescale(3)
    assert price_over(replay, [nothing, 7.0, 8.0]) == [1.5]
    replay.rescale(1)
    assert price_over(replay, [nothing], [0.5]) == [1.5, 0.5]


@kf.policy
def counting(training):
    fed = training.fed("price").is_new.count().named("fed")
    return kf.control.always().when(fed > 9).stop()


def test_a_number_that_is_fed_again_is_new_again() -> None:
    replay, nothing = Replay(compile_policies([counting()]), size=2), np.nan
    given = ([1.5, nothing], [nothing, 9.0], [1.5, nothing], [2.0, nothing])
    assert price_over(replay, *given) == [1, 1, 2, 3]


def test_a_fed_signal_is_agreed_and_goes_along_with_the_shared_state() -> None:
    signal = training.fed("price", unit="dollars/hour")
    assert (signal.type, signal.placement, signal.on_rescale) == (SignalType("float32"), "agreed", "keep")


def test_one_name_is_not_published_and_fed() -> None:
    @kf.policy
    def other(training):
        return kf.control.always().when(kf.ops.all_reduce(training.published("price"), "mean") > 2).checkpoint()

    with pytest.raises(
        PolicyError, match=r"training.published\(.price.\).*by training.publish.*training.fed\(.price.\)"
    ):
        compile_policies([frugal(), other()])


def test_what_was_fed_is_explained_apart_from_what_stands() -> None:
    told = explain(compile_policies([frugal(unit="dollars/hour")]))
    assert "price = last fed(" in told
    assert "newly_fed(price)" in told
    assert "agreed float32, dollars/hour" in told
