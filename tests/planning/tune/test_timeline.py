"""A plan over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu_planning.tune import Cloud, Delays, Instance, Latency, Simulator, scaling, successive_halving
from kungfu_planning.tune.estimation import sample
from kungfu_planning.tune.timeline import Box, StageUsage, boxes, first_run_stage_usage, mean_stage_usage
from tests.planning.tune.instances import certain, planned, uncertain


def _simulator() -> Simulator:
    job = successive_halving(4, least=1, most=7, eta=2)
    cloud = Cloud(Instance(2, 0.001, 0), Delays(scale=Latency(5), init=Latency(1)))
    return Simulator(job, scaling({1: 10, 2: 6, 4: 4.5}), cloud)


def test_stages_follow_each_other_and_say_when_their_instances_came() -> None:
    assert mean_stage_usage(_simulator(), plan=(2, 4, 1)) == (
        StageUsage(4, 2, 1, 1, 0.0, 5.0, 26.0),
        StageUsage(2, 4, 2, 2, 26.0, 31.0, 44.0),
        StageUsage(1, 1, 1, 1, 44.0, 44.0, 84.0),
    )


def test_a_queued_trial_follows_on_the_gpu_of_the_one_before() -> None:
    assert boxes(_simulator(), plan=(2, 4, 1))[:6] == (
        Box(0, 0, 1, 6.0, 16.0),
        Box(1, 1, 1, 6.0, 16.0),
        Box(2, 0, 1, 16.0, 26.0),
        Box(3, 1, 1, 16.0, 26.0),
        Box(0, 0, 2, 32.0, 44.0),
        Box(1, 2, 2, 32.0, 44.0),
    )


@pytest.mark.slow
@given(planned(simulators=st.one_of(certain(), uncertain())))
def test_no_two_boxes_overlap_and_each_lies_within_what_its_stage_holds_in_its_run(
    case: tuple[Simulator, tuple[int, ...]],
) -> None:
    simulator, plan = case
    found = boxes(simulator, plan=plan)
    remaining = list(found)
    for held in first_run_stage_usage(simulator, plan=plan):
        mine, remaining = remaining[: held.trials], remaining[held.trials :]
        assert min(box.start_s for box in mine) >= held.ready_s - 1e-6
        assert max(box.end_s for box in mine) <= held.end_s + 1e-6
        assert max(box.first_gpu + box.gpus for box in mine) <= held.gpus
    assert remaining == []

    assert len(found) == sum(stage.trials for stage in simulator.experiment.stages)
    assert max(box.end_s for box in found) <= sample(simulator, plan=plan).ends[-1, 0] + 1e-6
    assert all(box.first_gpu + box.gpus <= max(plan) for box in found)
    busy: dict[int, float] = {}
    for box in sorted(found, key=lambda each: each.start_s):
        for gpu in range(box.first_gpu, box.first_gpu + box.gpus):
            assert busy.get(gpu, 0.0) <= box.start_s + 1e-6
            busy[gpu] = box.end_s
