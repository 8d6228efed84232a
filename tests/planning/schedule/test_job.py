"""Jobs: what is refused, how limits are set, and in which order they are taken."""

from __future__ import annotations

import pytest

from kungfu.errors import UsageError
from kungfu_planning.schedule import ClusterJob, inelastic, with_limits
from kungfu_planning.schedule.job import arranged


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"submit_s": -1.0}, "job a: submitted at -1.0 s"),
        ({"submit_s": float("nan")}, "submitted at nan s"),
        ({"duration_s": 0.0}, "runs for 0.0 s"),
        ({"submit_s": 1.6e12}, r"submitted at 1600000000000.0 s; must be a time from 0 to 1e\+10 s"),
        ({"duration_s": float("inf")}, "runs for inf s"),
        ({"duration_s": float("nan")}, "runs for nan s"),
        ({"duration_s": 1e308}, r"runs for 1e\+308 s"),
        ({"duration_s": 1e-320}, "a duration must be above 0: 0.001 s to"),
        ({"gpus": 0}, "asks for 0 GPUs"),
        ({"min_gpus": 3}, "min 3, asked 2, max None"),
        ({"min_gpus": 0}, "min 0, asked 2"),
        ({"max_gpus": 1}, "min 1, asked 2, max 1"),
    ],
)
def test_a_job_outside_its_ranges_is_refused(wrong, says) -> None:
    with pytest.raises(UsageError, match=says):
        ClusterJob(**{"name": "a", "submit_s": 0.0, "gpus": 2, "duration_s": 1.0, **wrong})


def test_an_inelastic_job_has_one_size() -> None:
    job = inelastic(ClusterJob("a", 0, 6, 1.0))
    assert (job.min_gpus, job.gpus, job.max_gpus) == (6, 6, 6)


def test_limits_are_shares_of_the_request_rounded_down_to_at_least_one() -> None:
    limits = [
        (job.min_gpus, job.max_gpus)
        for job in with_limits([ClusterJob("a", 0, 1, 1.0), ClusterJob("b", 0, 7, 1.0)], min_share=0.25, max_share=2.5)
    ]
    assert limits == [(1, 2), (1, 17)]
    for low, high in ((1.5, 4), (float("nan"), 4), (0.5, float("inf")), (0.5, 0.9)):
        with pytest.raises(UsageError, match=f"shares {low} and {high}"):
            with_limits([], min_share=low, max_share=high)


def test_simultaneous_jobs_are_taken_by_number_and_then_by_name() -> None:
    jobs = [ClusterJob(name, 0, 1, 1.0) for name in ("b", "10", "a", "9")]
    assert [job.name for job in arranged(jobs, gpus=1)] == ["9", "10", "a", "b"]
