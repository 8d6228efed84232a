"""Predicted time and cost: the table worked out by hand, a slow twin, and what must hold for any plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.tune import (
    Cloud,
    Dataset,
    Delays,
    Instance,
    Latency,
    ScalingCurve,
    Simulator,
    estimate,
    scaling,
    successive_halving,
)
from kungfu_planning.tune.estimation import Tenancy, sample, tenancies
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
    found, told = estimate(case[0], plan=case[1]), tell(case[0], plan=case[1])
    assert (found.seconds, found.dollars) == (pytest.approx(told.seconds), pytest.approx(told.dollars))


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


@pytest.mark.slow
@MANY
@given(planned(simulators=certain()))
def test_both_ways_of_paying_agree_exactly_when_nothing_idles(case: Case) -> None:
    simulator = _with(case[0], instance=replace(case[0].cloud.instance, minimum_s=0.0))
    told = tell(simulator, plan=case[1])
    by_function = estimate(_with(simulator, billing="function"), plan=case[1]).dollars
    by_instance = estimate(_with(simulator, billing="instance"), plan=case[1]).dollars
    idle = told.held_gpu_s - told.trained_gpu_s
    price = simulator.cloud.instance.dollars_per_s / simulator.cloud.instance.gpus
    assert by_instance - by_function == pytest.approx(idle * price, abs=1e-6 * by_instance)


def test_a_plan_whose_gpus_all_train_all_the_time_costs_the_same_either_way() -> None:
    simulator = Simulator(_by_hand().experiment, scaling({1: 10, 2: 6}), Cloud(Instance(2, 0.001, 0)))
    by_function = estimate(_with(simulator, billing="function"), plan=(4, 2, 2)).dollars
    assert by_function == pytest.approx(estimate(simulator, plan=(4, 2, 2)).dollars)
    assert (
        estimate(_with(simulator, billing="function"), plan=(4, 2, 1)).dollars
        < estimate(simulator, plan=(4, 2, 1)).dollars
    )


@pytest.mark.slow
@MANY
@given(planned(simulators=uncertain()), st.sampled_from((0.5, 2.0, 10.0)))
def test_the_bill_is_linear_in_the_price(case: Case, factor: float) -> None:
    free = _with(case[0], data=Dataset())
    instance = free.cloud.instance
    scaled = _with(free, instance=replace(instance, dollars_per_s=instance.dollars_per_s * factor))
    assert estimate(scaled, plan=case[1]).dollars == pytest.approx(factor * estimate(free, plan=case[1]).dollars)


@pytest.mark.slow
@MANY
@given(planned(simulators=uncertain()), st.integers(0, 300), st.integers(0, 300))
def test_a_longer_least_billed_time_never_lowers_the_bill(case: Case, minimum_s: int, more_s: int) -> None:
    instance = case[0].cloud.instance
    low, high = (
        estimate(_with(case[0], instance=replace(instance, minimum_s=float(each))), plan=case[1]).dollars
        for each in (minimum_s, minimum_s + more_s)
    )
    assert low <= high * (1 + 1e-12)


@pytest.mark.slow
@MANY
@given(planned(simulators=certain()))
def test_data_is_paid_once_for_every_instance_ever_provisioned(case: Case) -> None:
    simulator, plan = case
    instances = sample(simulator, plan=plan).instances
    provisioned = sum(max(0, now - before) for before, now in zip((0, *instances), instances, strict=False))
    without = estimate(_with(simulator, data=Dataset()), plan=plan).dollars
    paid = estimate(_with(simulator, data=Dataset(3.0, 0.5)), plan=plan).dollars - without
    assert paid == pytest.approx(provisioned * 1.5)


@pytest.mark.slow
@MANY
@given(planned(simulators=uncertain()), st.sampled_from(("scale", "init", "startup", "sync")), st.integers(0, 99))
def test_more_delay_never_ends_a_run_earlier(case: Case, name: str, more_s: int) -> None:
    # Queued trials are left out: with chance, a list schedule may gain from a delay (Graham's anomaly).
    simulator, plan = case
    plan = tuple(max(gpus, stage.trials) for gpus, stage in zip(plan, simulator.experiment.stages, strict=True))
    delays = simulator.cloud.delays
    latency = getattr(delays, name)
    slower = replace(delays, **{name: Latency(latency.mean_s + more_s, latency.sigma_s)})
    before, after = sample(simulator, plan=plan), sample(_with(simulator, delays=slower), plan=plan)
    assert (after.ends >= before.ends - 1e-6).all()


@pytest.mark.slow
@MANY
@given(planned(simulators=certain()), st.floats(1, 5))
def test_slower_training_never_ends_a_search_earlier(case: Case, factor: float) -> None:
    simulator, plan = case
    curve = simulator.scaling
    slower = replace(simulator, scaling=ScalingCurve(curve.gpus, tuple(each * factor for each in curve.seconds)))
    assert estimate(slower, plan=plan).seconds >= estimate(simulator, plan=plan).seconds * (1 - 1e-12)


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


def test_queued_trials_take_as_many_waves_as_it_needs() -> None:
    simulator = Simulator(successive_halving(10, least=3, most=3, eta=2), scaling({1: 2}), Cloud(Instance(4, 0.001)))
    assert [estimate(simulator, plan=(gpus,)).seconds for gpus in (1, 3, 4, 5, 10, 19)] == [60, 24, 18, 12, 6, 6]


def test_set_up_is_paid_and_the_providers_queue_is_not() -> None:
    job, curve = successive_halving(1, least=1, most=1, eta=2), scaling({1: 100})
    cloud = Cloud(Instance(1, 1.0, 0), Delays(scale=Latency(30), init=Latency(7)))
    found = estimate(Simulator(job, curve, cloud), plan=(1,))
    assert (found.seconds, found.dollars) == (137, 107)


def test_instances_that_wait_for_new_ones_are_paid_meanwhile() -> None:
    job = successive_halving(2, least=1, most=2, eta=2)
    cloud = Cloud(Instance(1, 1.0, 0), Delays(scale=Latency(30)))
    found = estimate(Simulator(job, scaling({1: 100, 2: 50}), cloud), plan=(1, 2))
    assert found.seconds == 30 + 200 + 30 + 50
    assert found.dollars == (200 + 30 + 50) + 50


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


def test_the_oldest_instances_go_first() -> None:
    assert tenancies([2, 5, 3, 0, 1]) == (Tenancy(0, 1, 2), Tenancy(1, 2, 3), Tenancy(4, 4, 1))


@MANY
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_every_stage_holds_as_many_instances_as_it_needs(instances: list[int]) -> None:
    groups = tenancies(instances)
    for stage, needed in enumerate(instances):
        assert sum(group.count for group in groups if group.first <= stage <= group.last) == needed


@MANY
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 90)), min_size=1, max_size=8), st.randoms())
def test_no_other_order_of_release_has_a_smaller_bill(stages: list[tuple[int, int]], chance: object) -> None:
    ends = [sum(seconds for _, seconds in stages[: index + 1]) for index in range(len(stages))]
    begins = [0, *ends]
    ours = sum(
        group.count * max(60, ends[group.last] - begins[group.first])
        for group in tenancies([count for count, _ in stages])
    )
    alive: list[int] = []
    theirs = 0
    for index, (needed, _) in enumerate(stages):
        chance.shuffle(alive)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
        while len(alive) > needed:
            theirs += max(60, begins[index] - alive.pop())
        alive += [begins[index]] * (needed - len(alive))
    theirs += sum(max(60, ends[-1] - begin) for begin in alive)
    assert ours <= theirs
