"""One plan, two interpreters: TensorFlow, eager and traced, and NumPy agree on random policies and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kungfu.compiler import Plan, compile_policies
from kungfu.compiler.replay import Replay
from tests.compiler.cluster import (
    Cluster,
    assert_same,
    eager_cluster,
    invented,
    replayed_states,
    states,
    step,
    traced_cluster,
)
from tests.compiler.random_policy import Instruction, instructions, random_policy

SMALL_SIZES = st.lists(st.integers(1, 2), min_size=1, max_size=2)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
SEEDS = st.integers(0, 2**16)


def examples(number: int) -> settings:
    """So many random policies, however long one takes to trace."""
    return settings(max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)


def assert_equivalent(plan: Plan, *, sizes: list[int], steps: int, seed: int, clusters: Callable[..., Cluster]) -> None:
    """Plays a history of views; after the first, the peers begin with the states that the replay carries over."""
    rng = np.random.default_rng(seed)
    replay = Replay(plan, size=sizes[0])
    number = 0
    for size in sizes:
        replay.rescale(size)
        cluster = clusters(plan, size=size)
        for rank, program in enumerate(cluster.programs):
            if number == 0:
                assert_close(states(program), replayed_states(replay, rank=rank))
            for one, value in zip(program.variables, replayed_states(replay, rank=rank), strict=True):
                one.variable.assign(value)
        for _ in range(steps):
            number += 1
            local, agreed = invented(rng, number=number, size=size, pending=bool(rng.random() < 0.2))
            expected = replay.step(local, agreed)
            assert_same(step(cluster, local, agreed), expected)
            for rank, program in enumerate(cluster.programs):
                assert_close(states(program), replayed_states(replay, rank=rank))


def assert_close(values: list[Any], expected: list[Any]) -> None:
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@examples(30)
@given(program=instructions(at_least=3, at_most=12), sizes=SIZES, seed=SEEDS)
def test_small_random_policies_mean_the_same_eagerly_and_in_numpy(
    program: list[Instruction], sizes: list[int], seed: int
) -> None:
    plan = compile_policies([random_policy(program)])
    assert_equivalent(plan, sizes=sizes, steps=4, seed=seed, clusters=eager_cluster)


@pytest.mark.slow
@examples(15)
@given(
    program=instructions(at_least=15, at_most=30),
    sizes=st.lists(st.integers(1, 2), min_size=1, max_size=2),
    seed=st.integers(0, 2**16),
)
def test_larger_random_policies_mean_the_same_traced_and_in_numpy(
    program: list[Instruction], sizes: list[int], seed: int
) -> None:
    plan = compile_policies([random_policy(program)])
    assert_equivalent(plan, sizes=sizes, steps=12, seed=seed, clusters=traced_cluster)
