"""Growth while an earlier end is worth more than it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError
from kungfu.policies import worth_the_cost
from kungfu.testing import ClusterModel, FiredRule, Start, run_policy

BATCH = 2520  # for every number of peers up to 10 a multiple of it
SAMPLES = 40_000 * BATCH


def diminishing(size: int) -> float:
    return BATCH * 10 * size / (1 + 0.15 * (size - 1))


def decisions(worth: Mapping[float, float], *, price: float, steps: int = 300) -> list[FiredRule]:
    made = worth_the_cost(
        worth, samples=SAMPLES, price_per_hour=price, max_peers=10, min_peers=2, keep="global_batch_size"
    )
    return list(run_policy(made, ClusterModel(diminishing, steps=steps, start=Start(global_batch_size=BATCH))))


def best(*, value_per_second: float, price: float) -> int:
    """The size beyond which a peer costs more than the time that it saves is worth, where each second counts alike."""
    net = {size: -(SAMPLES / diminishing(size)) * (value_per_second + size * price / 3600) for size in range(2, 11)}
    size = 2
    while size < 10 and net[size + 1] > net[size]:
        size += 1
    return size


@pytest.mark.slow
@pytest.mark.parametrize("price", [36.0, 120.0, 400.0, 1500.0])
def test_it_settles_where_one_more_peer_costs_more_than_it_saves(price: float) -> None:
    found = decisions({0: 2000.0, 4000: 0.0}, price=price)
    size = int(found[-1].value) if found else 2
    assert size == best(value_per_second=0.5, price=price)


def test_the_dearer_peers_are_the_fewer_are_worth_it() -> None:
    sizes = [best(value_per_second=0.5, price=price) for price in (36.0, 120.0, 400.0, 1500.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 2


@pytest.mark.slow
def test_where_the_worth_is_flat_it_adds_nobody_for_good() -> None:
    found = decisions({10_000: 100.0, 20_000: 0.0}, price=1.0)
    assert [int(one.value) for one in found] == [3, 2]  # one look at three peers, and back


def test_it_tells_the_time_and_the_speeds_by_which_it_decides() -> None:
    (first, *_) = decisions({0: 2000.0, 4000: 0.0}, price=36.0, steps=60)
    assert {"job_seconds", "throughput", "samples_done", "size", "target"} == set(first.inputs)


@pytest.mark.parametrize(
    "wrong",
    [{"worth": {}}, {"worth": {10: 1, 20: 2}}, {"worth": 3}, {"samples": 0}, {"price_per_hour": -1}],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    given = {"worth": {10: 1}, "samples": 10, "price_per_hour": 1, "max_peers": 4, **wrong}
    with pytest.raises(PolicyError, match="worth_the_cost"):
        compile_policies([worth_the_cost(given.pop("worth"), **given)])
