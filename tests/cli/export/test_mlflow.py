"""A run in MLflow: what is written for it, by a client that takes what the real one takes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.export.mlflow import mlflow_process
from kungfu.cli.export.mlflow_target import MlflowTarget
from kungfu.cli.export.mlflow_writer import export_record
from kungfu.cli.run import main
from kungfu.event_log.codec import event_to_line
from kungfu.runtime.job_api.job_file import JobFile, write_job_file
from tests.cli.conftest import Printed
from tests.cli.recorded import FAILED, GROWN, Events, measured, written
from tests.event_log.made import made
from tests.jobs.harness import awaited

FAKE = Path(__file__).parent / "programs"
STARTED = made(event="started", time=100.0, job="ab12", size=2, command=["python", "digits.py"], attachment="local")
NAMED: Events = (STARTED, *GROWN[1:])
STEPS = [measured(step, learning_rate=0.1) for step in range(1, 480)]


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client of this folder in place of MLflow."""
    monkeypatch.syspath_prepend(FAKE)
    yield
    for name in [one for one in sys.modules if one.split(".")[0] == "mlflow"]:
        del sys.modules[name]


def recorded(folder: Path, events: Events = NAMED, *, code: int | None = 0) -> Path:
    """A run with its job file, in a folder of its own."""
    record = folder / "run"
    record.mkdir(exist_ok=True)
    write_job_file(record, JobFile("ab12", "", "", 1 << 30, 100.0, ended=None if code is None else 131.0, code=code))
    return written(record, events, metrics=STEPS)


def runs_in(folder: Path) -> list[dict[str, Any]]:
    path = folder / "runs.json"
    return json.loads(path.read_text()) if path.exists() else []


def exported(record: Path, *, host: int | None = None) -> list[str]:
    """The remarks on the export of a run that is over, to MLflow in the folder above."""
    remarks = list[str]()
    target = MlflowTarget(f"file://{record.parent}", host, {"max_peers": "4", "policies": ""})
    assert export_record(record, target, is_over=lambda timeout_s: True, report=remarks.append)
    return remarks


def test_a_job_is_one_run_with_parameters_metrics_and_decisions(tmp_path: Path) -> None:
    assert exported(recorded(tmp_path)) == [f"the job is run run (run0) at file://{tmp_path}"]
    [run] = runs_in(tmp_path)
    assert (run["name"], run["status"], run["start"], run["end"]) == ("run", "FINISHED", 100_000, 131_000)
    assert run["params"] == {"program": "python digits.py", "peers": "2", "attachment": "local", "max_peers": "4"}
    curves = dict[str, list[tuple[int, float]]]()
    for name, value, at, step in run["metrics"]:
        assert at >= 100_000
        curves.setdefault(name, []).append((step, value))
    assert [step for step, _ in curves["job/loss"]] == list(range(1, 480))
    assert curves["signals/noise_scale"][49] == (50, 150.0)
    assert curves["markers/decision"] == [(50, 3.0), (300, 2.0)]
    assert curves["rescale/stop_s"] == [(163, 0.134796), (301, 0.065204)]
    assert run["tags"]["kungfu.job"] == "ab12"
    assert run["tags"]["kungfu.change"] == "step 301: 3 -> 2 peers; peer 2 left"
    assert run["artifacts"]["events.jsonl"] == (tmp_path / "run" / "events.jsonl").read_text()
    assert "gns_batch wants 3 peers instead of 2" in run["artifacts"]["why.txt"]


@pytest.mark.parametrize(
    ("events", "code", "status"),
    [
        (NAMED, 130, "KILLED"),
        ((STARTED, *FAILED[1:]), 1, "FAILED"),
        (NAMED[:9], None, "KILLED"),  # kungfu-run was killed
        ((*NAMED[:9], made(event="failed", peer=-1, error="cut off", code=4)), 4, "RUNNING"),
        ((*NAMED[:9], *(made(event="host", host=host, name="h") for host in (0, 1))), 0, "RUNNING"),  # this host left
    ],
)
def test_the_status_of_the_run_is_the_end_of_the_job(
    tmp_path: Path, events: Events, code: int | None, status: str
) -> None:
    exported(recorded(tmp_path, events, code=code))
    assert [one["status"] for one in runs_in(tmp_path)] == [status]


def test_numbers_and_names_that_mlflow_does_not_take_are_written_otherwise(tmp_path: Path) -> None:
    signals = {"a/../b": 1.0, "<x>\ud800": math.inf, "": 2.0, "n" * 400: 3.0, **{f"s{nth}": 1.0 for nth in range(1200)}}
    (folder := tmp_path / "run").mkdir()
    exported(written(folder, [STARTED], metrics=[{"time": -5.0, "step": 1, **signals}, {"time": "NaN", "step": 2}]))
    [run] = runs_in(tmp_path)
    names = {name for name, *_ in run["metrics"]}
    assert {"signals/a____b", "signals/_x__", "signals/_"} <= names
    assert len(run["metrics"]) == 1204
    assert {at for *_, at, _ in run["metrics"]} == {0}


