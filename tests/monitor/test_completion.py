"""When a job will be complete, and what it has cost so far."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.compiler import compile_policies
from kungfu.errors import PolicyError
from tests.monitor.test_throughput_by_size import shown


def test_the_samples_to_go_are_those_of_the_loader_unless_they_are_said() -> None:
    arrays = {"samples_done": [0, 40, 100, 120], "job_samples": [100] * 4}
    np.testing.assert_equal(shown(kf.monitor.remaining_samples, **arrays), [100, 60, math.nan, math.nan])
    said = shown(lambda training: kf.monitor.remaining_samples(training, samples=110), **arrays)
    np.testing.assert_equal(said, [110, 70, 10, math.nan])
    assert math.isnan(shown(kf.monitor.remaining_samples, samples_done=[0], job_samples=[0])[0])


def test_the_seconds_to_go_are_the_samples_over_the_throughput() -> None:
    arrays = {
        "size": [2, 2],
        "samples": [[5.0, 5.0]] * 2,
        "step_seconds": [[math.nan] * 2, [0.5, 0.5]],
        "samples_done": [0, 10],
        "job_samples": [100, 100],
    }
    np.testing.assert_allclose(shown(kf.monitor.remaining_seconds, **arrays), [math.nan, 90 / 20], rtol=1e-6)


def test_the_cost_is_that_of_each_step_s_peers_for_as_long_as_it_took() -> None:
    arrays = {"size": [1, 1, 2], "clock_seconds": [[0.0], [10.0], [30.0, 0.0]]}
    found = shown(lambda training: kf.monitor.cost_so_far(training, price_per_hour=360.0), **arrays)
    np.testing.assert_allclose(found, [0, 1.0, 1.0 + 2 * 20 * 0.1], rtol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda training: kf.monitor.remaining_samples(training, samples=0),
        lambda training: kf.monitor.remaining_seconds(training, samples=True),
        lambda training: kf.monitor.cost_so_far(training, price_per_hour=-1),
        lambda training: kf.monitor.cost_so_far(training, price_per_hour=math.nan),
        lambda training: kf.monitor.scaling_efficiency(training, 4, unit=0),
        lambda training: kf.monitor.throughput_by_size(training, 4, margin=math.nan).moves,
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: Any) -> None:
    @kf.policy
    def watching(training: Any) -> Any:
        return kf.control.always().call(lambda control, value: None, wrong(training))

    with pytest.raises(PolicyError, match="takes"):
        compile_policies([watching()])
