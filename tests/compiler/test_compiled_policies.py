"""Gradient reductions: what a plan makes of the gradients, computed once, and enough for a replay without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kungfu import ops
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.compiler.compiled_policies import GradientReduction
from kungfu.compiler.lower import lower
from kungfu.compiler.replay import Replay
from kungfu.errors import UsageError
from kungfu.policies import gns_batch, schedule
from kungfu.signal import TrainingSignals
from tests.compiler.cluster import invented, lone_peer
from tests.compiler.small import plan_showing


def gated_norm(every: int) -> CompiledPolicies:
    """A plan that needs the norm of the mean gradients in some steps only."""
    return plan_showing(lambda training: ops.norm_squared(training.mean_grads), every=every)


def without_gradients(source: Mapping[str, Any], **numbers: Any) -> dict[str, Any]:
    return {**{name: value for name, value in source.items() if name not in ("grads", "mean_grads")}, **numbers}


def test_it_names_what_is_made_of_gradients_and_nothing_else() -> None:
    plan = compile_policies([gns_batch(max_peers=4)])
    assert sorted(plan.gradient_reductions) == ["norm_squared(grads)", "norm_squared(mean_grads)"]
    assert [plan.gradient_reductions[name].placement for name in sorted(plan.gradient_reductions)] == [
        "local",
        "agreed",
    ]
    assert all(one.gates == () for one in plan.gradient_reductions.values())
    assert compile_policies([schedule({3: 2})]).gradient_reductions == {}
    assert GradientReduction.name_of(TrainingSignals().loss + 1) == ""


def test_a_program_takes_its_frontier_for_given() -> None:
    plan = compile_policies([gns_batch(max_peers=4)])
    program = lower(plan)
    local, sources = lone_peer(seed=1)
    found = program.gradient_reductions(sources)
    assert float(found["norm_squared(grads)"]) == sum(float(np.sum(leaf**2)) for leaf in local["grads"])
    assert program.gradient_reductions({**sources, **found}) == {}, "what is there is not computed again"
    invented_norm = {**sources, "grads": [], "norm_squared(grads)": tf.constant(7.0)}
    assert 7.0 in program.piggybacked(invented_norm).numpy()
    np.testing.assert_array_equal(program.piggybacked({**sources, **found}), program.piggybacked(sources))


def test_off_its_gates_it_is_not_computed() -> None:
    program = lower(gated_norm(3))
    found = []
    for number in (2, 3):
        local, sources = lone_peer(number=number, seed=1)
        found.append(float(program.gradient_reductions(sources)["norm_squared(mean_grads)"]))
    assert found[0] == -np.inf
    assert found[1] == sum(float(np.sum(leaf**2)) for leaf in local["grads"])


def test_a_replay_from_numbers_is_that_from_gradients() -> None:
    plan = compile_policies([gns_batch(max_peers=8, every=2, decay=0.5)])
    whole, numbers, rng = Replay(plan, size=3), Replay(plan, size=3), np.random.default_rng(5)
    for number in range(1, 9):
        local, agreed = invented(rng, number=number, size=3)
        mean = [np.mean([one["grads"][leaf] for one in local], axis=0, dtype=np.float32) for leaf in range(2)]
        together = np.float32(sum(np.sum(np.square(leaf)) for leaf in mean))
        norms = [np.float32(sum(np.sum(np.square(leaf)) for leaf in one["grads"])) for one in local]
        recorded = [
            without_gradients(one, **{"norm_squared(grads)": norm}) for one, norm in zip(local, norms, strict=True)
        ]
        expected = whole.step(local, {**agreed, "mean_grads": mean})
        given = numbers.step(recorded, {**agreed, "norm_squared(mean_grads)": together})
        for part, other in zip(given, expected, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-5)


def test_gradients_that_were_not_given_are_missed_only_in_the_steps_that_need_them() -> None:
    replay = Replay(gated_norm(3), size=1)
    local, agreed = invented(np.random.default_rng(1), number=2, size=1)
    replay.step([without_gradients(local[0])], agreed)
    with pytest.raises(UsageError, match=r"the plan reads 'mean_grads': give it, or 'grads' to compute it from"):
        replay.step([without_gradients(local[0])], {**agreed, "step": 3})
