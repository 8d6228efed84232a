"""The published traces, end to end: signs and ranges of the papers' results, not their digits."""

from __future__ import annotations

from functools import cache

import pytest

from kungfu_planning.schedule import ClusterJob, Pauses, read_job_trace, read_throughputs, reduction, simulate, summary
from kungfu_planning.schedule.cluster_policies.catalogue import CATALOGUE, Tuning, with_shares
from tests.planning.schedule.cluster_policies.elastic_tiresias_reference import rigid_reference
from tests.planning.schedule.published import DATA, needs_data


@cache
def _trace(name: str) -> tuple[ClusterJob, ...]:
    return read_job_trace(DATA / name, measured=read_throughputs(DATA / "throughputs_A100"))


def _figures(trace: str, *, gpus: int, policy: str):
    entry = CATALOGUE[policy]
    jobs = with_shares(_trace(trace), shares=entry.shares)
    return summary(simulate(jobs, gpus=gpus, policy=entry.make(entry.defaults), pauses=entry.pauses or Pauses()))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("trace", "gpus"), [("itp/cluster06.csv", 128), ("philly/philly_103959.csv", 32)])
def test_elasticity_cuts_the_mean_completion_time_of_tiresias_by_a_quarter_or_more(trace: str, gpus: int) -> None:
    rigid, elastic = (_figures(trace, gpus=gpus, policy=name) for name in ("tiresias", "elastic-tiresias"))
    assert 0.25 < reduction(rigid.overall.jct_s, after=elastic.overall.jct_s) < 0.6
    assert reduction(rigid.groups["small"].jct_s, after=elastic.groups["small"].jct_s) > 0.25
    assert elastic.overall.pending_s < rigid.overall.pending_s
    assert elastic.utilisation > rigid.utilisation


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("rigid", "elastic"), [("fifo", "efifo"), ("easy", "ebf"), ("conservative", "ebf")])
def test_elan_cuts_waiting_completion_and_makespan_on_a_crowded_cluster(rigid: str, elastic: str) -> None:
    before, after = (_figures("itp/195job.csv", gpus=64, policy=name) for name in (rigid, elastic))
    assert reduction(before.overall.wait_s, after=after.overall.wait_s) > 0.43
    assert reduction(before.overall.jct_s, after=after.overall.jct_s) > 0.25
    assert reduction(before.makespan_s, after=after.makespan_s) > 0.21


@needs_data
def test_the_sixty_jobs_end_as_the_published_simulator_would_end_them() -> None:
    jobs = read_job_trace(DATA / "tiresias" / "60_job.csv")
    for gpus in (12, 16, 32):
        result = simulate(jobs, gpus=gpus, policy=CATALOGUE["tiresias"].make(Tuning(quanta=(500.0, 2000.0))))
        expected = rigid_reference(result.jobs, gpus=gpus, quanta=(500, 2000), starvation=None)
        assert {job.name: end for job, end in zip(result.jobs, result.finish_s, strict=True)} == expected
