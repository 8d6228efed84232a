"""Predicted time and cost: the table worked out by hand, a slow twin, and what must hold for any plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.tune import (
    Cloud,
    Instance,
    Simulator,
    estimate,
    scaling,
    successive_halving,
)
from kungfu_planning.tune.estimation import sample
from tests.planning.tune.instances import MANY, certain, planned, uncertain
from tests.planning.tune.twin import tell

Case = tuple[Simulator, tuple[int, ...]]


def _by_hand() -> Simulator:
    job = successive_halving(4, least=1, most=7, eta=2)
    return Simulator(job, scaling({1: 10, 2: 6, 3: 4.8, 4: 4.5}), Cloud(Instance(1, 0.001, 0)))


def _with(simulator: Simulator, **changed: object) -> Simulator:
    return replace(simulator, cloud=replace(simulator.cloud, **changed))


@pytest.mark.parametrize(
    ("plan", "seconds", "dollars"),
    [
        ((4, 4, 4), 40, 0.160),
        ((4, 4, 2), 46, 0.136),
        ((4, 2, 2), 54, 0.128),
        ((4, 4, 1), 62, 0.128),
        ((4, 2, 1), 70, 0.120),
        ((2, 4, 4), 50, 0.160),
        ((2, 2, 2), 64, 0.128),
    ],
)
def test_the_plans_worked_out_by_hand_take_and_cost_exactly_that(
    plan: tuple[int, ...], seconds: float, dollars: float
) -> None:
    found = estimate(_by_hand(), plan=plan)
    assert (found.seconds, found.dollars) == (pytest.approx(seconds, abs=1e-9), pytest.approx(dollars, abs=1e-12))


@pytest.mark.slow
@MANY
@given(planned(simulators=certain()))
def test_without_chance_time_and_cost_are_those_of_the_slow_twin(case: Case) -> None:
    found = estimate(case[0], plan=case[1])
    assert (found.seconds, found.dollars) == pytest.approx(tell(case[0], plan=case[1]))


@pytest.mark.slow
@MANY
@given(planned(simulators=uncertain()))
def test_the_same_seed_gives_the_same_answer_whatever_was_asked_before(case: Case) -> None:
    simulator, plan = case
    fresh = Simulator(simulator.experiment, simulator.scaling, simulator.cloud, simulator.samples, simulator.seed)
    estimate(fresh, plan=tuple(gpus + 1 for gpus in plan))
    assert estimate(fresh, plan=plan) == estimate(simulator, plan=plan)


@pytest.mark.slow
@MANY
@given(planned(simulators=st.one_of(certain(), uncertain())))
def test_paying_by_function_is_never_dearer_in_any_run(case: Case) -> None:
    by_function = sample(_with(case[0], billing="function"), plan=case[1]).dollars
    by_instance = sample(_with(case[0], billing="instance"), plan=case[1]).dollars
    assert (by_function <= by_instance * (1 + 1e-9)).all()


def test_more_samples_come_closer_as_one_over_their_root() -> None:
    def seen(samples: int, *, seed: int) -> float:
        job = successive_halving(8, least=4, most=28, eta=2)
        noisy = Simulator(job, scaling({1: 4}, sigma_s=8), Cloud(Instance(4, 0.001)), samples, seed)
        return estimate(noisy, plan=(8, 4, 2)).seconds

    def spread(samples: int) -> float:
        found = [seen(samples, seed=seed) for seed in range(60)]
        mean = sum(found) / len(found)
        return (sum((each - mean) ** 2 for each in found) / len(found)) ** 0.5

    assert spread(4) / spread(64) == pytest.approx(4, rel=0.4)


@pytest.mark.parametrize(
    ("plan", "message"), [((4, 2), "2 entries; the experiment has 3 stages"), ((4, 0, 1), "no GPU")]
)
def test_a_plan_that_does_not_fit_is_refused(plan: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        estimate(_by_hand(), plan=plan)


def test_a_simulation_without_samples_or_with_a_negative_seed_is_refused() -> None:
    simulator = _by_hand()
    with pytest.raises(UsageError, match="of 0 samples"):
        replace(simulator, samples=0)
    with pytest.raises(UsageError, match="seed is -1"):
        replace(simulator, seed=-1)


def test_more_luck_than_fits_into_memory_is_refused_only_where_any_is_drawn() -> None:
    simulator = replace(_by_hand(), samples=10**9)
    assert estimate(simulator, plan=(4, 2, 1)).seconds == pytest.approx(70)
    with pytest.raises(UsageError, match="4,000,000,000 durations in one stage, more than 10,000,000"):
        replace(simulator, scaling=scaling({1: 10}, sigma_s=1.0))
