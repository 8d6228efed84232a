"""The replay: a cluster in NumPy, whose sums are those of a left fold in rank order, or in the native library.

The native library decides what the evaluation of each peer by NumPy decides, for any policy.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.compiler import Outcome, compile_policies
from kungfu.compiler.replay import NumpyBackend, Replay
from kungfu.errors import UsageError
from kungfu.native import builder
from kungfu.policies import replace_stragglers
from kungfu.policy_definition import Policy
from tests.compiler.cluster import assert_same, invented
from tests.compiler.one_peer import TOLERANCE, Grid, Log, Witness
from tests.compiler.random_policy import ROUGH, Instruction, instructions, random_plan
from tests.compiler.small import plan_showing
from tests.compiler.test_equivalence import GRIDS, SEEDS, examples, roughened

CALM = {"step": 1, "pending": False}
SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=3)


def replay(*signals: Any, size: int) -> Replay:
    """A replay that shows the signals that these functions of training give."""
    return Replay(plan_showing(*signals), size=size)


def test_a_sum_is_the_left_fold_in_rank_order_in_float32() -> None:
    values = [np.float32(one) for one in (1e8, 3.0, -1e8, 0.25)]
    shown = replay(lambda t: ops.all_reduce(t.loss, "sum"), size=4).step([{"loss": one} for one in values], CALM).inputs
    assert shown[0] == ((values[0] + values[1]) + values[2]) + values[3]
    assert shown[0] != np.float32(sum(map(float, values)))


def test_a_mean_is_the_sum_over_the_size_and_a_gather_keeps_the_rank() -> None:
    made = replay(
        lambda t: ops.all_reduce(t.loss, "mean"),
        lambda t: ops.sum(ops.all_gather(t.loss) * ops.all_gather(t.rank)),
        size=3,
    )
    assert made.step([{"loss": one} for one in (1.0, 2.0, 6.0)], CALM).inputs.tolist() == [3.0, 14.0]


def test_agreed_sources_follow_from_local_ones_weighted_by_samples() -> None:
    made = replay(
        lambda t: t.total_samples,
        lambda t: t.mean_loss,
        lambda t: ops.norm_squared(t.mean_grads),
        lambda t: t.local_batch_size,
        size=2,
    )
    local = [
        {"samples": 3.0, "loss": 1.0, "grads": [np.array([4.0, 0.0])]},
        {"samples": 1.0, "loss": 5.0, "grads": [np.array([0.0, 4.0])]},
    ]
    assert made.step(local, {**CALM, "global_batch_size": 4}).inputs.tolist() == [4, 2, 9 + 1, 2]


def test_a_peer_without_samples_has_no_say_even_with_nan() -> None:
    made = replay(lambda t: t.mean_loss, lambda t: ops.norm_squared(t.mean_grads), size=2)
    local = [
        {"samples": 2.0, "loss": 1.5, "grads": [np.array([2.0])]},
        {"samples": 0.0, "loss": np.nan, "grads": [np.array([np.nan])]},
    ]
    assert made.step(local, CALM).inputs.tolist() == [1.5, 4]


def test_what_is_given_is_not_computed() -> None:
    made = replay(lambda t: t.mean_loss, size=1)
    assert made.step([{"loss": 1.0, "samples": 1.0}], {**CALM, "mean_loss": 7.0}).inputs.tolist() == [7]


@pytest.mark.parametrize(
    ("signal", "local", "message"),
    [
        (lambda t: ops.all_reduce(t.loss, "sum"), {}, "the local source 'loss', and it was not given for every peer"),
        (lambda t: t.learning_rate, {}, "the agreed source 'learning_rate', and it was not given"),
        (lambda t: t.mean_loss, {"samples": 1.0}, "reads 'mean_loss': give it, or 'loss' to compute it from"),
        (lambda t: t.total_samples, {}, "reads 'total_samples': give it, or 'samples' to compute it from"),
    ],
)
def test_a_missing_source_is_named(signal: Any, local: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replay(signal, size=1).step([local], CALM)


def test_sources_of_another_number_of_peers_are_refused() -> None:
    with pytest.raises(UsageError, match="a cluster of 2 peers got local sources of 1; call rescale first"):
        replay(lambda t: t.step, size=2).step([{}], CALM)


def test_folds_are_kept_reset_or_started_as_they_declare_when_the_cluster_changes() -> None:
    def total(x: Any, on_rescale: str) -> Any:
        return ops.fold(lambda a, value: a + value, 0.0, x, on_rescale=on_rescale)

    made = replay(
        lambda t: total(t.mean_loss, "keep"),
        lambda t: total(t.mean_loss, "reset"),
        lambda t: ops.sum(ops.all_gather(total(t.loss, "keep"))),
        size=2,
    )

    def shown(*losses: float) -> list[float]:
        return list(made.step([{"loss": one} for one in losses], {**CALM, "mean_loss": 1.0}).inputs)

    assert shown(10.0, 20.0) == [1, 1, 30]
    made.rescale(3)
    assert shown(0.0, 0.0, 5.0) == [2, 1, 35]
    assert shown(0.0, 0.0, 5.0) == [3, 2, 40]
    made.rescale(1)
    assert shown(1.0) == [4, 1, 11]


def test_a_step_that_fails_leaves_the_states_as_they_were() -> None:
    made = replay(lambda t: t.mean_loss.ema(0.5), lambda t: ops.all_reduce(t.loss, "sum"), size=1)
    before = made.states
    with pytest.raises(UsageError):
        made.step([{}], {**CALM, "mean_loss": 1.0})
    assert made.states is before


# ---- the native library ----------------------------------------------------------------------------------------------


def assert_identical(outcome: Outcome, expected: Outcome) -> None:
    for name, one, other in zip(Outcome._fields, outcome, expected, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name, strict=True)


def assert_same_states(replay: Replay, other: Replay) -> None:
    for fold, fields in replay.states.items():
        for one, expected in zip(fields, other.states[fold], strict=True):
            for mine, theirs in zip(one, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, **TOLERANCE)


def hard_numbers(sources: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Some of the numbers are no finite ones, and some zeros are negative."""
    odd = [np.float32(one) for one in (np.nan, np.inf, -np.inf, -0.0)]
    return {
        name: rng.choice(odd) if isinstance(value, np.floating) and name != "samples" and rng.random() < 0.05 else value
        for name, value in sources.items()
    }


