"""The planner: what it promises for any search, and how close it comes to the optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.tune import (
    Cloud,
    Delays,
    Estimate,
    Instance,
    Latency,
    Search,
    Simulator,
    amdahl,
    best_naive,
    best_static,
    estimate,
    fastest,
    plan_deadlines,
    plan_elastic,
    scaling,
    successive_halving,
)
from kungfu_planning.tune.planner import neighbours, next_fair
from kungfu_planning.tune.simulator import stage_instances
from tests.planning.tune.instances import certain, uncertain

SEARCHES = st.sampled_from((Search(), Search(max_gpus=32), Search(steps="literal"), Search(multiples=(2, 5))))
SLACK = st.floats(1, 4)


def _dearest_allowed(simulator: Simulator, *, deadline_s: float, search: Search) -> float:
    baselines = [find(simulator, deadline_s=deadline_s, search=search) for find in (best_static, best_naive)]
    return min((found.dollars for found in baselines if found is not None), default=float("inf"))


@pytest.mark.slow
@given(st.one_of(certain(), uncertain()), SLACK, SEARCHES)
def test_a_plan_meets_its_deadline_and_is_never_dearer_than_a_baseline(
    simulator: Simulator, slack: float, search: Search
) -> None:
    deadline_s = slack * fastest(simulator, search=search).seconds
    planned = plan_elastic(simulator, deadline_s=deadline_s, search=search)
    assert planned.seconds <= deadline_s * (1 + 1e-9)
    assert planned.dollars <= _dearest_allowed(simulator, deadline_s=deadline_s, search=search)
    assert planned == estimate(simulator, plan=planned.gpus)
    assert search.max_gpus is None or max(planned.gpus) <= search.max_gpus


@pytest.mark.slow
@given(certain(packing="counted"), st.floats(0.2, 2))
def test_a_deadline_is_refused_exactly_when_the_largest_static_cluster_misses_it(
    simulator: Simulator, slack: float
) -> None:
    search = Search(max_gpus=24)
    reachable = estimate(simulator, plan=(24,) * len(simulator.experiment.stages))
    deadline_s = slack * reachable.seconds
    if reachable.seconds <= deadline_s:
        plan_elastic(simulator, deadline_s=deadline_s, search=search)
        return
    with pytest.raises(UsageError, match=f"the fastest takes {reachable.seconds:.1f} s, with at most 24 GPUs"):
        plan_elastic(simulator, deadline_s=deadline_s, search=search)


@pytest.mark.slow
@given(certain(trials=8), st.lists(SLACK, min_size=2, max_size=4, unique=True))
def test_planned_one_after_another_a_looser_deadline_is_never_dearer(simulator: Simulator, slacks: list[float]) -> None:
    search = Search(max_gpus=16)
    least_s = fastest(simulator, search=search).seconds
    found = plan_deadlines(simulator, deadlines_s=[slack * least_s for slack in slacks], search=search)
    dollars = [each.dollars for each in found.values()]
    assert list(found) == sorted(found)
    assert dollars == sorted(dollars, reverse=True)
    assert all(each.seconds <= deadline_s * (1 + 1e-9) for deadline_s, each in found.items())


@pytest.mark.slow
@given(certain(), st.integers(10, 99), SLACK)
def test_with_linear_scaling_and_no_delays_static_and_elastic_cost_the_same(
    simulator: Simulator, seconds: int, slack: float
) -> None:
    cloud = replace(simulator.cloud, delays=Delays(), data=replace(simulator.cloud.data, gigabytes=0.0))
    tied = Simulator(simulator.experiment, scaling({1: float(seconds), 8: seconds / 8}), cloud)
    work_s = seconds * sum(stage.trials * stage.iterations for stage in simulator.experiment.stages)
    least = work_s * cloud.instance.dollars_per_s / cloud.instance.gpus
    search = Search(max_gpus=8)
    deadline_s = slack * fastest(tied, search=search).seconds
    by_function = replace(tied, cloud=replace(cloud, billing="function"))
    static = best_static(by_function, deadline_s=deadline_s, search=search)
    assert static is not None
    assert static.dollars == pytest.approx(least)
    assert plan_elastic(by_function, deadline_s=deadline_s, search=search).dollars == pytest.approx(least)
    assert plan_elastic(tied, deadline_s=deadline_s, search=search).dollars >= least * (1 - 1e-9)


def _small(chance: Random) -> tuple[Simulator, float, int]:
    trials, least = chance.randint(2, 8), chance.randint(1, 3)
    job = successive_halving(trials, least=least, most=least * chance.randint(3, 9), eta=chance.randint(2, 4))
    seconds = [chance.randint(40, 400) / 4]
    for _ in range(3):
        seconds.append(seconds[-1] * chance.choice((0.5, 0.6, 0.75, 0.9)))
    delays = Delays(Latency(chance.choice((0, 15))), Latency(chance.choice((0, 15))))
    cloud = Cloud(Instance(chance.choice((1, 2, 4)), 0.001, chance.choice((0, 60))), delays)
    simulator = Simulator(job, scaling(dict(zip((1, 2, 4, 8), seconds, strict=True))), cloud)
    most = 32 if len(job.stages) < 3 else 16
    return simulator, chance.uniform(1.05, 4) * fastest(simulator, search=Search(max_gpus=most)).seconds, most


def _optimum(simulator: Simulator, *, deadline_s: float, most: int) -> Estimate:
    """The cheapest of all plans; of sizes with the same shares and instances one stands for all."""
    sizes = []
    for stage, work in enumerate(simulator.experiment.stages):
        kinds = {}
        for gpus in range(most, 0, -1):
            speed = min(gpus // work.trials, simulator.scaling.widest)
            kinds[min(gpus, work.trials), speed, stage_instances(simulator, stage=stage, gpus=gpus)] = gpus
        sizes.append(list(kinds.values()))
    found = (estimate(simulator, plan=plan) for plan in product(*sizes))
    return min((each for each in found if each.seconds <= deadline_s), key=lambda each: each.dollars)


@pytest.mark.slow
def test_on_small_searches_the_plan_is_usually_the_optimum_and_never_far_from_it() -> None:
    gaps = []
    chance = Random(20)
    while len(gaps) < 60:
        simulator, deadline_s, most = _small(chance)
        if len(simulator.experiment.stages) > 3:
            continue
        optimum = _optimum(simulator, deadline_s=deadline_s, most=most)
        planned = plan_elastic(simulator, deadline_s=deadline_s, search=Search(max_gpus=most))
        gaps.append(planned.dollars / optimum.dollars - 1)
    assert min(gaps) >= -1e-9
    assert sum(gap < 1e-9 for gap in gaps) >= 0.9 * len(gaps)
    assert sum(gaps) / len(gaps) <= 0.005
    assert max(gaps) <= 0.15


def _plateau() -> Simulator:
    """The papers' large job: 512 models, four GPUs an instance, one second of set-up."""
    curve = amdahl(12.0, serial=0.08, widest=64)
    cloud = Cloud(Instance(4, 12.24 / 3600), Delays(init=Latency(1)))
    return Simulator(successive_halving(512, least=4, most=4096, eta=2), curve, cloud)


