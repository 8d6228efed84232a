"""The longest path of the graph of a run is its estimate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu_planning.tune import Simulator
from kungfu_planning.tune.estimation import sample
from tests.planning.tune.execution_graph import build_graph, longest_path_s
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
