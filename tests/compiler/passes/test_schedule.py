"""Schedule: what runs when, what rides, and what is a message of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kungfu import control, monitor, ops
from kungfu.compiler import MessageLayout, Segment, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.policies import gns_batch
from kungfu.policy_definition import Policy
from kungfu.signal import Collective, Constant, Fold, Map, Signal, Source, TrainingSignals
from tests.compiler.cluster import invented
from tests.compiler.small import ignore, plan_of, plan_showing


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


def test_two_policies_with_one_monitor_pay_for_it_once() -> None:
    def watching(training: Any) -> Any:
        return control.every(7).call(ignore, monitor.gradient_noise_scale(training))

    plan = compile_policies([gns_batch(max_peers=8), Policy("watching", watching)])
    assert plan.piggybacked.floats(2) == 5
    # The averages and the count of an estimate, two averages of a monitor, two of the budget, and the last request.
    assert len(plan.folds) == 7


@pytest.mark.parametrize(
    ("signal", "every", "is_gated"),
    [
        (lambda t: ops.sqrt(t.mean_loss), 5, True),
        (lambda t: ops.sqrt(t.mean_loss).ema(0.1), 5, False),
        (lambda t: ops.sqrt(t.mean_loss).ema(0.1).sampled(5), 1, True),
        (lambda t: ops.sqrt(t.mean_loss).named("root"), 5, False),
    ],
    ids=["rule", "fold", "sampled fold", "watched"],
)
def test_a_node_is_gated_if_only_gated_rules_and_sampled_folds_need_it(signal: Any, every: int, is_gated: bool) -> None:
    plan = plan_showing(signal, every=every)
    assert ["sqrt" in operations(plan.after, gated=gated) for gated in (is_gated, not is_gated)] == [True, False]
    averages = [
        one for one in plan.after for node in one.nodes if isinstance(node, Fold) and node.recurrence.label == "ema"
    ]
    assert all(bool(one.gates) == is_gated for one in averages)


def test_a_name_costs_no_message_and_no_pass_over_the_gradients() -> None:
    norm = lambda t: ops.norm_squared(t.mean_grads).named("norm")  # noqa: E731
    plan = plan_showing(lambda t: late(t).named("late"), norm, every=5)
    assert [*plan.watched_signals] == ["late", "norm"]
    assert plan.messages_per_step == 0
    assert "norm_squared" in operations(plan.after, gated=True)
    assert "norm_squared" not in operations(plan.after, gated=False)


def test_what_is_watched_under_a_gate_is_not_a_number_off_it() -> None:
    plan = plan_showing(lambda t: ops.norm_squared(t.mean_grads).named("norm"), every=2)
    replay, rng = Replay(plan, size=2), np.random.default_rng(0)
    seen = [replay.step(*invented(rng, number=number, size=2)).watched[0] for number in (1, 2, 3, 4)]
    assert [bool(np.isfinite(one)) for one in seen] == [False, True, False, True]


def test_what_two_gates_need_is_computed_where_either_is_on() -> None:
    plan = plan_of(
        lambda t: control.every(2).call(ignore, ops.sqrt(t.mean_loss)),
        lambda t: control.every(3).call(ignore, ops.sqrt(t.mean_loss) * 2),
    )
    (shared,) = [one for one in plan.after if any(isinstance(n, Map) and n.operation.name == "sqrt" for n in one.nodes)]
    assert len(shared.gates) == 2


def test_a_local_input_of_a_gated_collective_is_gated_and_computed_once() -> None:
    plan = plan_showing(lambda t: ops.all_reduce(ops.norm_squared(t.grads), "sum"), every=5)
    assert plan.piggybacked.floats(3) == 1
    assert operations(plan.before, gated=True) == ["norm_squared"]
    assert "norm_squared" not in operations(plan.after, gated=True) + operations(plan.after, gated=False)


def test_a_collective_of_what_is_known_after_is_a_message_inside_its_gate() -> None:
    plan = plan_showing(late, every=5)
    (message,) = [one for one in plan.after if one.message]
    assert message.gates == (plan.rules[0].gate,)
    assert (plan.piggybacked.floats(2), plan.messages_per_step) == (0, 0)
    assert plan_showing(lambda t: late(t).ema(0.5), every=5).messages_per_step == 1, "a fold needs it in every step"


def test_collectives_of_one_level_share_a_message_and_another_level_needs_its_own() -> None:
    def levels(training: Any) -> Any:
        first = late(training)
        beside = ops.all_gather(training.busy_seconds - training.mean_loss)
        second = ops.all_reduce(training.loss - first, "mean")
        return control.every(5).call(ignore, ops.max(beside), second)

    plan = plan_of(levels)
    floats = [one.message.floats(3) for one in plan.after if one.message]
    assert floats == [1 + 3, 1]


def test_every_node_is_computed_after_its_inputs_and_its_gates() -> None:
    plan = plan_of(
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
    plan = plan_showing(lambda t: ops.sqrt(ops.sqrt(t.mean_loss)), every=5)
    (gated,) = [one for one in plan.after if one.gates]
    names = [one.operation.name for one in gated.outputs if isinstance(one, Map)]
    assert names.count("sqrt") == 1


def test_in_a_message_scalars_come_first_and_vectors_grow_with_the_cluster() -> None:
    training = TrainingSignals()
    total, gathered = ops.all_reduce(training.loss, "sum"), ops.all_gather(training.loss)
    mean, spread = ops.all_reduce(training.busy_seconds, "mean"), ops.all_reduce(gathered - training.loss, "sum")
    layout = MessageLayout.of((total, gathered, mean))
    assert layout.collectives == (total, mean, gathered)
    assert [layout.floats(size) for size in (1, 2, 5)] == [3, 4, 7]
    assert MessageLayout.of((spread,)).floats(3) == 3
    assert MessageLayout.of(()).floats(4) == 0
