"""The graph of a run: its nodes are counted, and its longest path is the estimate."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu_planning.tune import Simulator
from kungfu_planning.tune.estimation import sample
from tests.planning.tune.execution_graph import Node, build_graph, longest_path_s
from tests.planning.tune.instances import MANY, certain, planned, uncertain

Case = tuple[Simulator, tuple[int, ...]]


@pytest.mark.slow
@MANY
@given(planned(simulators=st.one_of(certain(), uncertain())))
def test_the_longest_path_is_the_end_of_the_last_stage_in_every_run(case: Case) -> None:
    simulator, plan = case
    ends = sample(simulator, plan=plan).ends[-1]
    for run in range(simulator.runs):
        assert longest_path_s(build_graph(simulator, plan=plan, run=run)) == pytest.approx(ends[run])


@pytest.mark.slow
@MANY
@given(planned(simulators=certain()))
def test_every_task_is_there_once_and_nothing_waits_for_the_last_meeting_alone(case: Case) -> None:
    """Every task of the plan is there once, and the last meeting is the only one that nothing waits for."""
    simulator, plan = case
    nodes = build_graph(simulator, plan=plan)
    instances = (0, *sample(simulator, plan=plan).instances)
    grown = [now - before for before, now in pairwise(instances) if now > before]
    counts = Counter(node.kind for node in nodes)
    assert counts["SCALE"] == len(grown)
    assert counts["INIT_INSTANCE"] == sum(grown)
    assert counts["TRAIN"] == sum(stage.trials for stage in simulator.experiment.stages)
    assert counts["SYNC"] == len(simulator.experiment.stages)

    waited_for = {before for node in nodes for before in node.after}
    assert set(range(len(nodes))) - waited_for == {len(nodes) - 1}
    assert nodes[-1].kind == "SYNC"


@pytest.mark.slow
@MANY
@given(planned(simulators=uncertain()), st.integers(0, 2**32))
def test_the_order_in_which_tasks_are_listed_does_not_matter(case: Case, seed: int) -> None:
    nodes = build_graph(case[0], plan=case[1])
    order = list(range(len(nodes)))
    Random(seed).shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    moved = [
        Node(nodes[old].kind, nodes[old].stage, nodes[old].seconds, tuple(place[i] for i in nodes[old].after))
        for old in order
    ]
    assert longest_path_s(moved) == pytest.approx(longest_path_s(nodes))
