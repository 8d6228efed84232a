"""The TensorFlow program: traced once, in loops, with gates, states and messages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu import control, monitor, native, ops
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.compiler.lower import Program, fused, lower
from kungfu.compiler.replay import Replay
from kungfu.errors import InternalError
from kungfu.native import builder
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy, at_most
from tests.compiler import cluster
from tests.compiler.small import ignore, plan_of, plan_showing


def late(training: Any) -> Any:
    """Two levels of messages behind two gates, and a gathered vector."""
    gap = ops.all_reduce(training.loss - training.mean_loss, "sum")
    spread = ops.all_reduce(abs(training.loss - training.mean_loss + gap), "mean")
    wanted = ops.max(ops.all_gather(training.busy_seconds)) * 2
    return control.every(2).when(spread > 0.5).rescale(wanted), control.every(3).call(ignore, spread)


def assert_cluster_follows_replay(plan: CompiledPolicies, *, size: int) -> cluster.Cluster:
    peers, replay, rng = cluster.traced_cluster(plan, size=size), Replay(plan, size=size), np.random.default_rng(size)
    for number in range(1, 8):
        local, agreed = cluster.invented(rng, number=number, size=size)
        cluster.assert_same(cluster.step(peers, local, agreed), replay.step(local, agreed))
    return peers


@pytest.mark.parametrize("size", [1, 2])
def test_a_traced_cluster_exchanges_its_messages_in_the_same_order_on_all_peers(size: int) -> None:
    tags = assert_cluster_follows_replay(plan_of(late), size=size).meeting.tags
    assert all(one == tags[0] for one in tags)
    # The gates are on in steps 2, 3, 4, 6: in each of them one message a level, however many gates are on.
    assert len(tags[0]) == 2 * 4
    assert len(set(tags[0])) == 2


def test_a_program_is_traced_once_whatever_the_size() -> None:
    plan = compile_policies([at_most(gns_batch(max_peers=8), schedule({3: 4}))])
    program = lower(plan)
    piggybacked = tf.function(program.piggybacked)
    rng = np.random.default_rng(0)
    for number, size in enumerate([1, 2, 4, 3], start=1):
        local, agreed = cluster.invented(rng, number=number, size=size)
        piggybacked(cluster.as_tensors(local[0], rank=0, agreed=agreed, local=local))
    assert piggybacked.experimental_get_tracing_count() == 1


def test_a_program_runs_on_every_step_of_a_while_loop() -> None:
    plan = plan_showing(lambda t: t.mean_loss.ema(0.5), lambda t: t.step, every=2)
    looped, replay = lower(plan), Replay(plan, size=1)

    @tf.function
    def steps(count: tf.Tensor) -> tf.Tensor:
        fired = tf.constant(0)
        for number in tf.range(1, count + 1):
            loss = tf.cast(number, tf.float32)
            sources = {"step": number, "size": 1, "rank": 0, "change_due": False, "mean_loss": loss}
            outcome = looped.conclude(sources, looped.piggybacked(sources), lambda vectors, tag: vectors)
            fired += tf.reduce_sum(tf.cast(outcome.fired, tf.int32))
        return fired

    assert int(steps(tf.constant(6, tf.int64))) == 3
    for number in range(1, 7):
        replay.step([{}], {"step": number, "change_due": False, "mean_loss": float(number)})
    np.testing.assert_allclose(cluster.states(looped), cluster.replayed_states(replay, rank=0), rtol=1e-6)


def test_an_empty_plan_is_an_empty_program() -> None:
    program = lower(compile_policies([]))
    for run in (program.piggybacked, tf.function(program.piggybacked)):
        assert run({"size": tf.constant(2), "rank": tf.constant(0)}).shape == (0,)
    outcome = program.conclude({"size": 2, "rank": 0}, tf.zeros([0]), lambda vectors, tag: vectors)
    assert [one.shape for one in outcome] == [(0,), (0,), (0, 2), (0,), (0,), (0,), (0,), (0, 2)]
    dtypes = "bool float32 bool float32 float32 int64 int64 float32"
    assert [one.dtype.name for one in outcome] == dtypes.split()
    assert program.variables == []


def test_states_have_stable_distinct_names_and_say_who_shares_them() -> None:
    plan = plan_showing(monitor.throughput, lambda t: t.mean_loss.ema(0.5))
    first, second = lower(plan).variables, lower(plan).variables
    assert [one.name for one in first] == [one.name for one in second]
    assert len({one.name for one in first}) == len(first)
    effects = {("local", "reset"), ("agreed", "reset"), ("agreed", "keep")}
    assert {(one.placement, one.on_rescale) for one in first} == effects


def test_a_message_that_fails_leaves_every_state_as_it_was() -> None:
    plan = plan_showing(lambda t: t.mean_loss.ema(0.5), lambda t: ops.all_reduce(t.mean_loss, "sum"))
    program = lower(plan)
    _, sources = cluster.lone_peer()

    def broken(vectors: list[Any], tag: str) -> list[Any]:
        raise ConnectionError(tag)

    before = cluster.states(program)
    with pytest.raises(ConnectionError):
        program.conclude(sources, program.piggybacked(sources), broken)
    assert cluster.states(program) == before


def test_the_nan_of_one_peer_stays_in_its_own_entry_and_its_own_rider() -> None:
    def known(training: Any) -> Any:
        times = ops.all_gather(training.busy_seconds)
        return ops.sum(ops.where(ops.is_finite(times), times, 0.0))

    plan = plan_showing(
        known, lambda t: ops.all_reduce(t.samples, "sum"), lambda t: ops.all_reduce(t.busy_seconds, "mean")
    )
    local = [{"busy_seconds": np.float32(one), "samples": np.float32(2)} for one in (1.0, np.nan, 4.0)]
    peers = cluster.eager_cluster(plan, size=3)
    offered = [{**one, "grads": [], "loss": np.float32(0)} for one in local]
    agreed = {"step": 1, "change_due": False, "barrier_due": False}
    (outcome, *_) = cluster.step(peers, offered, agreed)
    np.testing.assert_array_equal(outcome.inputs, [5, 6, np.nan])
    cluster.assert_same([outcome], Replay(plan, size=3).step(local, agreed))


def test_a_source_that_the_step_does_not_offer_is_named() -> None:
    program = lower(compile_policies([schedule({1: 2})]))
    all_but_one = dict.fromkeys(program.plan.source_kinds.keys() - {"change_due"}, 1)
    with pytest.raises(InternalError, match="the step did not offer the source 'change_due' that its plan reads"):
        program.conclude(all_but_one, tf.zeros([0]), lambda vectors, tag: vectors)


def test_vectors_behind_a_gate_have_the_length_of_the_cluster_on_and_off_it() -> None:
    def watching(training: Any) -> Any:
        gaps = ops.all_gather(training.busy_seconds) - training.mean_loss
        return (
            control.every(2).call(ignore, ops.max(gaps)),
            control.every(3).call(ignore, ops.min(gaps), ops.median(gaps)),
        )

    assert_cluster_follows_replay(plan_of(watching), size=3)


# ---- fused: that it decides what the others decide is shown in test_equivalence.py -----------------------------------


def watching(training: Any) -> Any:
    """Folds of every kind of state, a gate, a mask, piggybacked collectives of both kinds."""
    slow = monitor.stragglers(training)
    speed, window = monitor.throughput(training), training.mean_loss.window(3)
    return control.every(2).when((training.mean_loss > 0).count() > 0).evict(slow), control.every(3).call(
        ignore, speed, window.max(), training.mean_loss.delta()
    )


def watched_plan() -> CompiledPolicies:
    return compile_policies([Policy("watching", watching), gns_batch(max_peers=4, sample_every=2)])


def no_messages(vectors: list[Any], tag: str) -> list[Any]:
    raise AssertionError(f"a fused program sent {tag}")


def stepped(program: Program, sources: Any) -> Any:
    return program.conclude(sources, program.piggybacked(sources), no_messages)


def test_all_that_is_no_norm_is_two_nodes() -> None:
    program = fused(lower(watched_plan()))
    _, sources = cluster.lone_peer()
    numbers = {name: value for name, value in sources.items() if not isinstance(value, list)}
    norms = {name: tf.constant(1.0) for name in program.plan.gradient_reductions}
    graph = tf.function(lambda: list(stepped(program, {**numbers, **norms}))).get_concrete_function().graph
    kinds = [one.type for one in graph.get_operations()]
    assert kinds.count("KungfuEvaluate") == 2
    arithmetic = {"AddV2", "Sub", "Mul", "RealDiv", "SelectV2", "IsFinite", "Greater", "ReadVariableOp", "If"}
    assert arithmetic.isdisjoint(kinds)


def test_the_graph_knows_every_state_so_that_a_warm_up_can_put_it_back() -> None:
    program = fused(lower(watched_plan()))
    _, sources = cluster.lone_peer()
    known = tf.function(lambda: list(stepped(program, sources))).get_concrete_function().variables
    assert {one.variable.ref() for one in program.variables} == {one.ref() for one in known}


def test_who_has_read_a_state_keeps_what_he_has_read() -> None:
    program, rng = fused(lower(watched_plan())), np.random.default_rng(0)
    for number in (1, 2, 3, 4):
        local, agreed = cluster.invented(rng, number=number, size=1)
        read = [one.variable.read_value() for one in program.variables]
        then = [one.numpy().copy() for one in read]
        stepped(program, cluster.as_tensors(local[0], rank=0, agreed=agreed, local=local))
        np.testing.assert_equal([one.numpy() for one in read], then)
        assert any(
            not np.array_equal(one, two, equal_nan=True) for one, two in zip(cluster.states(program), then, strict=True)
        )


def test_a_plan_without_rules_or_with_messages_of_its_own_stays_op_by_op() -> None:
    late = plan_showing(lambda t: ops.all_reduce(t.loss - t.mean_loss, "sum"), every=2)
    for plan in (compile_policies([]), late):
        program = lower(plan)
        assert fused(program) is program


def test_without_a_library_it_stays_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lower(compile_policies([schedule({1: 2})]))
    assert fused(program) is not program
    monkeypatch.setattr(builder, "_loaded", [])
    monkeypatch.setenv("KUNGFU_NATIVE_LIBRARY", "/nowhere/none.so")
    assert fused(program) is program


@pytest.mark.parametrize(
    "line", ["add.complex64 2 0 1", "swap 1 0", "skip", "constant float16 0 0x1p+0", "constant int64", "add.int64"]
)
def test_a_line_that_is_no_instruction_is_refused_by_its_words(line: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(f"no instruction of this library: {line}")):
        native.load().ops.kungfu_evaluate([], [], Rs=[], bytecode=f"states\ninputs\nresults\nkept\n{line}")


def test_a_listing_that_takes_or_gives_something_else_than_its_op_is_refused() -> None:
    for text, difference in (("inputs 0 1", "what they take"), ("inputs 0\nresults 0 0", "what they give")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"bytecode and its op differ in {difference}"):
            native.load().ops.kungfu_evaluate([], [tf.constant(1.0)], Rs=[], bytecode=text)
