"""Tiresias, rigid and elastic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu_planning.schedule import (
    ClusterJob,
    Curve,
    Pauses,
    elastic_tiresias,
    inelastic,
    simulate,
    tiresias,
)
from tests.planning.schedule.auditor import seen
from tests.planning.schedule.cluster_policies.elastic_tiresias_reference import (
    JobLimits,
    elastic_reference,
    rigid_reference,
)
from tests.planning.schedule.instances import Instance, instances, rows, untied

STARVING = [(0, 1, 20), (5, 1, 10), (12, 1, 10), (22, 1, 10), (32, 1, 10)]
# By hand: quanta and starvation, the GPUs of the cluster, jobs as (submit, GPUs, duration), and when each job ends.
BY_HAND = {
    "who has used up its quantum makes room for a newer one": ((60,), None, 2, [(0, 2, 100), (10, 2, 20)], [120, 50]),
    "no quanta: first fit in order of arrival": ((), None, 4, [(0, 3, 10), (1, 2, 10), (2, 1, 5)], [10, 20, 7]),
    "without starvation who sank waits for all": ((10,), None, 1, STARVING, [60, 20, 30, 40, 50]),
    # It sinks at 10 and waits; at 30 it has waited twice the 10 s it had run, and rises behind job 3, before job 4.
    "who starves rises above those who come later": ((10,), 2.0, 1, STARVING, [50, 20, 30, 40, 60]),
    # 16.4 - 6.4 is less than 10 in floating point.
    "rounding makes no job sink a second late": ((10,), None, 1, [(6.4, 1, 100), (6.4, 1, 10)], [116.4, 26.4]),
    # The first has run 10 s when it sinks at 10.5, so it may wait 5 s. Asked at 12.25, it is looked at again 4 s later:
    # at 16.25 it rises, before the last one arrives. Nothing else happens until then.
    "who starves rises on time between whole seconds": (
        (10,),
        0.5,
        1,
        [(0.5, 1, 20), (0.5, 1, 10), (12.25, 1, 15), (17, 1, 10)],
        [40.5, 20.5, 55.5, 50.5],
    ),
}


@pytest.mark.parametrize(("quanta", "starvation", "gpus", "cells", "ends"), BY_HAND.values(), ids=BY_HAND)
def test_jobs_end_as_worked_out_by_hand(quanta, starvation, gpus: int, cells: list, ends: list[float]) -> None:
    result = simulate(rows(*cells), gpus=gpus, policy=tiresias(quanta=quanta, starvation=starvation))
    assert result.finish_s.tolist() == pytest.approx(ends)


@pytest.mark.slow
@given(instance=instances(most_jobs=8), starvation=st.sampled_from([None, 0.5, 1.0, 2.0, 3.5]))
def test_ends_equal_those_of_plain_loops_with_jobs_of_one_size(instance: Instance, starvation: float | None) -> None:
    result = simulate(instance.jobs, gpus=instance.gpus, policy=tiresias(quanta=(12, 40), starvation=starvation))
    expected = rigid_reference(result.jobs, gpus=instance.gpus, quanta=(12, 40), starvation=starvation)
    assert {job.name: end for job, end in zip(result.jobs, result.finish_s, strict=True)} == expected


@pytest.mark.parametrize("quanta", [(0.0,), (5.0, 5.0), (7.0, 3.0)])
def test_quanta_that_do_not_rise_are_refused(quanta) -> None:
    with pytest.raises(UsageError, match="must rise"):
        tiresias(quanta=quanta)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_starvation_factor_that_is_nothing_or_endless_is_refused(factor: float) -> None:
    with pytest.raises(UsageError, match=f"starvation factor {factor} must be above 0 and finite"):
        tiresias(starvation=factor)


CROWDED = rows((0, 4, 40), (20, 2, 10))


def test_growing_back_costs_its_pause_and_shrinking_costs_none() -> None:
    result = simulate(CROWDED, gpus=4, policy=elastic_tiresias(quanta=(40,)), pauses=Pauses(1.1))
    assert result.finish_s.tolist() == pytest.approx([46.1, 30])


def test_r1_waits_until_more_than_n_jobs_are_pending() -> None:
    result = simulate(CROWDED, gpus=4, policy=elastic_tiresias(quanta=(40,), pending_over=1))
    assert result.finish_s.tolist() == [50, 30]


def test_an_inelastic_job_is_neither_shrunk_nor_grown() -> None:
    jobs = (inelastic(CROWDED[0]), replace(CROWDED[1], min_gpus=2, max_gpus=2))
    result = simulate(jobs, gpus=5, policy=elastic_tiresias(quanta=(40,)))
    assert result.finish_s.tolist() == [50, 30]
    assert result.usage.adjustments.tolist() == [0, 0]


def test_r2_gives_each_idle_gpu_to_the_largest_relative_gain() -> None:
    # Gains from 1 GPU: 0.8 then 0.333 for the first, 0.5 then 0.467 for the second: two go to the first, then one on.
    first, second = Curve((1, 2, 3, 4), (1.0, 1.8, 2.4, 2.5)), Curve((1, 2, 3), (1.0, 1.5, 2.2))
    jobs = (ClusterJob("a", 0, 1, 100.0, first), ClusterJob("b", 0, 1, 100.0, second))
    for gpus, shares in ((3, [2, 1]), (4, [2, 2]), (5, [2, 3]), (6, [3, 3]), (7, [4, 3]), (9, [4, 3])):
        states = seen(jobs, gpus=gpus, policy=elastic_tiresias())
        assert states[0].progress.gpus.tolist() == shares


def test_equal_gains_go_to_the_higher_queue_and_then_to_the_earlier_arrival() -> None:
    jobs = rows((0, 1, 300), (11, 1, 30), (12, 1, 30))
    states = {s.now_s: s.progress.gpus.tolist() for s in seen(jobs, gpus=4, policy=elastic_tiresias(quanta=(40,)))}
    assert states[12.0] == [1, 2, 1]  # job 0 has had 40 GPU seconds by 10 and stands in queue 1


RULES = st.builds(
    JobLimits,
    st.integers(0, 2),
    st.sampled_from([(), (20.0,), (12.0, 40.0), (5.0, 15.0, 60.0)]),
    st.sampled_from([None, 0.5, 1.5, 3.0]),
    st.sampled_from([Pauses(), Pauses(1.5, 0.25), Pauses(30.0, 30.0, 0.03)]),
)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), rules=RULES)
def test_ends_equal_those_of_plain_loops(seed: int, rules: JobLimits) -> None:
    instance = untied(seed)
    policy = elastic_tiresias(pending_over=rules.pending_over, quanta=rules.quanta, starvation=rules.starvation)
    result = simulate(instance.jobs, gpus=instance.gpus, policy=policy, pauses=rules.pauses)
    expected = elastic_reference(result.jobs, gpus=instance.gpus, rules=rules)
    assert result.finish_s.tolist() == pytest.approx([expected[job.name] for job in result.jobs])


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(UsageError, match="pending_over is -1"):
        elastic_tiresias(pending_over=-1)
