"""Traces in the published formats and in one's own, and rows that are refused with their place."""

from __future__ import annotations

import gzip
import re
from itertools import pairwise
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu_planning.schedule import Columns, Curve, read_job_trace, read_throughputs
from kungfu_planning.schedule.curve import rate_at
from kungfu_planning.schedule.traces.read import detected, own_columns
from tests.planning.schedule.published import DATA, needs_data

ITP = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
OWN = Columns("at", "n", "secs")
DURATION = "expected seconds above 0 or a time like 1-02:03:04"


def _file(tmp_path: Path, text: str, *, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"


@pytest.mark.parametrize(
    ("name", "text", "jobs"),
    [
        ("itp.csv", ITP + "x,5,100,net,999,64,8,30\ny,6,100,net,999,64,1,31.5\n", [("x", 5, 8, 30), ("y", 6, 1, 31.5)]),
        ("tiresias.csv", TIRESIAS + "0,8,30,606,vgg19,164,30\n", [("0", 30, 8, 164)]),
        # It is unpacked, sorted, and its jobs are named by line.
        (
            "philly.csv.gz",
            PHILLY + "1970-01-01 00:02:00,66.0,1,66.0,a\n1970-01-01 00:01:00,5,2,10,b\n",
            [("3", 60, 2, 5), ("2", 120, 1, 66)],
        ),
        ("with the mark that spreadsheets write.csv", "\ufeff" + TIRESIAS + "0,8,30,6,n,164,3\n", [("0", 30, 8, 164)]),
    ],
)
def test_a_published_trace_is_known_by_its_header(tmp_path: Path, name: str, text: str, jobs: list) -> None:
    read = read_job_trace(_file(tmp_path, text, name=name))
    assert [(job.name, job.submit_s, job.gpus, job.duration_s) for job in read] == jobs


def test_own_columns_are_enough(tmp_path: Path) -> None:
    path = _file(tmp_path, "secs,n,at,who\n10,2,7,me\n")
    assert [(job.submit_s, job.gpus, job.duration_s) for job in read_job_trace(path, columns=OWN)] == [(7, 2, 10)]
    assert own_columns("submit=at,gpus=n,duration=secs,name=who,order=any") == Columns(
        "at", "n", "secs", "who", order="any"
    )


def test_measured_curves_are_looked_up_by_model_and_batch(tmp_path: Path) -> None:
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "net.csv").write_text("global_batch_size,1,2\n64,1.0,1.5\n128,0.5,0.9\n")
    measured = read_throughputs(tmp_path / "curves")
    path = _file(tmp_path, ITP + "x,5,100,net,999,64,1,30\n")
    assert read_job_trace(path, measured=measured)[0].curve == Curve((1, 2), (1.0, 1.5))
    assert read_job_trace(path, measured=measured, scaling="hybrid")[0].curve == Curve((1, 2), (64.0, 96.0))
    strict = read_throughputs(tmp_path / "curves", measured_only=True)
    other = _file(tmp_path, ITP + "x,5,100,net,999,32,1,30\n")
    assert read_job_trace(other, measured=measured)[0].curve == Curve((1, 2), (1.0, 1.5))
    with pytest.raises(UsageError, match=r"trace\.csv:2: column model_name: no throughput of 'net' at batch 32"):
        read_job_trace(other, measured=strict)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("at,n,secs\n1,2,soon\n", rf"trace\.csv:2: column secs: {DURATION}, got 'soon'"),
        ("at,n,secs\n1,2,0\n", rf"trace\.csv:2: column secs: {DURATION}, got '0'"),
        ("at,n,secs\n1,2,nan\n", rf"trace\.csv:2: column secs: {DURATION}, got 'nan'"),
        ("at,n,secs\n1,2.5,3\n", r"trace\.csv:2: column n: expected a whole number of at least 1, got '2\.5'"),
        ("at,n,secs\n1,0,3\n", r"trace\.csv:2: column n: expected a whole number of at least 1, got '0'"),
        ("at,n,secs\n\n-1,1,3\n", r"trace\.csv:3: column at: expected seconds of at least 0 or a date"),
        ("at,n,secs\nlater,1,3\n", r"trace\.csv:2: column at: expected seconds of at least 0 or a date"),
        ("at,n,secs\n1,2\n", r"trace\.csv:2: expected 3 cells as in the header, got 2"),
        ("at,n,secs\n5,1,3\n4,1,3\n", r"trace\.csv:3: column at: expected at least 5 s as in the row above, got 4 s"),
        ("at,n\n5,1\n", r"trace\.csv:1: expected columns secs; the header has at, n"),
        ("at,n,secs\n", r"trace\.csv: the trace is empty"),
        ("", r"trace\.csv: the trace is empty"),
        ("at,n,secs\n1,1,1e308\n", r"trace\.csv:2: job 2: runs for 1e\+308 s"),
        ("at,n,secs,n\n1,2,3,4\n", r"trace\.csv:1: expected a name once, got n twice"),
        ('at,n,secs\n1,"2,3\n', r"trace\.csv:2: expected comma-separated values"),
    ],
)
def test_a_malformed_file_is_refused_with_line_column_and_what_was_expected(tmp_path: Path, text, says) -> None:
    with pytest.raises(UsageError, match=says):
        read_job_trace(_file(tmp_path, text), columns=OWN)


