"""Training ends when its loss is no number any more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kungfu.compiler import compile_policies
from kungfu.policies import stop_on_nan
from kungfu.testing import ClusterModel, Start, run_policy
from tests.compiler.cluster import eager_cluster, invented, step


def stopped_at(loss_by_step: Callable[[int], float], **settings: Any) -> list[int]:
    model = ClusterModel({1: 100, 2: 200}, steps=60, start=Start(size=2), loss_by_step=loss_by_step)
    return [one.step for one in run_policy(stop_on_nan(**settings), model)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_training_ends_once_the_loss_has_not_been_finite_for_so_many_steps(value: float, steps: int) -> None:
    assert stopped_at(lambda step: 1.0 if step < 20 else value, steps=steps) == [20 + steps - 1]


def test_a_modelled_job_ends_by_its_gradients_which_are_finite_where_its_loss_is() -> None:
    assert stopped_at(lambda step: 1.0 if step < 20 else math.nan, watch="gradients") == [22]
    model = ClusterModel({1: 100}, steps=60, start=Start(size=1))
    assert run_policy(stop_on_nan(watch="gradients"), model) == ()  # nothing is said of its loss


@pytest.mark.parametrize(
    ("losses", "steps", "more", "first"),
    [
        ([math.nan], 1, {}, 1),  # of one step
        ([math.nan, math.nan, 1.0, math.nan, math.nan, math.nan], 3, {}, 6),  # the third step begins the count anew
        ([math.inf, -math.inf, math.nan, 1.0], 3, {}, 3),  # whatever it is instead of a number
        ([1.0, math.nan, math.nan] * 20, 3, {}, None),  # never in a row
        ([1.0, 1.0, 1.0], 1, {}, None),
        ([math.nan, math.nan], 3, {}, None),
        ([math.nan] * 4, 2, {"size": [1, 1, 1, 1]}, 2),  # alone
        ([math.nan] * 4, 3, {"size": [2, 2, 1, 1]}, 3),  # a rescale leaves the count
        ([math.nan] * 4, 2, {"pending": [True] * 4, "target_size": [3] * 4}, 2),  # it waits for nobody on the way
    ],
)
def test_it_counts_the_steps_in_a_row(
    losses: list[float], steps: int, more: dict[str, list[Any]], first: int | None
) -> None:
    fired = run_policy(stop_on_nan(steps=steps), {"mean_loss": losses, **more})
    assert next((one.step for one in fired), None) == first


def test_one_entry_of_the_agreed_gradient_is_enough() -> None:
    plan = compile_policies([stop_on_nan(steps=2, watch="gradients")])
    cluster, rng, fired = eager_cluster(plan, size=2), np.random.default_rng(3), []
    for number in range(1, 7):
        local, agreed = invented(rng, number=number, size=2)
        if number >= 4:
            local[1]["grads"][0].flat[-1] = np.nan
        fired.append([bool(one.fired[0]) for one in step(cluster, local, agreed)])
    assert fired == [[False] * 2] * 4 + [[True] * 2] * 2
