"""Growth while an earlier end is worth more than it costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import kungfu as kf
from kungfu.errors import PolicyError
from kungfu.policies import utility
from kungfu.testing import ClusterModel, FiredRule, Start, run_on_model, run_policy
from kungfu.worth import Worth
from tests.policies.test_autoscale import forty_steps_each

BATCH = 2520  # for every number of peers up to 10 a multiple of it
SAMPLES = 40_000 * BATCH
LINEAR = kf.worth.linear(2000.0, zero_at_s=4000)


def diminishing(size: int) -> float:
    return BATCH * 10 * size / (1 + 0.15 * (size - 1))


def decisions(worth: Worth, *, price: float, steps: int = 500, **given: Any) -> list[FiredRule]:
    made = utility(
        worth=worth,
        price_per_hour=price,
        **{"samples": SAMPLES, "max_peers": 10, "min_peers": 2, "keep": "global_batch_size", **given},
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
    found = decisions(LINEAR, price=price)
    size = int(found[-1].value) if found else 2
    assert size == best(value_per_second=0.5, price=price)


@pytest.mark.slow
def test_peers_that_cost_nothing_are_added_as_long_as_they_save_time() -> None:
    assert int(decisions(LINEAR, price=0.0)[-1].value) == 10


@pytest.mark.slow
def test_where_the_worth_is_flat_it_adds_nobody_for_good() -> None:
    found = decisions(kf.worth.points({10_000: 100.0, 20_000: 0.0}), price=1.0)
    assert [int(one.value) for one in found] == [3, 2]  # one look at three peers, and back


@pytest.mark.slow
def test_a_deadline_is_reached_over_the_bridge_from_the_first_estimate() -> None:
    """A deadline is reached over the bridge from the first estimate and not gone beyond."""
    # 2 peers take 2300 s, 3 take 1733, 4 take 1450, 5 take 1280, 6 take 1167, 7 take 1086.
    found = decisions(kf.worth.steps({1200: 1000.0}), price=10.0)
    assert int(found[-1].value) == 6
    sizes = [int(one.value) for one in found]
    assert min(sizes) > 2


@pytest.mark.slow
def test_with_fewer_samples_to_go_a_deadline_is_kept_with_fewer_peers() -> None:
    # In steps that are 20 times as long: 4 peers take 1450 s for all of it, 5 take 1280.
    start = Start(size=2, max_size=10, global_batch_size=BATCH, job_samples=SAMPLES // 20)
    model = ClusterModel(lambda size: diminishing(size) / 20, steps=4000, start=start)
    made = utility(
        worth=kf.worth.steps({1400: 1000.0}), price_per_hour=10.0, max_peers=10, min_peers=2, keep="global_batch_size"
    )
    run = run_on_model(made, model)
    *walk, last = [(one.step, one.size) for one in run.changes]
    assert (walk[-1][1], last[1]) == (5, 4)
    assert walk[-1][0] < 200 < 1000 < last[0] < 1050, "half of the 2000 steps were done"
    assert 1280 < run.seconds < 1400


@pytest.mark.slow
def test_it_tells_the_time_and_the_samples_by_which_it_decides() -> None:
    first, second, *_ = decisions(LINEAR, price=36.0, steps=60)
    assert list(first.inputs)[:4] == ["remaining_samples", "job_seconds", "gain_from_peers", "gain_to_peers"]
    assert not {"settled", "pending"} & set(first.inputs)
    shown = second.inputs
    assert (shown["gain_from_peers"], shown["gain_to_peers"], shown["target"]) == (2, 3, 4)
    for when, size in (("before", 2), ("after", 3)):
        seconds = shown["remaining_samples"] / diminishing(size)
        assert shown[f"end_{when}_s"] == pytest.approx(shown["job_seconds"] + seconds, rel=1e-3)
        assert shown[f"cost_{when}"] == pytest.approx(size * seconds * 36.0 / 3600, rel=1e-3)
    worth = 0.5 * (shown["end_before_s"] - shown["end_after_s"])
    assert shown["gain"] == pytest.approx(worth - (shown["cost_after"] - shown["cost_before"]), rel=1e-3)
    assert shown["gain_error"] >= 0


# ---- the samples of the job ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_samples_are_those_of_the_loader_unless_they_are_said() -> None:
    model = ClusterModel(diminishing, steps=60, start=Start(global_batch_size=BATCH, job_samples=SAMPLES))
    made = utility(worth=LINEAR, price_per_hour=36.0, max_peers=10)
    (first, *_) = run_policy(made, model)
    assert first.inputs["remaining_samples"] == pytest.approx(SAMPLES - (first.step - 1) * BATCH, rel=1e-6)


@pytest.mark.slow
def test_too_few_samples_hold_still_and_are_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = decisions(LINEAR, price=0.0, samples=30 * BATCH, steps=300)
    rescales = [one for one in found if one.rule == "utility"]
    assert all(one.step <= 30 for one in rescales)
    assert [(one.rule, one.step) for one in found if one not in rescales] == [("utility_2", 31)]
    assert "75600 samples are done and the job was said to have 75600" in capsys.readouterr().err


def test_a_job_of_which_nobody_knows_the_samples_is_refused_after_its_first_step() -> None:
    made = utility(worth=LINEAR, price_per_hour=36.0, max_peers=10)
    with pytest.raises(PolicyError, match=r"policy 'utility' \(.*\): how many samples .* utility\(samples=") as error:
        run_policy(made, ClusterModel(diminishing, steps=5))
    assert error.value.policy == "utility"
    path, _, line = error.value.origin.rpartition(":")
    assert path == __file__
    assert "utility(worth=LINEAR" in Path(path).read_text().splitlines()[int(line) - 1]


def test_in_a_combination_it_names_its_own_line_too() -> None:
    made = kf.first(utility(worth=LINEAR, price_per_hour=36.0, max_peers=10), kf.policies.schedule({99: 2}))
    with pytest.raises(PolicyError, match=r"^policy 'utility' \(.*test_utility\.py:\d+\): how many samples") as error:
        run_policy(made, ClusterModel(diminishing, steps=5))
    assert error.value.policy == "utility"


# ---- decisions on throughputs that were computed by hand ------------------------------------------------------------


def decided(throughputs: dict[int, float], history: list[int], **given: Any) -> list[int]:
    """The last target of a job that has 40 steps at each of these sizes, with 1000 s of samples to go for one peer."""
    arrays = forty_steps_each(throughputs, history, max_size=4)
    size = arrays["size"]
    arrays |= {"clock_seconds": [[0.0] * n for n in size], "samples_done": [0] * len(size), **given.pop("arrays", {})}
    made = utility(**{"worth": kf.worth.linear(100, zero_at_s=1000), "price_per_hour": 36.0, "max_peers": 4,
                      "samples": 100_000, **given})  # fmt: skip
    found = [one for one in run_policy(made, arrays) if one.rule == "utility"]
    return [int(one.value) for one in found if one.step == len(size)]


NO_TIMES = {"step_seconds": [[math.nan]] * 40, "busy_seconds": [[math.nan]] * 40}


@pytest.mark.parametrize(
    ("throughputs", "given", "expected"),
    [
        ({1: 100.0}, {}, [2]),  # alone it begins by adding a peer
        # 1000 s and 10 at one peer; with two, 600 s and 12: 40 more for 2, and at 100 times the price for 200.
        ({1: 100.0, 2: 100_000 / 600}, {}, [3]),
        ({1: 100.0, 2: 100_000 / 600}, {"price_per_hour": 3600.0}, [1]),
        # Equal throughputs only cost, and gain nothing at a price of 0.
        ({1: 100.0, 2: 100.0}, {}, [1]),
        ({1: 100.0, 2: 100.0}, {"price_per_hour": 0.0}, [1]),
        ({1: 100.0}, {"arrays": NO_TIMES}, []),  # without a throughput
    ],
)
def test_a_second_saved_is_compared_with_its_price(
    throughputs: dict[int, float], given: dict[str, Any], expected: list[int]
) -> None:
    assert decided(throughputs, [*throughputs], **given) == expected


def test_two_that_ask_for_a_size_need_a_rule_between_them() -> None:
    model = ClusterModel(diminishing, steps=40, start=Start(global_batch_size=BATCH))
    both = kf.first(
        utility(worth=LINEAR, samples=SAMPLES, price_per_hour=1.0, max_peers=4), kf.policies.autoscale(max_peers=4)
    )
    assert run_on_model(both, model).size == 3
