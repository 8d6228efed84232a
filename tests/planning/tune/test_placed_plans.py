"""A plan that counts instances with trials kept whole can be carried out by the placement controller."""

from __future__ import annotations

import pytest
from hypothesis import given

from kungfu_planning.tune import Nodes, Simulator, TrialPlacement, place, unplaced
from kungfu_planning.tune.timeline import mean_stage_usage
from tests.planning.tune.instances import MANY, certain, planned


@pytest.mark.slow
@MANY
@given(planned(simulators=certain(packing="placed")))
def test_every_stage_finds_room_on_its_instances(case: tuple[Simulator, tuple[int, ...]]) -> None:
    simulator, plan = case
    placement = TrialPlacement()
    for held in mean_stage_usage(simulator, plan=plan):
        at_once = min(held.trials, held.gpus)
        allocation = {f"trial-{index:02}": held.gpus_per_trial for index in range(at_once)}
        nodes = Nodes(tuple(f"n{index}" for index in range(held.instances)), simulator.cloud.instance.gpus)
        placement = place(allocation, last=placement, nodes=nodes)
        assert unplaced(allocation, placement=placement) == ()
