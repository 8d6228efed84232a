"""Growth while each added peer contributes enough."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError
from kungfu.policies import scaling_schedule
from kungfu.testing import ClusterModel, Start, run_policy


def saturating(size: int) -> float:
    """Samples / s that grow ever more slowly: from 1 peer on, one more has the efficiency 0.62, 0.52, 0.45, 0.39."""
    return 100 * size / (1 + 0.235 * (size - 1))


def efficiency(size: int, unit: int = 1) -> float:
    """The paper's s of `unit` more peers."""
    return (saturating(size + unit) - saturating(size)) / unit / (saturating(size) / size)


def sizes(*, start: int = 2, steps: int = 400, max_size: int = 16, **settings: Any) -> list[int]:
    even = Start(size=start, max_size=max_size, global_batch_size=8 * start)
    model = ClusterModel(saturating, steps=steps, start=even)
    return [int(one.value) for one in run_policy(scaling_schedule(**settings), model)]


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.24, 0.34, 0.42, 0.6])
def test_it_settles_at_the_last_size_whose_peers_were_efficient(threshold: float) -> None:
    last = max(size for size in range(2, 13) if efficiency(size - 1) > threshold)
    assert sizes(max_peers=12, efficiency=threshold)[-1] == last


@pytest.mark.slow
def test_it_adds_as_many_at_once_as_it_was_told() -> None:
    assert efficiency(4, unit=2) > 0.3 > efficiency(6, unit=2)
    assert sizes(max_peers=12, efficiency=0.3, unit=2) == [4, 6, 8, 6]


@pytest.mark.slow
def test_a_cluster_that_is_too_large_shrinks() -> None:
    found = sizes(start=8, max_peers=8, efficiency=0.4)
    assert found[-1] == max(size for size in range(2, 9) if efficiency(size - 1) > 0.4) == 4
    assert min(found) == 3


@pytest.mark.slow
def test_it_keeps_to_the_limits_of_the_job() -> None:
    assert sizes(max_peers=12, efficiency=0.0, max_size=4)[-1] == 4


def test_it_waits_before_it_judges_a_size() -> None:
    model = ClusterModel(saturating, steps=130)
    steps = [one.step for one in run_policy(scaling_schedule(max_peers=12, efficiency=0, every=40), model)]
    assert steps == [40, 80, 120]


@pytest.mark.parametrize("wrong", [{"efficiency": -0.5}, {"efficiency": 2}, {"unit": 0}, {"min_peers": 9}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="takes"):
        compile_policies([scaling_schedule(**{"max_peers": 8, **wrong})])
