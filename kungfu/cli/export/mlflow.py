"""``kungfu-run --mlflow URI`` and ``kungfu mlflow``: write a run to MLflow, live or afterwards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from kungfu.cli.export.mlflow_target import MlflowTarget, checked
from kungfu.cli.export.side_process import SideProcess
from kungfu.cli.run_folder import check_record

_WRITER = "kungfu.cli.export.mlflow_writer"
# Seconds after the end of a job in which to write the rest of its record.
_END_WITHIN_S = 30.0


def mlflow_process(record: Path, target: MlflowTarget, *, report: Callable[[str], None]) -> SideProcess:
    """A side process that writes a run to MLflow while the run is being recorded; a context manager."""
    return SideProcess(
        "MLflow", _WRITER, (str(record.absolute()), msgspec.json.encode(target).decode()), subject=str(target),
        report=report, end_within_s=_END_WITHIN_S,
        late=f"the run was not written to its end within {_END_WITHIN_S:.0f} s; kungfu mlflow {record} {target} does",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu mlflow``."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder written by kungfu-run")
    parser.add_argument("uri", metavar="URI", help="the tracking server or store of MLflow, such as http://HOST:5000")


def run(given: argparse.Namespace) -> int:
    """Writes a recorded run to MLflow, or what its run there lacks; returns the exit code."""
    target = checked(MlflowTarget(given.uri))
    from kungfu.cli.export.mlflow_writer import export_record

    check_record(given.folder)

    def note(remark: str) -> None:
        print(f"note: {remark}", file=sys.stderr)

    return 0 if export_record(given.folder, target, is_over=lambda timeout_s: True, report=note) else 1