def test_tables_that_cannot_be_looked_up_are_refused_rather_than_left_out(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text("global_batch_size,1,2\n64,1.0,1.5\n")
    path = _file(tmp_path, "at,n,secs\n1,1,1\n", name="trace.txt")
    with pytest.raises(UsageError, match="no column of model and of batch"):
        read_job_trace(path, columns=OWN, measured=read_throughputs(tmp_path))
    with pytest.raises(UsageError, match="hybrid scaling needs throughput tables"):
        read_job_trace(path, columns=OWN, scaling="hybrid")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (" ,5,1,net,9,64,1,30\n", r"trace\.csv:2: column job_id: expected a name, got ' '"),
        ("x,5,1,n,9,64,1,30\nx,6,1,n,9,64,1,30\n", r"csv:3: column job_id: expected a new name, got 'x' as in line 2"),
    ],
)
def test_a_job_without_a_name_of_its_own_is_refused(tmp_path: Path, rows: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_job_trace(_file(tmp_path, ITP + rows))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.csv: expected a readable CSV file"):
        read_job_trace(tmp_path / "nowhere.csv")
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress(b"at,n,secs\n1,1,1\n")[:-6])
    with pytest.raises(UsageError, match=r"broken\.csv\.gz: expected a readable CSV file"):
        read_job_trace(tmp_path / "broken.csv.gz")


def test_an_unknown_header_lists_the_known_formats() -> None:
    with pytest.raises(UsageError, match="fit no known format"):
        detected(["a", "b"], where="x.csv:1")


@pytest.mark.parametrize(
    "text",
    [
        "submit=a,gpus=b",
        "submit=a,gpus=b,duration=c,colour=d",
        "submit=,gpus=b,duration=c",
        "submit=a,gpus=b,duration=c,gpus=d",
    ],
)
def test_columns_that_are_incomplete_or_unknown_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected submit="):
        own_columns(text)


@pytest.mark.parametrize(
    "text",
    [
        "at,n,secs\n1,2,3\n1,2\n1,2,3,4\n1,two,3\n5,1,1\n",
        "at|n|secs\n1|2|3\n1|2\n1|2|3|4\n1|two|3\n5|1|1\n",
    ],
    ids=["commas", "pipes"],
)
def test_rows_with_too_few_or_too_many_cells_are_left_out_where_asked_for(tmp_path, text) -> None:
    skipped: list[UsageError] = []
    jobs = read_job_trace(_file(tmp_path, text), columns=OWN, skip=skipped.append)
    assert [job.name for job in jobs] == ["2", "6"]
    says = [re.sub(r"^.*/", "", str(error)) for error in skipped]
    assert [one[: len(start)] for one, start in zip(says, SKIPPED, strict=True)] == SKIPPED
    with pytest.raises(UsageError, match=r"trace\.csv:3: expected 3 cells as in the header, got 2"):
        read_job_trace(_file(tmp_path, text), columns=OWN)


def test_a_trace_of_bad_rows_only_is_refused_with_their_number_and_the_first(tmp_path: Path) -> None:
    path, skipped = _file(tmp_path, "at,n,secs\n1,2\n1,0,3\n"), list[UsageError]()
    with pytest.raises(
        UsageError, match=r"that can be taken; of 2 bad rows the first: .*trace\.csv:2: expected 3 cells"
    ):
        read_job_trace(path, columns=OWN, skip=skipped.append)
    assert skipped == []


SKIPPED = [
    "trace.csv:3: expected 3 cells as in the header, got 2",
    "trace.csv:4: expected 3 cells as in the header, got 4",
    "trace.csv:5: column n: expected a whole number",
]


@needs_data
@pytest.mark.parametrize(
    ("name", "count", "gpu_seconds"),
    [
        ("itp/cluster06.csv", 2396, 445_963_163),
        ("itp/195job.csv", 195, 19_763_306),
        ("philly/philly_103959.csv", 876, 154_137_879),
        ("tiresias/60_job.csv", 60, None),
    ],
)
def test_published_traces_are_read_whole(name: str, count: int, gpu_seconds: int | None) -> None:
    jobs = read_job_trace(DATA / name)
    assert len(jobs) == count
    assert gpu_seconds is None or sum(job.gpus * job.duration_s for job in jobs) == gpu_seconds


@needs_data
@pytest.mark.slow
def test_all_of_philly_is_read_and_sorted() -> None:
    jobs = read_job_trace(DATA / "philly" / "philly.csv.gz")
    assert len(jobs) == 82_247
    assert max(job.gpus for job in jobs) == 128
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(jobs))


@needs_data
def test_published_iterations_agree_with_duration_and_measured_rate() -> None:
    measured = read_throughputs(DATA / "throughputs_A100")
    jobs = read_job_trace(DATA / "itp" / "195job.csv", measured=measured)
    assert jobs[1].duration_s * rate_at(jobs[1].curve, gpus=jobs[1].gpus) == pytest.approx(48_266, rel=1e-4)
