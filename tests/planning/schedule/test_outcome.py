"""The figures by hand."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kungfu.errors import UsageError
from kungfu_planning.schedule import ClusterJob, elastic_tiresias, fifo, reduction, simulate, summary, tiresias
from kungfu_planning.schedule.outcome import write_jobs
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
    groups = summary(simulate(jobs, gpus=4, policy=fifo())).groups
    assert {name: figures.jobs for name, figures in groups.items()} == {"small": 1, "median": 2, "large": 1}


def test_a_class_without_jobs_has_no_means_and_null_in_json() -> None:
    figures = summary(simulate(rows((0, 1, 1.0)), gpus=1, policy=fifo()))
    plain = msgspec.json.decode(msgspec.json.encode(figures))
    assert plain["groups"]["large"] == {
        "jobs": 0, "jct_s": None, "jct_p50_s": None, "jct_p95_s": None, "jct_p99_s": None, "wait_s": None,
        "pending_s": None, "adjustments": None,
    }  # fmt: skip


def test_percentiles_are_those_of_numpy_and_groups_those_of_users() -> None:
    jobs = [ClusterJob(str(i), 0, 1, float(i + 1), user=("ann", "bob")[i % 2]) for i in range(100)]
    figures = summary(simulate(jobs, gpus=100, policy=fifo()), by="user")
    assert list(figures.groups) == ["bob", "ann"]
    jct_s = np.arange(1.0, 101)
    expected = np.percentile(jct_s, (50, 95, 99)).tolist()
    assert [figures.overall.jct_p50_s, figures.overall.jct_p95_s, figures.overall.jct_p99_s] == expected
    assert figures.groups["ann"].jct_p50_s == np.median(jct_s[::2])


def test_a_row_of_each_job_holds_its_gpus_over_time(tmp_path: Path) -> None:
    jobs = [ClusterJob("old", 0, 4, 40.0, user="ann"), ClusterJob("new", 20, 2, 10.0)]
    result = simulate(jobs, gpus=4, policy=elastic_tiresias(quanta=(40,)), keep_allocations=True)
    write_jobs(result, path=tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open(newline="") as lines:
        old, new = csv.DictReader(lines)
    assert (old["user"], old["start_s"], old["end_s"], old["allocation"]) == ("ann", "0", "45", "0:4 20:2 30:4 45:0")
    assert (new["jct_s"], new["pending_s"], new["gpu_seconds"], new["allocation"]) == ("10", "0", "20", "20:2 30:0")
    held = [[float(part) for part in span.split(":")] for span in old["allocation"].split()]
    used = sum(gpus * (after - before) for (before, gpus), (after, _) in pairwise(held))
    assert used == float(old["gpu_seconds"]) == 160
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere" / "jobs.csv", tmp_path / "folder", Path(".")):
        with pytest.raises(UsageError, match="give a file in a folder that can be written to"):
            write_jobs(result, path=path)
    assert {one.name for one in tmp_path.iterdir()} == {"jobs.csv", "folder"}


def test_a_reduction_is_a_fraction_and_negative_for_more() -> None:
    assert reduction(52_055.0, after=36_544.0) == pytest.approx(0.298, abs=5e-4)
    assert reduction(33_669.0, after=36_426.0) == pytest.approx(-0.082, abs=5e-4)