@pytest.mark.slow
@examples(20)
@given(program=instructions(at_least=3, at_most=25, makers=ROUGH), sizes=SIZES, seed=SEEDS, grid=GRIDS)
def test_random_policies_decide_the_same_as_peer_by_peer_in_numpy(
    program: list[Instruction], sizes: list[int], seed: int, grid: Grid
) -> None:
    plan = random_plan(program)
    rng, log = np.random.default_rng(seed), Log(grid)
    quick, slow = Replay(plan, size=sizes[0]), Replay(plan, size=sizes[0], backend=partial(Witness, log))
    for number in range(1, 21):
        size = sizes[(number - 1) * len(sizes) // 20]
        if size != quick.size:
            quick.rescale(size)
            slow.rescale(size)
        local, agreed = invented(rng, number=number, size=size, pending=bool(rng.random() < 0.2))
        if grid == "real":
            local, agreed = [hard_numbers(roughened(one, rng), rng) for one in local], roughened(agreed, rng)
        log.begin()
        expected, outcome = slow.step(local, agreed), quick.step(local, agreed)
        # Where a margin is tiny both may be right; they go on alike.
        if log.fragile:
            quick.states = slow.states
        else:
            assert_same([outcome], expected, atol=1e-4)
            assert_same_states(quick, slow)


def test_states_that_are_set_are_those_of_the_next_step() -> None:
    plan = compile_policies([replace_stragglers(every=2)])
    first, second = Replay(plan, size=3), Replay(plan, size=3)
    agreed = {"step": 1, "pending": False, "max_size": 4, "min_size": 1, "refused_size": 0}
    for step in range(1, 6):
        first.step([{"busy_seconds": one, "samples": 2.0} for one in (1.0, 2.0, 3.0 + step)], {**agreed, "step": step})
    second.states = first.states
    assert_same_states(second, first)
    for one in (first, second):
        one.rescale(2)
        one.rescale(3)
    local = [{"busy_seconds": one, "samples": 2.0} for one in (1.0, 2.0, 3.0)]
    assert_identical(first.step(local, {**agreed, "step": 6}), second.step(local, {**agreed, "step": 6}))


def test_without_a_compiler_a_replay_is_numpys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builder, "_loaded_state", [])
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("KUNGFU_CACHE", str(tmp_path))
    plan, rng = compile_policies([replace_stragglers(every=2)]), np.random.default_rng(0)
    given, oracle = Replay(plan, size=3), Replay(plan, size=3, backend=NumpyBackend)
    for number in range(1, 6):
        local, agreed = invented(rng, number=number, size=3)
        assert_identical(given.step(local, agreed), oracle.step(local, agreed))


def test_a_size_that_no_memory_holds_is_an_error_and_no_end_of_the_process() -> None:
    counting = Policy("counting", lambda t: control.always().rescale(ops.count(ops.all_gather(t.step_seconds) > 0)))
    agreed = {"min_size": 1, "max_size": 4, "refused_size": 0, "pending": False, "step": 1}
    with pytest.raises(UsageError, match="needs more memory than there is"):
        Replay(compile_policies([counting]), size=2).step([{"step_seconds": 1.0}] * 2, {**agreed, "size": 10**14})
