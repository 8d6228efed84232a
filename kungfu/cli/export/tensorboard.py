"""``kungfu-run --tensorboard DIR`` and ``kungfu tensorboard``: write a run for TensorBoard, live or afterwards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from kungfu.cli.export.side_process import SideProcess
from kungfu.cli.run_folder import check_record

_WRITER = "kungfu.cli.export.tensorboard_writer"
# Seconds after the end of a job in which to write the rest of its record.
_END_WITHIN_S = 30.0


def tensorboard_process(record: Path, target: Path, *, report: Callable[[str], None]) -> SideProcess:
    """A side process that writes a run for TensorBoard while the run is being recorded; a context manager."""
    return SideProcess(
        "TensorBoard", _WRITER, (str(record.absolute()), str(target.absolute())), subject=str(target), report=report,
        end_within_s=_END_WITHIN_S, late=f"{target} was not written to its end within {_END_WITHIN_S:.0f} s",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu tensorboard``."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of the run's record")
    parser.add_argument(
        "target", nargs="?", type=Path, metavar="DIR",
        help="the log folder of TensorBoard, in which the run gets its own folder (RUN/tensorboard)",
    )  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Writes a recorded run for TensorBoard; returns the exit code."""
    from kungfu.cli.export.tensorboard_writer import export_record

    check_record(given.folder)
    target = (given.target or given.folder / "tensorboard") / given.folder.absolute().name
    remarks: list[str] = []
    written = export_record(given.folder, target, is_over=lambda timeout_s: True, report=remarks.append)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    if written is None:
        return 1
    print(f"{written}; `tensorboard --logdir {written.parent}` shows it")
    return 0
