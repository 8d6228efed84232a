"""The baseline of rigid trials."""

from __future__ import annotations

import pytest

from kungfu.tune import Cloud, Instance, Search, Simulator, best_naive, estimate, scaling, successive_halving


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
