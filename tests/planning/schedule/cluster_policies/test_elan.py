"""E-FIFO and E-BF: whom they admit, and how they share."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.schedule import (
    ClusterJob,
    Curve,
    Pauses,
    elastic_backfill,
    elastic_fifo,
    fifo,
    generated,
    simulate,
    with_limits,
)
from kungfu_planning.schedule.cluster_policies.elan import Admission
from kungfu_planning.schedule.cluster_policies.elan_forecast import RunningJobs, allocated, joined, prepared
from kungfu_planning.schedule.cluster_policies.elan_marginal import MarginalFuture
from kungfu_planning.schedule.cluster_policies.greedy import saved_time
from kungfu_planning.schedule.state import tabulated
from tests.planning.schedule.auditor import seen
from tests.planning.schedule.cluster_policies.elan_reference import elan_reference
from tests.planning.schedule.instances import Instance, instances, rows, untied

POLICIES = {"efifo": elastic_fifo, "ebf": elastic_backfill}


def _assert_within_limits(state) -> None:
    held = state.progress.gpus[state.running]
    assert (held >= state.workload.min_gpus[state.running]).all()
    assert (held <= state.workload.max_gpus[state.running]).all()
    assert held.sum() <= state.gpus


def _assert_no_useful_gpu_idle(state) -> None:
    if state.progress.gpus.sum() < state.gpus:
        jobs = state.running
        held = state.progress.gpus[jobs]
        growing = jobs[held != state.workload.max_gpus[jobs]]
        gains = saved_time(state.workload.rates)
        assert (gains[state.workload.kind[growing], state.progress.gpus[growing]] <= 0).all()
        if len(state.pending):  # the head was refused although GPUs idle, so it cannot fit
            assert state.workload.min_gpus[state.pending[0]] > state.gpus - state.progress.gpus.sum()


@pytest.mark.slow
@given(instance=instances())
def test_limits_and_work_conservation_hold_at_every_event(instance: Instance) -> None:
    for name, exact_up_to in product(POLICIES, (0, 99)):
        note(f"policy {name}, exact up to {exact_up_to}")
        policy = POLICIES[name](exact_up_to=exact_up_to)
        for state in seen(instance.jobs, gpus=instance.gpus, policy=policy, pauses=Pauses(1.0, 1.0, 0.03)):
            _assert_within_limits(state)
            _assert_no_useful_gpu_idle(state)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), pauses=st.sampled_from([Pauses(), Pauses(1.0, 1.0), Pauses(30.0, 10.0, 0.03)]))
def test_starts_and_ends_equal_those_of_plain_loops(seed: int, pauses: Pauses) -> None:
    instance = untied(seed)
    for name, depth in (("efifo", 0), ("ebf", 8)):
        note(f"policy {name}")
        result = simulate(instance.jobs, gpus=instance.gpus, policy=POLICIES[name](exact_up_to=99), pauses=pauses)
        expected = elan_reference(result.jobs, gpus=instance.gpus, pauses=pauses, depth=depth)
        assert result.start_s.tolist() == pytest.approx([expected[job.name][0] for job in result.jobs])
        assert result.finish_s.tolist() == pytest.approx([expected[job.name][1] for job in result.jobs])


def test_eight_gpus_are_shared_by_saved_time_and_again_when_one_job_ends() -> None:
    a = ClusterJob("A", 0, 1, 72.0, Curve((1, 2, 3, 4), (10.0, 18.0, 24.0, 28.0)), 1, 4)
    b = ClusterJob("B", 0, 2, 68.0, Curve((2, 3, 4, 5, 6), (20.0, 28.0, 34.0, 38.0, 40.0)), 2, 6)
    states = seen((a, b), gpus=8, policy=elastic_fifo())
    assert [state.progress.gpus.tolist() for state in states] == [[4, 4], [0, 6], [0, 0]]
    assert [state.now_s for state in states[1:]] == pytest.approx([25.714, 37.857], abs=1e-3)


def test_rigid_jobs_make_efifo_plain_fifo() -> None:
    jobs = with_limits(rows((0, 3, 10), (1, 4, 5), (2, 1, 8), (3, 1, 20)), min_share=1, max_share=1)
    starts = [simulate(jobs, gpus=4, policy=policy).start_s.tolist() for policy in (fifo(), elastic_fifo())]
    assert starts[0] == starts[1] == [0, 10, 15, 15]


def test_ebf_lets_a_job_pass_a_refused_head_and_efifo_does_not() -> None:
    jobs = with_limits(rows((0, 3, 10), (1, 4, 5), (2, 1, 8)), min_share=1, max_share=1)
    assert simulate(jobs, gpus=4, policy=elastic_fifo()).start_s.tolist() == [0, 10, 15]
    assert simulate(jobs, gpus=4, policy=elastic_backfill()).start_s.tolist() == [0, 10, 2]
    assert simulate(jobs, gpus=4, policy=elastic_backfill(depth=0)).start_s.tolist() == [0, 10, 15]


def test_every_changed_job_pauses() -> None:
    # The first job runs alone on both GPUs; from 1 it shares them, pausing for 1 s; each has its own GPU then.
    jobs = (ClusterJob("a", 0, 1, 10.0, max_gpus=2), ClusterJob("b", 1, 1, 3.0, max_gpus=1))
    result = simulate(jobs, gpus=2, policy=elastic_fifo(), pauses=Pauses(1.0, 1.0))
    # a: 2 done by 1, paused to 2, 2 more by 4 when b ends, paused to 5, the last 6 on two GPUs.
    assert result.finish_s.tolist() == [8.0, 4.0]


@pytest.mark.parametrize("make", POLICIES.values())
def test_a_negative_limits_is_refused(make) -> None:
    with pytest.raises(UsageError, match="exact_up_to is -1"):
        make(exact_up_to=-1)


def _admission(jobs: tuple[ClusterJob, ...], *, gpus: int, held: dict[int, int], exact_up_to: int) -> Admission:
    context = prepared(tabulated(jobs, gpus=gpus), gpus)
    work = np.array([context.whole_work(job) for job in held])
    running = RunningJobs(np.array(list(held)), work, np.array(list(held.values())))
    return Admission(running, context=context, exact_up_to=exact_up_to)


@pytest.mark.parametrize("exact_up_to", [0, 9])
@pytest.mark.parametrize(("runs_s", "admitted"), [(1.0, True), (100.0, False)])
def test_a_short_job_may_take_gpus_from_a_long_one_and_a_long_one_may_not(runs_s, admitted, exact_up_to) -> None:
    # Two GPUs, perfect scaling. The first needs 10 s on both. Admitting the second now costs the first one GPU:
    # short: ends at 1 and 10.5 now, at 10 and 10.5 if it waits. Long: (20, 60) now, (10, 60) if it waits.
    jobs = rows((0, 2, 10.0), (0, 1, runs_s))
    assert _admission(jobs, gpus=2, held={0: 2}, exact_up_to=exact_up_to).admits(1) is admitted


@pytest.mark.parametrize("exact_up_to", [0, 9])
def test_backfilling_may_not_move_the_heads_opening(exact_up_to: int) -> None:
    # Four GPUs, two of them busy until 10. The head wants three. A job on the others for 5 s does not matter, one
    # that needs both of them until 30 does.
    stiff = tuple(
        ClusterJob(str(index), 0, gpus, runs, min_gpus=gpus, max_gpus=gpus)
        for index, (gpus, runs) in enumerate([(2, 10.0), (3, 5.0), (1, 5.0), (2, 30.0)])
    )
    running = _admission(stiff, gpus=4, held={0: 2}, exact_up_to=exact_up_to)
    assert not running.delays(2, head=1)
    assert running.delays(3, head=1)


@given(seed=st.integers(0, 2**32), wait=st.integers(1, 4))
def test_a_start_takes_the_gpus_that_a_sharing_would_take(seed: int, wait: int) -> None:
    instance = untied(seed)
    context = prepared(tabulated(instance.jobs, gpus=instance.gpus), instance.gpus)
    running, *waiting = range(len(instance.jobs))
    jobs = [running]
    for job in waiting[:wait]:
        if sum(map(context.fewest, [*jobs, job])) > instance.gpus:
            continue
        before = np.array(jobs)
        shared = allocated(
            RunningJobs(before, np.array([context.whole_work(one) for one in jobs]), context.workload.min_gpus[before]),
            context=context,
        )
        after = allocated(joined(shared, job=job, context=context), context=context)
        future = MarginalFuture(shared, context=context)
        share = future._share(job)
        assert share == after.held[-1]
        kept = dict(enumerate(shared.held.tolist())) | {
            one.at: one.kept for one in future._givers(share - future._free)
        }
        assert list(kept.values()) == after.held[:-1].tolist()
        jobs.append(job)


@pytest.mark.parametrize("policy", POLICIES)
def test_hundreds_of_jobs_keep_their_limits_and_waste_no_gpu(policy: str) -> None:
    jobs = with_limits(generated("itp", jobs=500, gpus=1024, load=8.0, seed=3), min_share=0.25, max_share=4)
    most = 0
    for state in seen(jobs, gpus=1024, policy=POLICIES[policy]()):
        _assert_within_limits(state)
        _assert_no_useful_gpu_idle(state)
        most = max(most, len(state.running))
    assert most > 150
