"""The fused program: when it is one, what it leaves in the graph, and what it does to the folds' variables.

That it decides what the other interpreters decide is shown in ``tests/compiler/test_equivalence.py``.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu import control, monitor, native, ops
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.compiler.fused import fused
from kungfu.compiler.lower import Program, lower
from kungfu.native import builder
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy
from tests.compiler.cluster import as_tensors, invented, lone_peer, states
from tests.compiler.small import ignore, plan_showing


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
    _, sources = lone_peer()
    numbers = {name: value for name, value in sources.items() if not isinstance(value, list)}
    norms = {name: tf.constant(1.0) for name in program.plan.gradient_reductions}
    graph = tf.function(lambda: list(stepped(program, {**numbers, **norms}))).get_concrete_function().graph
    kinds = [one.type for one in graph.get_operations()]
    assert kinds.count("KungfuEvaluate") == 2
    arithmetic = {"AddV2", "Sub", "Mul", "RealDiv", "SelectV2", "IsFinite", "Greater", "ReadVariableOp", "If"}
    assert arithmetic.isdisjoint(kinds)


def test_the_graph_knows_every_state_so_that_a_warm_up_can_put_it_back() -> None:
    program = fused(lower(watched_plan()))
    _, sources = lone_peer()
    known = tf.function(lambda: list(stepped(program, sources))).get_concrete_function().variables
    assert {one.variable.ref() for one in program.variables} == {one.ref() for one in known}


def test_who_has_read_a_state_keeps_what_he_has_read() -> None:
    program, rng = fused(lower(watched_plan())), np.random.default_rng(0)
    for number in (1, 2, 3, 4):
        local, agreed = invented(rng, number=number, size=1)
        read = [one.variable.read_value() for one in program.variables]
        then = [one.numpy().copy() for one in read]
        stepped(program, as_tensors(local[0], rank=0, agreed=agreed, local=local))
        np.testing.assert_equal([one.numpy() for one in read], then)
        assert any(not np.array_equal(one, two, equal_nan=True) for one, two in zip(states(program), then, strict=True))


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
