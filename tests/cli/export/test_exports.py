"""What a command line opens for other programs, and under which names."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.cli.export.exports import Exports, exporting


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


def test_nothing_that_was_not_asked_for_is_opened(tmp_path: Path) -> None:
    told = list[str]()
    assert Exports().tensorboard_run(tmp_path) is None
    with exporting(Exports(), tmp_path, tell=told.append) as listeners:
        assert (list(listeners), told) == ([], [])
