"""The figures by hand."""

from __future__ import annotations

import json
import math

import pytest

from kungfu_planning.schedule import ClusterJob, fifo, reduction, simulate, summary, tiresias
from kungfu_planning.schedule.outcome import summary_as_dict
from tests.planning.schedule.instances import rows


def test_means_by_hand() -> None:
    figures = summary(simulate(rows((10, 2, 10.0), (11, 1, 5.0)), gpus=2, policy=fifo()))
    assert (figures.makespan_s, figures.utilisation) == (15, 25 / 30)
    assert (figures.overall.jct_s, figures.overall.wait_s, figures.overall.pending_s) == (12, 4.5, 4.5)


def test_time_in_preemption_is_pending_but_no_wait_for_the_start() -> None:
    figures = summary(simulate(rows((0, 2, 100), (10, 2, 20)), gpus=2, policy=tiresias(quanta=(60,))))
    assert (figures.overall.wait_s, figures.overall.pending_s) == (10, 20)


def test_size_classes_begin_at_their_lower_end() -> None:
    jobs = [ClusterJob(str(i), 0, 1, seconds) for i, seconds in enumerate((9_999.0, 10_000.0, 199_999.0, 200_000.0))]
    by_size = summary(simulate(jobs, gpus=4, policy=fifo())).by_size
    assert {name: figures.jobs for name, figures in by_size.items()} == {"small": 1, "median": 2, "large": 1}


def test_a_class_without_jobs_has_no_means_and_null_in_json() -> None:
    figures = summary(simulate(rows((0, 1, 1.0)), gpus=1, policy=fifo()))
    assert math.isnan(figures.by_size["large"].jct_s)
    plain = json.loads(json.dumps(summary_as_dict(figures), allow_nan=False))
    assert plain["by_size"]["large"] == {
        "jobs": 0,
        "jct_s": None,
        "wait_s": None,
        "pending_s": None,
        "adjustments": None,
    }


def test_a_reduction_is_a_fraction_and_negative_for_more() -> None:
    assert reduction(52_055.0, after=36_544.0) == pytest.approx(0.298, abs=5e-4)
    assert reduction(33_669.0, after=36_426.0) == pytest.approx(-0.082, abs=5e-4)