@pytest.mark.slow
def test_steps_by_instance_leave_the_plateau_that_literal_steps_end_on() -> None:
    simulator, deadline_s = _plateau(), 90 * 60.0
    static = best_static(simulator, deadline_s=deadline_s, search=Search())
    assert static is not None
    by_instance = plan_elastic(simulator, deadline_s=deadline_s)
    literal = plan_elastic(simulator, deadline_s=deadline_s, search=Search(steps="literal"))
    assert static.dollars / by_instance.dollars > 2.3
    assert literal.dollars > 1.5 * by_instance.dollars


def test_a_search_that_slows_down_on_too_many_gpus_is_planned() -> None:
    """A search whose trials slow down on too many GPUs is planned where no static cluster serves."""
    job = successive_halving(4, least=10, most=30, eta=4)
    curve = scaling({1: 10, 2: 30, 4: 30, 8: 30})
    simulator = Simulator(job, curve, Cloud(Instance(1, 0.001, 0)))
    deadline_s = 4 * 100.0 - 1
    assert best_static(simulator, deadline_s=deadline_s, search=Search()) is None
    assert plan_elastic(simulator, deadline_s=deadline_s).gpus == (4, 1)


def test_a_looser_deadline_is_saved_by_the_plan_for_a_tighter_one() -> None:
    """A looser deadline that misleads the descent is saved by the plan for a tighter one."""
    job = successive_halving(9, least=1, most=8, eta=3)
    cloud = Cloud(Instance(2, 0.001, 0), Delays(init=Latency(15)))
    simulator = Simulator(job, amdahl(20.0, serial=0.2, widest=8), cloud)
    tight, misled = (plan_elastic(simulator, deadline_s=deadline_s) for deadline_s in (140, 179))
    assert misled.dollars > tight.dollars
    assert plan_deadlines(simulator, deadlines_s=[179, 140])[179].dollars <= tight.dollars


