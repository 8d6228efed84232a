"""One plan, three interpreters: TensorFlow, the native op and NumPy agree on random policies and inputs.

The first two each at once and traced. Bytecode waits for no message, so it is met where all collectives ride.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kungfu.compiler import CompiledPolicies
from kungfu.compiler.lower import Program, fused, lower
from kungfu.compiler.replay import NumpyBackend, Replay
from tests.compiler import cluster
from tests.compiler.one_peer import Grid, Log, Witness, peer_of
from tests.compiler.random_policy import EXACT, RIDING, ROUGH, Instruction, instructions, random_plan

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
SEEDS = st.integers(0, 2**16)
GRIDS: st.SearchStrategy[Grid] = st.sampled_from(["dyadic", "real"])


def examples(number: int) -> settings:
    """So many random policies, however long one takes to trace."""
    return settings(max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)


def assert_equivalent(
    plan: CompiledPolicies, *, sizes: list[int], steps: int, seed: int, clusters: Callable[..., cluster.Cluster]
) -> None:
    """Plays a history of views; after the first, the peers begin with the states that the replay carries over."""
    rng = np.random.default_rng(seed)
    replay, peers = Replay(plan, size=sizes[0], backend=NumpyBackend), clusters(plan, size=max(sizes))
    number = 0
    for size in sizes:
        replay.rescale(size)
        if number == 0:
            assert_same_states(peers, replay)
        peers.restore(replay)
        for _ in range(steps):
            number += 1
            local, agreed = cluster.invented(rng, number=number, size=size, pending=bool(rng.random() < 0.2))
            expected = replay.step(local, agreed)
            cluster.assert_same(cluster.step(peers, local, agreed), expected)
            assert_same_states(peers, replay)


def assert_same_states(peers: cluster.Cluster, replay: Replay) -> None:
    for rank, program in enumerate(peers.programs[: replay.size]):
        for value, other in zip(cluster.states(program), cluster.replayed_states(replay, rank=rank), strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5)


# So many examples of the long histories; a soak asks for more.
EXAMPLES = int(os.environ.get("KUNGFU_SOAK_EXAMPLES", "4"))
STEPS = 50


def assert_histories_agree(
    plan: CompiledPolicies,
    *,
    sizes: list[int],
    seed: int,
    grid: Grid,
    made: Callable[[Program], Program] = lambda one: one,
) -> None:
    """Plays one peer of a cluster through changing views, traced and at once, beside the replay of all."""
    rng, log = np.random.default_rng(seed), Log(grid)
    replay = Replay(plan, size=sizes[0], backend=partial(Witness, log))
    peers = [peer_of(plan, log, is_traced=one, made=made) for one in (True, False)]
    for number in range(1, STEPS + 1):
        size = sizes[(number - 1) * len(sizes) // STEPS]
        if number == 1 or size != replay.size:
            replay.rescale(size)
            rank = int(rng.integers(size))
            for peer in peers:
                peer.become(replay, rank=rank)
        local, agreed = offered(rng, number=number, size=size, grid=grid)
        log.begin()
        expected = replay.step(local, agreed)
        sources = cluster.as_tensors(local[rank], rank=rank, agreed=agreed, local=local)
        for peer in peers:
            outcome = peer.run(sources)
            if log.fragile:
                peer.become(replay, rank=peer.rank)
            else:
                cluster.assert_same([outcome], expected, atol=1e-4)
                peer.assert_like(replay)


def offered(rng: np.random.Generator, *, number: int, size: int, grid: Grid) -> tuple[list[Any], dict[str, Any]]:
    """The sources of a step, those of all peers too: multiples of a quarter, or any numbers."""
    local, agreed = cluster.invented(rng, number=number, size=size, pending=bool(rng.random() < 0.2))
    (own,), _ = cluster.invented(rng, number=number, size=1)
    agreed |= {"mean_grads": own["grads"], "mean_loss": own["loss"], "total_samples": np.float32(2 * size)}
    if grid == "real":
        local, agreed = [roughened(one, rng) for one in local], roughened(agreed, rng)
    return local, agreed


def roughened(sources: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    def rough(value: Any) -> Any:
        if isinstance(value, list):
            return [rough(one) for one in value]
        if not isinstance(value, (np.floating, np.ndarray)):
            return value
        return (np.asarray(value) + rng.random(np.shape(value)) / 3).astype(np.float32)[()]

    return {name: rough(value) for name, value in sources.items()}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("makers", "grid"), [(EXACT, "dyadic"), (ROUGH, "real")], ids=["dyadic", "real"])
@examples(EXAMPLES)
@given(data=st.data(), sizes=SIZES, seed=SEEDS)
def test_random_policies_decide_the_same_eagerly_traced_and_in_numpy(
    makers: Any, grid: Grid, data: st.DataObject, sizes: list[int], seed: int
) -> None:
    """The policies decide the same exactly on a dyadic grid, and on any numbers wherever the margin is not tiny."""
    program = data.draw(instructions(at_least=3, at_most=30, makers=makers))
    assert_histories_agree(random_plan(program, makers=makers), sizes=sizes, seed=seed, grid=grid)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(EXAMPLES)
@given(program=instructions(at_least=3, at_most=30, makers=RIDING), sizes=SIZES, seed=SEEDS, grid=GRIDS)
def test_in_one_native_op_random_policies_decide_the_same(
    program: list[Instruction], sizes: list[int], seed: int, grid: Grid
) -> None:
    plan = random_plan(program, makers=RIDING)
    operations = lower(plan)
    assert fused(operations) is not operations
    assert_histories_agree(plan, sizes=sizes, seed=seed, grid=grid, made=fused)


@pytest.mark.slow
@examples(5)
@given(program=instructions(at_least=3, at_most=12, makers=EXACT), sizes=SIZES, seed=SEEDS)
def test_small_random_policies_mean_the_same_on_every_peer_of_a_real_cluster(
    program: list[Instruction], sizes: list[int], seed: int
) -> None:
    plan = random_plan(program, makers=EXACT)
    assert_equivalent(plan, sizes=sizes, steps=4, seed=seed, clusters=cluster.eager_cluster)
    # Peers that wait for each other inside a graph hold a thread of TensorFlow each: as many as there may be few of.
    assert_equivalent(plan, sizes=[min(size, 2) for size in sizes], steps=4, seed=seed, clusters=cluster.traced_cluster)
