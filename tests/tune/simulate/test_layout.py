"""Fair shares, and the instances that hold them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.tune import Stage
from kungfu.tune.simulate.layout import Share, instances_for, share
from tests.tune.instances import MANY


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


@MANY
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
