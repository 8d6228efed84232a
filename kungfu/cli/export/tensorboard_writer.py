"""Writes a run's record as TensorBoard event files, in a separate process during the job.

The process follows the record's files, so that no peer and no agent waits for it. It ends when its standard input
closes, at the end of the job. If a file cannot be written, for example to a full disk, the process retries, and reads
no more of the record until the write succeeds. Therefore nothing is lost.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from kungfu.cli.export.side_process import begin_beside, job_ends
from kungfu.cli.export.tensorboard_summaries import SummaryMaker
from kungfu.cli.run_folder import make_folder
from kungfu.errors import KungfuError
from kungfu.event_log.record_follower import RecordFollower

# Peers report their steps every two seconds.
_LOOK_EVERY_S = 1.0


class EventFile:
    """A TensorBoard event file, created with the first event; each batch of events is written whole or not at all.

    Args:
        folder: The folder of the run in TensorBoard; if it exists, its name gets a suffix, from ``-2`` on.

    Attributes:
        folder: The created folder; ``None`` before the first event.
    """

    def __init__(self, folder: Path) -> None:
        self._wanted, self._descriptor, self._length = folder, -1, 0
        self.folder: Path | None = None

    def append(self, events: Iterable[Event]) -> None:
        """Appends events. Raises ``OSError`` on failure, which leaves the file unchanged."""
        if self._descriptor < 0:
            self._create()
        data = io.BytesIO()
        writer = RecordWriter(data)
        # The first event of a file states its version.
        first = [] if self._length else [Event(wall_time=time.time(), file_version="brain.Event:2")]
        for event in [*first, *events]:
            writer.write(event.SerializeToString())
        left = memoryview(data.getvalue())
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            # Readers would treat an incomplete event as the end of the file.
            os.ftruncate(self._descriptor, self._length)
            os.lseek(self._descriptor, self._length, os.SEEK_SET)
            raise
        self._length += data.tell()

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _create(self) -> None:
        wanted = self._wanted
        wanted.parent.mkdir(parents=True, exist_ok=True)
        # Another run of the same name may be in TensorBoard already.
        self.folder = self.folder or make_folder(lambda suffix: wanted.with_name(f"{wanted.name}{suffix}"))
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.kungfu"
        self._descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def export_record(
    record: Path, target: Path, *, is_over: Callable[[float], bool], report: Callable[[str], None]
) -> Path | None:
    """Writes a record for TensorBoard, with the lines that are added to it, until the run is over.

    Args:
        record: The folder that kungfu-run writes.
        target: The folder of the run in TensorBoard.
        is_over: Waits up to the given seconds for the end of the run, and returns True at the end.
        report: Called with a remark when the events cannot be written, and when they can be again.

    Returns:
        The folder that was written; ``None`` if none could be written.

    Raises:
        UsageError: The record is of another version, or cannot be read.
    """
    follower, maker, file = RecordFollower(record), SummaryMaker(), EventFile(target)
    pending: list[Event] = []
    is_told = ending = False
    while True:
        # Events that could not be written come before new ones.
        pending = pending or [*maker.made_of(follower.read())]
        try:
            if pending:
                file.append(pending)
                if is_told:
                    report(f"{target} can be written again: what was missing is there now")
                    is_told = False
            pending = []
        except OSError as error:
            if not is_told:
                report(f"{target} cannot be written ({error.strerror}); training continues, and it is retried")
            is_told = True
        if follower.has_more and not pending:
            continue
        # The run is over, and writing its whole record was tried.
        if ending:
            break
        ending = is_over(_LOOK_EVERY_S)
    file.close()
    if is_told:
        report(f"{target} lacks the end of the run, which could not be written; kungfu tensorboard {record} writes it")
    if follower.damaged:
        report(f"{follower.damaged} damaged lines of {record} were left out")
    return file.folder


def main(record: Path, target: Path) -> int:
    """Follows a run until standard input closes; prints remarks on standard output."""
    begin_beside()
    try:
        export_record(record, target, is_over=job_ends, report=lambda text: print(text, flush=True))
    except KungfuError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
