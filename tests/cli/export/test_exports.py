"""What a command line opens for other programs, and under which names."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kungfu.cli.export.exports import Exports, add_arguments, completed, exporting, read_exports
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
    with exporting(Exports(), tmp_path, report=told.append) as listeners:
        assert (list(listeners), told) == ([], [])
