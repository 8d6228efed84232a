"""How trials share GPUs and queue for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu_planning.tune import Stage
from kungfu_planning.tune.sharing import Share, assign, instances_for, share, slowest_chain


@pytest.mark.parametrize("packing", ["counted", "placed"])
def test_the_papers_schedule_needs_eight_five_three_and_two_instances(packing: str) -> None:
    trials, gpus = (32, 10, 3, 1), (32, 20, 12, 8)
    found = [
        instances_for(Stage(n, 1), gpus=a, node=4, packing=packing)  # type: ignore[arg-type]  # a parameter is a str
        for n, a in zip(trials, gpus, strict=True)
    ]
    assert found == [8, 5, 3, 2]


@pytest.mark.parametrize(
    ("gpus", "expected"), [(3, Share(1, 3)), (10, Share(1, 10)), (19, Share(1, 10)), (20, Share(2, 10))]
)
def test_what_does_not_divide_among_ten_trials_stays_idle(gpus: int, expected: Share) -> None:
    assert share(Stage(10, 1), gpus=gpus) == expected


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 8))
def test_keeping_trials_whole_takes_as_many_nodes_as_a_first_fit_does(trials: int, gpus: int, node: int) -> None:
    shared = share(Stage(trials, 1), gpus=gpus)
    free: list[int] = []
    for _ in range(shared.at_once):
        needed = shared.gpus_per_trial
        if needed >= node:
            free += [0] * -(-needed // node)
        elif fitting := [index for index, room in enumerate(free) if room >= needed]:
            free[fitting[0]] -= needed
        else:
            free.append(node - needed)
    assert instances_for(Stage(trials, 1), gpus=gpus, node=node, packing="placed") == len(free)


DURATIONS = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=20)


def test_each_trial_goes_to_the_first_chain_that_is_free() -> None:
    assert assign([5, 2, 1, 9, 1], chains=2) == [-1, -1, 1, 2, 0]
    assert slowest_chain(np.array([[5.0], [2], [1], [9], [1]]), chains=2) == pytest.approx(12)


@given(DURATIONS, st.integers(1, 25))
def test_no_chain_idles_while_a_trial_waits(durations: list[float], chains: int) -> None:
    found = float(slowest_chain(np.array(durations)[:, None], chains=chains)[0])
    share = sum(durations) / chains
    assert max(max(durations), share) <= found <= share + max(durations) * (1 - 1 / chains) + 1e-9


@given(DURATIONS, st.integers(1, 25))
def test_the_chains_as_assigned_end_when_the_slowest_is_said_to(durations: list[float], chains: int) -> None:
    ends: list[float] = []
    for duration, before in zip(durations, assign(durations, chains=chains), strict=True):
        ends.append(duration + (ends[before] if before >= 0 else 0.0))
    assert max(ends) == pytest.approx(slowest_chain(np.array(durations)[:, None], chains=chains)[0])
