"""The allocation rule by hand, and sets of running jobs that time passes for."""

from __future__ import annotations

import pytest

from kungfu_planning.schedule import ClusterJob, Curve, elastic_fifo, simulate
from tests.planning.schedule.auditor import seen

A = ClusterJob("A", 0, 1, 72.0, Curve((1, 2, 3, 4), (10.0, 18.0, 24.0, 28.0)), 1, 4)
B = ClusterJob("B", 0, 2, 68.0, Curve((2, 3, 4, 5, 6), (20.0, 28.0, 34.0, 38.0, 40.0)), 2, 6)


def test_eight_gpus_are_shared_by_saved_time_and_again_when_one_job_ends() -> None:
    states = seen((A, B), gpus=8, policy=elastic_fifo())
    assert [state.progress.gpus.tolist() for state in states] == [[4, 4], [0, 6], [0, 0]]
    result = simulate((A, B), gpus=8, policy=elastic_fifo())
    assert result.finish_s.tolist() == pytest.approx([720 / 28, 720 / 28 + (1360 - 34 * 720 / 28) / 40])
    assert result.finish_s.tolist() == pytest.approx([25.714, 37.857], abs=1e-3)
