"""Throughput tables from files, and what is wrong with some."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.schedule import Curve, read_throughputs

GOOD = "global_batch_size,1,2,4\n64,1.0,1.8,\n128,,0.9,1.5\n\n"


def _folder(tmp_path: Path, text: str) -> Path:
    (tmp_path / "net.csv").write_text(text, encoding="utf-8")
    return tmp_path


def test_empty_ends_of_a_row_were_not_measured(tmp_path: Path) -> None:
    measured = read_throughputs(_folder(tmp_path, GOOD))
    assert measured.curve("net", batch=64) == Curve((1, 2), (1.0, 1.8))
    assert measured.curve("net", batch=128) == Curve((2, 4), (0.9, 1.5))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("global_batch_size,1,2,4\n64,1.0,,2.0\n", r"net\.csv:2: column 2: a hole"),
        ("global_batch_size,1,2\n64,1.0,0\n", r"net\.csv:2: the rate on 2 GPUs is 0\.0"),
        ("global_batch_size,1,2\n64,1.0,fast\n", r"net\.csv:2: column 2: expected a number, got 'fast'"),
        ("global_batch_size,1,2\n64,1.0,2.0,3.0\n", r"net\.csv:2: expected 1 to 2 rates, got 3"),
        ("global_batch_size,1,2\nbig,1.0,2.0\n", r"net\.csv:2: column global_batch_size: expected a number"),
        ("global_batch_size,1\n64,1.0\n64,2.0\n", r"net\.csv:3: expected a new batch, got 64 again"),
        ("batch,1,2\n64,1.0,2.0\n", r"net\.csv:1: expected a header"),
        ("", r"net\.csv:1: expected a header"),
        ("global_batch_size,1,inf\n64,1.0,2.0\n", r"net\.csv:1: expected a whole number of at least 1, got 'inf'"),
        ("global_batch_size,1,2.5\n64,1.0,2.0\n", r"net\.csv:1: expected a whole number of at least 1, got '2\.5'"),
        ("\nglobal_batch_size,1,2\n\n6.4,1.0,2.0\n", r"net\.csv:4: column global_batch_size: expected a whole number"),
        ('global_batch_size,1\n64,"1', r"net\.csv: expected a readable CSV file in UTF-8"),
    ],
)
def test_a_table_with_a_fault_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_throughputs(_folder(tmp_path, text))


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"net\.csv: expected a readable CSV file in UTF-8"):
        read_throughputs(tmp_path)
    (tmp_path / "net.csv").unlink()
    (tmp_path / "net.csv").mkdir()
    with pytest.raises(UsageError, match=r"net\.csv: expected a readable CSV file in UTF-8"):
        read_throughputs(tmp_path)


def test_unknown_models_batches_and_folders_are_named(tmp_path: Path) -> None:
    measured = read_throughputs(_folder(tmp_path, GOOD))
    with pytest.raises(UsageError, match=r"no throughput of model 'other' is known; there are \['net'\]"):
        measured.family("other")
    with pytest.raises(UsageError, match=r"'net' at batch 7 is known; there are \[64, 128\]"):
        measured.curve("net", batch=7)
    with pytest.raises(UsageError, match="holds no throughput tables"):
        read_throughputs(tmp_path / "nowhere")
