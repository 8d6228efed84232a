"""Generated traces: seeded, sorted, of the wanted load and shape."""

from __future__ import annotations

import pytest

from kungfu.errors import UsageError
from kungfu_planning.schedule import SHAPES, generated
from kungfu_planning.schedule.job import arranged


@pytest.mark.parametrize("shape", SHAPES)
def test_a_seed_makes_the_trace_and_another_one_another(shape: str) -> None:
    trace = generated(shape, jobs=300, gpus=64, seed=3)
    assert trace == generated(shape, jobs=300, gpus=64, seed=3)
    assert trace != generated(shape, jobs=300, gpus=64, seed=4)
    assert len(arranged(trace, gpus=64)) == 300


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("load", [0.5, 1.5])
def test_jobs_ask_for_the_wanted_share_of_the_cluster(shape: str, load: float) -> None:
    trace = generated(shape, jobs=2000, gpus=64, load=load, seed=1)
    asked = sum(job.gpus * job.duration_s for job in trace)
    assert asked / (64 * trace[-1].submit_s) == pytest.approx(load, rel=0.15)


def test_philly_is_mostly_single_gpu_jobs_and_few_large_ones_do_most_of_the_work() -> None:
    sizes = sorted(
        (job.gpus * job.duration_s for job in generated("philly", jobs=5000, gpus=128, seed=0)), reverse=True
    )
    assert sum(job.gpus == 1 for job in generated("philly", jobs=5000, gpus=128, seed=0)) > 4500
    assert sum(sizes[:500]) > 0.7 * sum(sizes)


def test_no_job_asks_for_more_than_the_cluster_has() -> None:
    assert max(job.gpus for job in generated("itp", jobs=500, gpus=4)) <= 4


@pytest.mark.parametrize(
    "wrong", [{"jobs": 0}, {"jobs": 10**8}, {"gpus": 0}, {"load": 0.0}, {"load": float("inf")}, {"seed": -1}]
)
def test_values_outside_their_ranges_are_refused(wrong) -> None:
    with pytest.raises(UsageError, match="expected 1 to 10,000,000 jobs"):
        generated("itp", **{"jobs": 1, "gpus": 1, **wrong})