def test_a_server_that_is_down_is_told_once_and_gets_everything_when_it_is_up(tmp_path: Path) -> None:
    record, remarks = recorded(tmp_path), list[str]()
    (down := tmp_path / "down").touch()

    def looks() -> Iterator[bool]:
        yield False
        yield False
        assert runs_in(tmp_path) == []
        down.unlink()
        yield False
        yield True

    turns, target = looks(), MlflowTarget(f"file://{tmp_path}")
    assert export_record(record, target, is_over=lambda _: next(turns), report=remarks.append)
    assert "cannot be written (MlflowException: API request to http://tracking failed with code 503)" in remarks[0]
    assert [one.rpartition(" ")[2] for one in remarks[1:]] == [str(target), "now"]
    assert len({step for name, _, _, step in runs_in(tmp_path)[0]["metrics"] if name == "job/loss"}) == 479


def test_what_a_run_lacks_is_written_by_the_command(tmp_path: Path, printed: Printed) -> None:
    record, uri = recorded(tmp_path), f"file://{tmp_path}"
    (down := tmp_path / "down").touch()
    printed("mlflow", record, uri, code=1)
    down.unlink()
    printed("mlflow", record, uri)
    printed("mlflow", record, uri)
    [run] = runs_in(tmp_path)
    steps = [step for name, _, _, step in run["metrics"] if name == "job/loss"]
    assert steps[:479] == list(range(1, 480))
    assert len(steps) < 479 + 70, "of the second time only the last minute"
    (empty := tmp_path / "empty").mkdir()
    assert "the record has no start of a job" in printed("mlflow", written(empty, []), uri, code=2)
    assert "there is no such folder" in printed("mlflow", tmp_path / "none", uri, code=2)


def test_another_host_that_leads_continues_the_run(tmp_path: Path) -> None:
    head = made(event="head", time=112.0, host=1, name="b", term=2)
    hosts = [made(event="host", time=99.0, host=host, name="h") for host in (0, 1)]
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, events, rows in (
        (first, [*hosts, *NAMED[:6]], 12),
        (second, [*hosts, *NAMED[:6], head, *NAMED[6:]], 479),
    ):
        folder.mkdir()
        write_job_file(folder, JobFile("ab12", "", "", 1 << 30, 100.0, ended=131.0, code=0))
        written(folder, events, metrics=STEPS[:rows])
    exported(first, host=0)
    assert [one["status"] for one in runs_in(tmp_path)] == ["RUNNING"], "the others may go on"
    exported(second, host=0)
    exported(second, host=2)
    [run] = runs_in(tmp_path)
    assert max(step for name, _, _, step in run["metrics"] if name == "job/loss") == 12, "others do not write it"
    exported(second, host=1)
    [run] = runs_in(tmp_path)
    steps = {step for name, _, _, step in run["metrics"] if name == "job/loss"}
    assert (steps, run["status"]) == ({*range(1, 480)}, "FINISHED")


def test_a_run_belongs_to_the_experiment_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = recorded(tmp_path)
    for name, value in (("NAME", "digits"), ("NAME", "digits"), ("ID", "7")):
        monkeypatch.setenv(f"MLFLOW_EXPERIMENT_{name}", value)
        exported(record)
    assert [one["experiment"] for one in runs_in(tmp_path)] == ["digits", "7"]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("tracking:5000", "is http://tracking:5000 meant?"),
        ("127.0.0.1:5000/x", "is http://127.0.0.1:5000/x meant?"),
        ("", "an empty URI names no store"),
    ],
)
def test_a_uri_without_a_store_is_refused_before_anything_starts(
    uri: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-np", "1", "--mlflow", uri, "python", "-c", ""]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_mlflow_what_to_install_is_said(
    monkeypatch: pytest.MonkeyPatch, printed: Printed, tmp_path: Path
) -> None:
    monkeypatch.setattr("kungfu.extras.find_spec", lambda name: None)
    assert "[mlflow]'" in printed("mlflow", tmp_path, "mlruns", code=2)


@pytest.mark.slow
def test_the_process_follows_a_run_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, remarks = recorded(tmp_path, NAMED[:4], code=None), list[str]()
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    (tmp_path / "mlflow.py").write_text("raise ImportError('a file of the user has this name')")
    monkeypatch.chdir(tmp_path)
    with mlflow_process(record, MlflowTarget(f"file://{tmp_path}", 0), report=remarks.append):
        awaited(lambda: runs_in(tmp_path) and runs_in(tmp_path)[0]["metrics"], what="steps", deadline_s=60.0)
        with (record / "events.jsonl").open("a") as file:
            file.write("".join(f"{event_to_line(one)}\n" for one in NAMED[4:]))
    [run] = runs_in(tmp_path)
    assert (run["status"], [one for one in run["metrics"] if one[0] == "markers/rescale"] != []) == ("FINISHED", True)
    assert remarks == [f"MLflow: the job is run run (run0) at file://{tmp_path}"]