@given(st.integers(1, 60), st.integers(1, 200))
def test_a_step_goes_to_the_largest_smaller_share_that_divides(trials: int, gpus: int) -> None:
    fair = [b for b in range(1, gpus) if b % trials == 0 or trials % b == 0]
    assert next_fair(trials, gpus=gpus) == (max(fair) if fair else None)


def _simulator(node: int) -> Simulator:
    return Simulator(
        successive_halving(32, least=1, most=50, eta=3), scaling({1: 9, 8: 3}), Cloud(Instance(node, 0.001))
    )


def test_literal_steps_take_the_next_share_and_others_also_the_first_that_saves() -> None:
    plan, literal = (32, 20, 12, 8), [(16, 20, 12, 8), (32, 10, 12, 8), (32, 20, 9, 8), (32, 20, 12, 7)]
    assert list(neighbours(_simulator(4), plan=plan, steps="literal")) == literal
    by_instance = [*literal[:3], (32, 20, 6, 8), literal[3], (32, 20, 12, 4)]
    assert list(neighbours(_simulator(4), plan=plan, steps="instance")) == by_instance


@given(st.tuples(*[st.integers(1, 80)] * 4), st.integers(1, 8), st.sampled_from(("counted", "placed")))
def test_every_stage_above_one_instance_has_a_neighbour_with_fewer(
    plan: tuple[int, ...], node: int, packing: str
) -> None:
    base = _simulator(node)
    simulator = replace(base, cloud=replace(base.cloud, packing=packing))
    found = list(neighbours(simulator, plan=plan, steps="instance"))
    for stage, gpus in enumerate(plan):
        held = stage_instances(simulator, stage=stage, gpus=gpus)
        if held > 1:
            changed = [each for each in found if each[stage] != gpus]
            assert any(stage_instances(simulator, stage=stage, gpus=each[stage]) < held for each in changed)


@pytest.mark.parametrize("steps", ["instance", "literal"])
def test_no_trial_has_fewer_gpus_than_were_measured_where_only_those_count(steps) -> None:
    curve = replace(scaling({2: 6, 4: 4}), measured_only=True)
    simulator = Simulator(successive_halving(4, least=1, most=7, eta=2), curve, Cloud(Instance(1, 0.001, 0)))
    search = Search(steps=steps)
    for deadline_s in (fastest(simulator, search=search).seconds, 50, 1000):
        planned = plan_elastic(simulator, deadline_s=deadline_s, search=search, known=[(16, 16, 16)])
        trials = [stage.trials for stage in simulator.experiment.stages]
        assert all(gpus >= 2 * count for gpus, count in zip(planned.gpus, trials, strict=True))
    assert best_naive(simulator, deadline_s=1000, search=search) == estimate(simulator, plan=(8, 4, 2))
    with pytest.raises(UsageError, match="a trial needs 2 GPUs, the fewest measured, so 4 trials need 8, and a stage"):
        plan_elastic(simulator, deadline_s=1000, search=Search(max_gpus=7))
