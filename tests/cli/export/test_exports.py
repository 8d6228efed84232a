"""What a command line opens for other programs, and under which names."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kungfu.cli.export import exports as exports_module
from kungfu.cli.export.exports import Exports, add_arguments, completed, exporting, read_exports
from kungfu.cli.export.mlflow_target import MlflowTarget
from kungfu.cli.export.side_process import SideProcess
from kungfu.cli.hosting import Hosting
from kungfu.runtime.hosts import Host


@pytest.mark.parametrize(
    ("record", "suffix", "name"),
    [
        ("runs/20261122-1200", "", "20261122-1200"),
        ("runs/20261122-1200-127.0.0.2", "-127.0.0.2", "20261122-1200-127.0.0.2"),
        ("log", "-127.0.0.2", "log-127.0.0.2"),
        ("log/../other/.", "", "other"),
    ],
)
def test_a_run_has_the_name_of_its_record_and_of_its_host(record: str, suffix: str, name: str) -> None:
    assert Exports(Path("board"), suffix).tensorboard_run(Path(record)) == Path("board") / name


@pytest.mark.parametrize(
    ("given", "page"),
    [("--page", "127.0.0.1:0"), ("--page 8080", "127.0.0.1:8080"), ("--page=[::1]:80", "[::1]:80"), ("", "None")],
)
def test_a_page_has_a_port_or_none_and_never_takes_the_program_for_one(given: str, page: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    words = [*given.split(), "python", "-u", "train.py", "--page", "x"]
    read = parser.parse_args(completed(words, parser=parser))
    hosting = Hosting((Host("127.0.0.1", 1, 0),), 0, "job", "")
    assert str(read_exports(read, hosting=hosting).page) == page
    assert read.command == ["python", "-u", "train.py", "--page", "x"]


def test_nothing_that_was_not_asked_for_is_opened(tmp_path: Path) -> None:
    told = list[str]()
    assert Exports().tensorboard_run(tmp_path) is None
    with exporting(Exports(), tmp_path, report=told.append) as running:
        assert (running.listeners, told) == ([], [])


def test_all_processes_are_told_of_the_end_before_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each process ends only if the other one has been told of the end, too.
    (tmp_path / "waiting_end.py").write_text(
        "import pathlib, sys, time\n"
        "own, other = map(pathlib.Path, sys.argv[1:])\n"
        "sys.stdin.read()\n"
        "own.touch()\n"
        "while not other.exists():\n"
        "    time.sleep(0.02)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = list[str]()

    def waiting(own: str, other: str) -> SideProcess:
        ends = (str(tmp_path / own), str(tmp_path / other))
        return SideProcess(own, "waiting_end", ends, subject=own, end_within_s=20, report=told.append, late="late")

    monkeypatch.setattr(exports_module, "tensorboard_process", lambda *given, report: waiting("a", "b"))
    monkeypatch.setattr(exports_module, "mlflow_process", lambda *given, report: waiting("b", "a"))
    with exporting(Exports(tmp_path, mlflow=MlflowTarget("mlruns")), tmp_path, report=told.append):
        pass
    assert told == []
