"""Predicted time and cost: by hand, beside a slow twin and the graph of a run, and what must hold for any plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from kungfu_planning.tune.baselines import Search, judged_s, meets
from kungfu_planning.tune.estimation import AllocationPlan, completion_s, outlook, sample
from kungfu_planning.tune.sharing import assign, share
from kungfu_planning.tune.simulator import (
    instance_setups,
    provider_wait,
    stage_instances,
    stage_sync,
    trial_times,
)
from tests.planning.tune.instances import certain, planned, uncertain

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
@given(planned(simulators=certain()))
def test_without_chance_time_and_cost_are_those_of_the_slow_twin(case: Case) -> None:
    found = estimate(case[0], plan=case[1])
    assert (found.seconds, found.dollars) == pytest.approx(tell(case[0], plan=case[1]))


def tell(simulator: Simulator, *, plan: tuple[int, ...]) -> tuple[float, float]:
    """Seconds and dollars without chance: one clock, one list of instances, nothing shared or cached."""
    cloud, node = simulator.cloud, simulator.cloud.instance.gpus
    now, provisioned, trained = 0.0, 0, 0.0
    alive: list[float] = []
    lives: list[float] = []
    for stage, gpus in zip(simulator.experiment.stages, plan, strict=True):
        needed = _needed(stage.trials, gpus=gpus, node=node, packing=cloud.packing)
        while len(alive) > needed:
            lives.append(now - alive.pop(0))
        if needed > len(alive):
            now += cloud.delays.scale.mean_s
            provisioned += needed - len(alive)
            alive += [now] * (needed - len(alive))
            now += cloud.delays.init.mean_s
        each = max(1, gpus // stage.trials)
        seconds = cloud.delays.startup.mean_s + stage.iterations * simulator.scaling.iteration(each).mean_s
        waves = 1 if gpus >= stage.trials else -(-stage.trials // gpus)
        now += waves * seconds + cloud.delays.sync.mean_s
        trained += stage.trials * each * seconds
    lives += [now - start for start in alive]
    held = sum(max(life, cloud.instance.minimum_s) for life in lives) * cloud.instance.dollars_per_s
    used = trained * cloud.instance.dollars_per_s / node
    data = provisioned * cloud.data.gigabytes * cloud.data.dollars_per_gb
    dollars = data + (held if cloud.billing == "instance" else used)
    return now, dollars


def _needed(trials: int, *, gpus: int, node: int, packing: str) -> int:
    if packing == "counted":
        return -(-gpus // node)
    each, running = (gpus // trials, trials) if gpus >= trials else (1, gpus)
    return -(-running // (node // each)) if each < node else running * -(-each // node)


@pytest.mark.slow
@given(planned(simulators=st.one_of(certain(), uncertain())))
def test_the_longest_path_is_the_end_of_the_last_stage_in_every_run(case: Case) -> None:
    simulator, plan = case
    ends = sample(simulator, plan=plan).ends[-1]
    for run in range(simulator.runs):
        assert longest_path_s(build_graph(simulator, plan=plan, run=run)) == pytest.approx(ends[run])


@dataclass(frozen=True)
class Task:
    """It takes ``seconds``, and starts when all of ``after``, indices of tasks before it, have ended."""

    seconds: float
    after: Sequence[int]


def build_graph(simulator: Simulator, *, plan: AllocationPlan, run: int) -> list[Task]:
    """The graph of ``plan`` in drawn run ``run``, stage by stage from the frontier of the one before.

    A stage that needs more instances than the stage before begins with the wait for the provider and with one set-up
    per missing instance; then comes the training of each trial, after another trial's where GPUs are short; then a
    synchronization after all of them.

    Reference:
        Misra et al., 2021, figure 7.
    """
    tasks: list[Task] = []

    def add(seconds: float, after: Sequence[int]) -> int:
        tasks.append(Task(seconds, after))
        return len(tasks) - 1

    frontier: list[int] = []
    held = 0
    for stage, gpus in enumerate(plan):
        needed = stage_instances(simulator, stage=stage, gpus=gpus)
        if needed > held:
            scaled = add(provider_wait(simulator, stage=stage)[run], frontier)
            setups = instance_setups(simulator, stage=stage, count=needed - held)[:, run]
            frontier = [add(seconds, [scaled]) for seconds in setups]
        shared, trained = share(simulator.experiment.stages[stage], gpus=gpus), list[int]()
        times = trial_times(simulator, stage=stage, gpus_per_trial=shared.gpus_per_trial)[:, run].tolist()
        for seconds, before in zip(times, assign(times, chains=shared.at_once), strict=True):
            trained.append(add(seconds, frontier if before < 0 else [trained[before]]))
        frontier = [add(stage_sync(simulator, stage=stage)[run], trained)]
        held = needed
    return tasks


def longest_path_s(tasks: Sequence[Task]) -> float:
    """When the last task ends, in seconds: each starts at the latest end of those it depends on."""
    ends: list[float] = []
    for task in tasks:
        ends.append(task.seconds + max((ends[before] for before in task.after), default=0.0))
    return max(ends)


@pytest.mark.slow
@given(planned(simulators=uncertain()))
def test_the_same_seed_gives_the_same_answer_whatever_was_asked_before(case: Case) -> None:
    simulator, plan = case
    fresh = Simulator(simulator.experiment, simulator.scaling, simulator.cloud, simulator.samples, simulator.seed)
    estimate(fresh, plan=tuple(gpus + 1 for gpus in plan))
    assert estimate(fresh, plan=plan) == estimate(simulator, plan=plan)


@pytest.mark.slow
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


def test_a_search_too_large_for_all_fresh_runs_is_planned_with_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kungfu_planning.tune.simulator._MOST_DRAWN", 1000)
    simulator = replace(_by_hand(), scaling=scaling({1: 10}, sigma_s=1.0))
    assert outlook(simulator, plan=(4, 2, 1), first_seed=1).seconds.shape == (5, 250)
    assert completion_s(simulator, plan=(4, 2, 1), runs=2500).shape == (250,)
    search = Search(confidence=0.9)
    found = estimate(simulator, plan=(4, 2, 1))
    assert meets(simulator, found=found, deadline_s=2 * found.seconds, search=search)


def test_one_sample_is_no_certainty() -> None:
    simulator = replace(_by_hand(), scaling=scaling({1: 10}, sigma_s=10.0), samples=1)
    assert outlook(simulator, plan=(4, 2, 1), first_seed=1).seconds.shape == (5, 400)
    found, search = estimate(simulator, plan=(4, 2, 1)), Search(confidence=0.9)
    judged = judged_s(simulator, found=found, search=search)
    assert judged == judged_s(replace(simulator, samples=20), found=found, search=search)
    assert not meets(simulator, found=replace(found, seconds=1.0), deadline_s=judged * 0.8, search=search)
