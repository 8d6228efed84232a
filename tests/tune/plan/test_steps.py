"""The neighbours of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.tune import Cloud, Instance, Simulator, scaling, successive_halving
from kungfu.tune.plan.steps import neighbours, next_fair
from kungfu.tune.simulate.parts import instances
from tests.tune.instances import MANY


def _ladder(trials: int, *, gpus: int) -> list[int]:
    steps: list[int] = []
    now = next_fair(trials, gpus=gpus)
    while now is not None:
        steps.append(now)
        now = next_fair(trials, gpus=now)
    return steps


@pytest.mark.parametrize(
    ("trials", "gpus", "ladder"),
    [
        (32, 128, [96, 64, 32, 16, 8, 4, 2, 1]),
        (10, 24, [20, 10, 5, 2, 1]),
        (3, 24, [21, 18, 15, 12, 9, 6, 3, 1]),
        (1, 5, [4, 3, 2, 1]),
    ],
)
def test_the_shares_of_a_stage_are_its_multiples_and_divisors(trials: int, gpus: int, ladder: list[int]) -> None:
    assert _ladder(trials, gpus=gpus) == ladder


@MANY
@given(st.integers(1, 60), st.integers(1, 200))
def test_a_step_goes_to_the_largest_smaller_share_that_divides(trials: int, gpus: int) -> None:
    fair = [b for b in range(1, gpus) if b % trials == 0 or trials % b == 0]
    assert next_fair(trials, gpus=gpus) == (max(fair) if fair else None)


def _simulator(node: int) -> Simulator:
    return Simulator(
        successive_halving(32, least=1, most=50, eta=3), scaling({1: 9, 8: 3}), Cloud(Instance(node, 0.001))
    )


def test_steps_by_instance_also_go_to_the_first_share_that_needs_fewer() -> None:
    found = list(neighbours(_simulator(4), plan=(32, 20, 12, 8), steps="instance"))
    assert found == [(16, 20, 12, 8), (32, 10, 12, 8), (32, 20, 9, 8), (32, 20, 6, 8), (32, 20, 12, 7), (32, 20, 12, 4)]


def test_literal_steps_take_the_next_share_only() -> None:
    found = list(neighbours(_simulator(4), plan=(32, 20, 12, 8), steps="literal"))
    assert found == [(16, 20, 12, 8), (32, 10, 12, 8), (32, 20, 9, 8), (32, 20, 12, 7)]


@MANY
@given(st.tuples(*[st.integers(1, 80)] * 4), st.integers(1, 8), st.sampled_from(("counted", "placed")))
def test_every_stage_above_one_instance_has_a_neighbour_with_fewer(
    plan: tuple[int, ...], node: int, packing: str
) -> None:
    base = _simulator(node)
    simulator = replace(base, cloud=replace(base.cloud, packing=packing))
    found = list(neighbours(simulator, plan=plan, steps="instance"))
    for stage, gpus in enumerate(plan):
        held = instances(simulator, stage=stage, gpus=gpus)
        if held > 1:
            changed = [each for each in found if each[stage] != gpus]
            assert any(instances(simulator, stage=stage, gpus=each[stage]) < held for each in changed)
