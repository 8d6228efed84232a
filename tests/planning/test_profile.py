"""Profiles of programs, and the curves that they give to jobs and searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kungfu.errors import UsageError
from kungfu_planning.profile import check_profile, read_profile
from kungfu_planning.schedule import ClusterJob, Columns, Curve, fifo, read_job_trace, read_throughputs, simulate
from kungfu_planning.schedule.curve import rate_at

SIZES = [{"size": 1, "samples_per_s": 100.0, "batch": 64.0}, {"size": 4, "samples_per_s": 320.0, "batch": 64.2}]
DOCUMENT = {
    "version": 1,
    "program": ["python", "train.py", "--small"],
    "attachment": "local",
    "sizes": SIZES,
    "more": 1,
}


def written(folder: Path, name: str = "profile.json", **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(DOCUMENT | changes))
    return path


def test_a_profile_gives_a_job_its_curve(tmp_path: Path) -> None:
    profile = read_profile(written(tmp_path))
    assert (profile.batch, profile.points) == (64, {1: 100.0, 4: 320.0})
    curve = Curve(tuple(profile.points), tuple(profile.points.values()))
    job = ClusterJob("a", 0, 1, 320.0, curve, min_gpus=1)
    assert simulate([job], gpus=4, policy=fifo()).finish_s.tolist() == [320.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no profile"),
        ("[" * 5000, "is no profile"),
        ("{}", r"is no profile \(Object missing required field `version`"),
        (json.dumps(DOCUMENT | {"version": 2}), "is a profile of version 2, and 1 can be read"),
        (json.dumps(DOCUMENT | {"sizes": []}), r"holds the sizes \[\]"),
        (json.dumps(DOCUMENT | {"sizes": SIZES[::-1]}), r"holds the sizes \[4, 1\]"),
        (json.dumps(DOCUMENT | {"sizes": [SIZES[0] | {"samples_per_s": 0}]}), "size 1 has 0 samples/s"),
        (json.dumps(DOCUMENT | {"sizes": [SIZES[0] | {"batch": 0.4}]}), "at a batch of 0.4"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_profile(tmp_path / "profile.json")
    with pytest.raises(UsageError, match=r"give the profile\.json of `kungfu profile`"):
        read_profile(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"program": "train.py --large"}, "is a profile of `python train.py --small`, and the plan"),
        ({"batch": 128}, "was measured at a batch of 64, and the plan is for 128"),
        ({"attachment": "horovod"}, "was measured with --attachment local, and the plan is for horovod"),
    ],
)  # fmt: skip
def test_a_profile_of_something_else_is_said(tmp_path: Path, plan: dict[str, Any], message: str) -> None:
    profile = read_profile(written(tmp_path))
    check_profile(profile, where="profile.json", program="python train.py --small", batch=64, attachment="local")
    with pytest.raises(UsageError, match=message):
        check_profile(profile, where="profile.json", **plan)


TWO_BATCHES = [*SIZES, *({**one, "batch": 128.0} for one in SIZES)]


def test_a_profile_of_several_batches_is_a_curve_for_each_and_a_plan_names_one(tmp_path: Path) -> None:
    path = written(tmp_path, sizes=TWO_BATCHES)
    measured = read_throughputs(path)
    assert measured.curve("", batch=64) == Curve((1, 4), (100 / 64, 5.0))
    assert measured.curve("", batch=128) == Curve((1, 4), (100 / 128, 2.5))
    profile = read_profile(path)
    assert profile.at_batch(128, where="profile.json").points == {1: 100.0, 4: 320.0}
    with pytest.raises(UsageError, match=r"profile\.json: was measured at batches of 64, 128; name one .*, not None"):
        profile.at_batch(None, where="profile.json")
    written(tmp_path, sizes=[*TWO_BATCHES, *SIZES])
    with pytest.raises(UsageError, match=r"from 1 on that rise, at each of rising batches"):
        read_profile(path)


def test_a_folder_of_curves_holds_tables_and_profiles(tmp_path: Path) -> None:
    written(tmp_path, "small.json")
    (tmp_path / "large.csv").write_text("global_batch_size,1,2\n32,4,6\n64,2,4\n")
    measured = read_throughputs(tmp_path)
    assert measured.curve("small", batch=64) == Curve((1, 4), (100 / 64, 5.0))
    assert measured.curve("large", batch=32).rates == (4.0, 6.0)
    written(tmp_path, "large.json")
    with pytest.raises(UsageError, match=r"large.json: large at batch 64 is in its table too"):
        read_throughputs(tmp_path)


def test_iteration_times_are_linear_between_batches_and_nothing_gains_beyond_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "m.csv").write_text("global_batch_size,1,2\n32,4,8\n64,2,5\n")
    measured = read_throughputs(tmp_path)
    assert measured.curve("m", batch=48).rates == pytest.approx((1 / 0.375, 1 / 0.1625))
    assert measured.curve("m", batch=8).rates == (4.0, 8.0)
    assert measured.curve("m", batch=128).rates == (1.0, 2.5)
    with pytest.raises(UsageError, match=r"no throughput of 'm' at batch 48 is known; there are \[32, 64\]"):
        read_throughputs(tmp_path, measured_only=True).curve("m", batch=48)


TRACE = "job_id,submit_time,num_gpu,duration\na,0,{gpus},10\n"


def test_one_profile_is_the_curve_of_all_jobs_of_a_trace_without_models(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE.format(gpus=2))
    columns = {"submit": "submit_time", "gpus": "num_gpu", "duration": "duration"}
    [job] = read_job_trace(path, columns=Columns(**columns), measured=read_throughputs(written(tmp_path)))
    assert rate_at(job.curve, gpus=4) / rate_at(job.curve, gpus=1) == pytest.approx(3.2)
    strict = read_throughputs(written(tmp_path), measured_only=True)
    with pytest.raises(UsageError, match=r"trace.csv:2: column num_gpu: 2 GPUs were not measured; there are 1, 4"):
        read_job_trace(path, columns=Columns(**columns), measured=strict)
