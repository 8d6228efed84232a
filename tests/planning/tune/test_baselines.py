"""The static and the naive baseline."""

from __future__ import annotations

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
    Search,
    Simulator,
    best_naive,
    best_static,
    estimate,
    scaling,
    successive_halving,
)
from tests.planning.tune.instances import certain, uncertain

LIMITED = Search(max_gpus=48)


def _statics(simulator: Simulator, *, most: int) -> list:
    return [estimate(simulator, plan=(size,) * len(simulator.experiment.stages)) for size in range(1, most + 1)]


@pytest.mark.slow
@given(st.one_of(certain(), uncertain()), st.floats(0.3, 3))
def test_the_best_static_size_is_what_trying_every_size_finds(simulator: Simulator, slack: float) -> None:
    every = _statics(simulator, most=48)
    deadline_s = slack * sum(found.seconds for found in every) / len(every)
    met = [found for found in every if found.seconds <= deadline_s]
    best = best_static(simulator, deadline_s=deadline_s, search=LIMITED)
    if best is None:
        assert not met
    else:
        assert best.dollars == pytest.approx(min(found.dollars for found in met))
        assert best.seconds <= deadline_s * (1 + 1e-9)


def test_more_sizes_than_can_be_judged_are_refused_at_once() -> None:
    for trials, curve in ((8, {1: 9.0, 10**8: 1.0}), (10**6, {1: 9.0})):
        simulator = Simulator(
            successive_halving(trials, least=1, most=3, eta=2), scaling(curve), Cloud(Instance(4, 0.001))
        )
        with pytest.raises(UsageError, match="cluster sizes to judge, more than 200,000: give a smaller max_gpus"):
            best_static(simulator, deadline_s=60, search=Search())
        found = best_static(simulator, deadline_s=1e12, search=Search(max_gpus=16))
        assert found is not None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_gpus": 0}, "at most 0 GPUs"),
        ({"multiples": ()}, r"warm starts at \(\)"),
        ({"multiples": (0, 1)}, r"warm starts at \(0, 1\)"),
        ({"least_saving": 0.0}, "save more than 0.0"),
    ],
)
def test_settings_of_a_search_that_cannot_work_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Search(**changed)  # type: ignore[arg-type]  # the table's values differ in type


def test_gpus_that_no_trial_can_use_may_still_spare_a_wait_for_instances() -> None:
    delays = Delays(Latency(8.0), Latency(0.0), Latency(0.0), Latency(0.0))
    cloud = Cloud(Instance(2, 0.049, 60.0), delays, Dataset(0, 0.0), "instance", "placed")
    experiment = successive_halving(11, least=1, most=5, eta=2)
    simulator = Simulator(experiment, scaling({1: 5.0}, sigma_s=0.0), cloud)
    best = best_static(simulator, deadline_s=35.0, search=LIMITED)
    assert best is not None
    assert (set(best.gpus), best.seconds) == ({35}, 33.0)
    assert best_static(simulator, deadline_s=32.0, search=LIMITED) is None


def _simulator() -> Simulator:
    job = successive_halving(4, least=1, most=7, eta=2)
    return Simulator(job, scaling({1: 10, 2: 6, 4: 4.5}), Cloud(Instance(1, 0.001, 0)))


@pytest.mark.parametrize(("deadline_s", "plan"), [(70, (4, 2, 1)), (69, (8, 4, 2)), (33, (16, 8, 4))])
def test_it_is_the_cheapest_number_of_gpus_that_all_trials_have_in_all_stages(
    deadline_s: float, plan: tuple[int, ...]
) -> None:
    simulator = _simulator()
    found = best_naive(simulator, deadline_s=deadline_s, search=Search())
    assert found == estimate(simulator, plan=plan)


def test_there_is_none_where_the_limit_or_the_deadline_is_too_tight() -> None:
    assert best_naive(_simulator(), deadline_s=30, search=Search()) is None
    assert best_naive(_simulator(), deadline_s=69, search=Search(max_gpus=7)) is None
