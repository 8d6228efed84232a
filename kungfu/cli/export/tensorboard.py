"""``kungfu-run --tensorboard DIR`` and ``kungfu tensorboard``: a run's record for TensorBoard, live or afterwards."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import kungfu
from kungfu.errors import UsageError

__all__ = ["TensorBoardProcess", "add_arguments", "check_installed", "run"]

_WRITER = "kungfu.cli.export.tensorboard_writer"
# After the end of a job, for the rest of its record.
_END_WITHIN_S = 30.0


def check_installed() -> None:
    """Refuses where the library that knows TensorBoard's files is missing: TensorFlow brings it up to 2.20 only."""
    if find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed; `pip install tensorboard`")


class TensorBoardProcess:
    """The process that writes one run for TensorBoard while it trains; a context, whose end is that of the job.

    Nothing waits for it but the end of the job: it reads the files of the record. When this process dies, its standard
    input closes, and it ends as well.

    Args:
        record: The folder of the run's record.
        target: The folder of the run in TensorBoard.
        tell: Takes remarks for people, from another thread.
    """

    def __init__(self, record: Path, target: Path, *, tell: Callable[[str], None]) -> None:
        self._record, self._target, self._tell = record, target, tell
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, name="kungfu-tensorboard", daemon=True)

    def __enter__(self) -> TensorBoardProcess:
        # Its module is this installation's, whatever the directory in which the user has started the job.
        path = os.pathsep.join(filter(None, [str(Path(kungfu.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _WRITER, str(self._record.absolute()), str(self._target.absolute())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**os.environ, "PYTHONPATH": path}, process_group=0,
            )  # fmt: skip
        # No memory or no process is left: the job matters more.
        except OSError as error:
            self._tell(f"TensorBoard: no process could be started ({error.strerror}); training goes on without")
            return self
        self._listener.start()
        return self

    def __exit__(self, *error: object) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._tell(f"TensorBoard: {self._target} was not written to its end within {_END_WITHIN_S:.0f} s")
        self._listener.join(1.0)
        assert process.stdout is not None
        process.stdout.close()

    def _listen(self) -> None:
        """Passes the remarks of the process on; one that ends by itself is told, with what it said last."""
        assert self._process is not None
        assert self._process.stdout is not None
        last = ""
        for line in self._process.stdout:
            last = line.strip() or last
            if not line.startswith((" ", "Traceback")):
                self._tell(f"TensorBoard: {line.strip()}")
        if self._process.wait() != 0:
            self._tell(f"TensorBoard: {self._target} ends here ({last or 'its process was killed'}); training goes on")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line of ``kungfu tensorboard``."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that kungfu-run wrote to")
    parser.add_argument(
        "target", nargs="?", type=Path, metavar="LOGDIR",
        help="the folder that TensorBoard is shown, in which the run gets one of its own (DIR/tensorboard)",
    )  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Writes a recorded run for TensorBoard; returns the exit code."""
    check_installed()
    from kungfu.cli.export.tensorboard_writer import export_record

    if not (given.folder / "events.jsonl").is_file():
        raise UsageError(f"{given.folder}: the folder holds no events.jsonl; give the folder that kungfu-run wrote to")
    target = (given.target or given.folder / "tensorboard") / given.folder.absolute().name
    remarks: list[str] = []
    written = export_record(given.folder, target, is_over=lambda timeout_s: True, tell=remarks.append)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    if written is None:
        return 1
    print(f"{written}; `tensorboard --logdir {written.parent}` shows it")
    return 0
