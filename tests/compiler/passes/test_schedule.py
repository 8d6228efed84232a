"""Schedule: what runs when, what rides, and what is a message of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kungfu import control, monitor, ops
from kungfu.compiler import CompiledPolicies, Segment, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy, at_most
from kungfu.signal import Collective, Constant, Fold, Map, Signal, Source
from tests.compiler.cluster import invented


def planned(*makes: Callable[[Any], Any]) -> CompiledPolicies:
    return compile_policies([Policy(f"policy_{index}", make) for index, make in enumerate(makes)])


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def operations(segments: tuple[Segment, ...], *, gated: bool) -> list[str]:
    return [
        node.operation.name
        for one in segments
        if bool(one.gates) == gated
        for node in one.nodes
        if isinstance(node, Map)
    ]


def late(training: Any) -> Signal:
    """A collective that has to wait for the gradients."""
    return ops.all_reduce(ops.log(training.loss - training.mean_loss), "sum")


def test_both_policies_cost_no_message() -> None:
    for policies in ([gns_batch(max_peers=8)], [schedule({1: 2})], [at_most(gns_batch(max_peers=8), schedule({1: 2}))]):
        plan = compile_policies(policies)
        assert plan.messages_per_step == 0
        assert not any(one.message for one in plan.after)


def test_two_policies_with_one_monitor_pay_for_it_once() -> None:
    def watching(training: Any) -> Any:
        return control.every(7).call(ignore, monitor.gradient_noise_scale(training))

    plan = compile_policies([gns_batch(max_peers=8), Policy("watching", watching)])
    assert plan.piggybacked.floats(2) == 3
    assert len(plan.folds) == 5  # two averages, two of the budget, and the last request


def test_what_only_a_gated_rule_needs_is_gated() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, ops.sqrt(t.mean_loss)))
    assert "sqrt" in operations(plan.after, gated=True)
    assert "sqrt" not in operations(plan.after, gated=False)


def test_what_a_fold_needs_runs_in_every_step() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, ops.sqrt(t.mean_loss).ema(0.1)))
    assert "sqrt" in operations(plan.after, gated=False)
    assert any(isinstance(node, Fold) for one in plan.after if not one.gates for node in one.nodes)


def test_what_only_a_sampled_fold_needs_is_gated_with_it() -> None:
    plan = planned(lambda t: control.always().call(ignore, ops.sqrt(t.mean_loss).ema(0.1).sampled(5)))
    assert "sqrt" in operations(plan.after, gated=True)
    assert any(isinstance(node, Fold) for one in plan.after if one.gates for node in one.nodes)


def test_what_is_watched_runs_in_every_step() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, ops.sqrt(t.mean_loss).named("root")))
    assert plan.watched == ("root",)
    assert "sqrt" in operations(plan.after, gated=False)


def test_a_name_costs_no_message_and_no_pass_over_the_gradients() -> None:
    def named(training: Any) -> Any:
        norm = ops.norm_squared(training.mean_grads).named("norm")
        return control.every(5).call(ignore, late(training).named("late"), norm)

    plan = planned(named)
    assert plan.watched == ("late", "norm")
    assert plan.messages_per_step == 0
    assert "norm_squared" in operations(plan.after, gated=True)
    assert "norm_squared" not in operations(plan.after, gated=False)


def test_what_is_watched_under_a_gate_is_not_a_number_off_it() -> None:
    def named(training: Any) -> Any:
        return control.every(2).call(ignore, ops.norm_squared(training.mean_grads).named("norm"))

    replay, rng = Replay(planned(named), size=2), np.random.default_rng(0)
    seen = [replay.step(*invented(rng, number=number, size=2)).watched[0] for number in (1, 2, 3, 4)]
    assert [bool(np.isfinite(one)) for one in seen] == [False, True, False, True]


def test_what_two_gates_need_is_computed_where_either_is_on() -> None:
    def root(training: Any) -> Signal:
        return ops.sqrt(training.mean_loss)

    plan = planned(
        lambda t: control.every(2).call(ignore, root(t)), lambda t: control.every(3).call(ignore, root(t) * 2)
    )
    (shared,) = [one for one in plan.after if any(isinstance(n, Map) and n.operation.name == "sqrt" for n in one.nodes)]
    assert len(shared.gates) == 2


def test_a_local_input_of_a_gated_collective_is_gated_before_the_sum_too() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, ops.all_reduce(ops.norm_squared(t.grads), "sum")))
    assert plan.piggybacked.floats(3) == 1
    assert operations(plan.before, gated=True) == ["norm_squared"]


def test_what_only_makes_riders_is_not_computed_again_afterwards() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, ops.all_reduce(ops.norm_squared(t.grads), "sum")))
    assert "norm_squared" not in operations(plan.after, gated=True) + operations(plan.after, gated=False)


def test_a_collective_of_what_is_known_after_is_a_message_inside_its_gate() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, late(t)))
    (message,) = [one for one in plan.after if one.message]
    assert message.gates == (plan.rules[0].gate,)
    assert (plan.piggybacked.floats(2), plan.messages_per_step) == (0, 0)


def test_such_a_collective_under_a_fold_is_counted_as_a_message_per_step() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, late(t).ema(0.5)))
    assert plan.messages_per_step == 1


def test_collectives_of_one_level_share_a_message_and_another_level_needs_its_own() -> None:
    def levels(training: Any) -> Any:
        first = late(training)
        beside = ops.all_gather(training.busy_seconds - training.mean_loss)
        second = ops.all_reduce(training.loss - first, "mean")
        return control.every(5).call(ignore, ops.max(beside), second)

    plan = planned(levels)
    floats = [one.message.floats(3) for one in plan.after if one.message]
    assert floats == [1 + 3, 1]


def test_every_node_is_computed_after_its_inputs_and_its_gates() -> None:
    plan = planned(
        lambda t: control.every(2).when(t.mean_loss > 1).call(ignore, late(t), monitor.throughput(t)),
        lambda t: control.every(3).call(ignore, ops.max(ops.all_gather(t.loss.ema(0.5))), late(t).ema(0.5).sampled(4)),
        gns_batch(max_peers=4).body,
    )
    known: set[Signal] = set()
    for segment in plan.before:
        known |= _checked(segment, known)
    known = set(plan.piggybacked.collectives)
    for segment in plan.after:
        known |= _checked(segment, known)
    assert set(plan.folds) <= known


def _checked(segment: Segment, known: set[Signal]) -> set[Signal]:
    """What a segment adds to what is known, having asserted that it only uses what is."""
    own: set[Signal] = set()
    for node in (*segment.gates, *segment.nodes, *(segment.message.collectives if segment.message else ())):
        if node in known | own:
            continue
        assert isinstance(node, (Source, Constant)) or all(one in known | own for one in node.inputs)
        assert not isinstance(node, Collective) or segment.message
        own.add(node)
    return own


def test_what_leaves_a_segment_is_what_others_read() -> None:
    plan = planned(lambda t: control.every(5).call(ignore, ops.sqrt(ops.sqrt(t.mean_loss))))
    (gated,) = [one for one in plan.after if one.gates]
    names = [one.operation.name for one in gated.outputs if isinstance(one, Map)]
    assert names.count("sqrt") == 1
