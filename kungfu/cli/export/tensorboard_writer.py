"""Writes a run's record as TensorBoard event files: scalars of steps, markers and texts of events.

During a job, a separate process follows the record's files, so that no peer or agent waits. The process ends when its
standard input closes, at the end of the job. If a file cannot be written, for example to a full disk, the process
retries (see `export_growing`).

Each line of the metrics becomes one TensorBoard event with all numbers of the line, under the names of
`kungfu.cli.export.plotted_numbers`. The tags ``events/KIND`` have the events as texts, in the words of ``kungfu why``.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from kungfu.cli.export.growing_export import export_growing
from kungfu.cli.export.plotted_numbers import NumberReader
from kungfu.cli.export.side_process import job_ends, run_beside
from kungfu.cli.run_folder import make_folder
from kungfu.event_log.events import LoggedEvent
from kungfu.event_log.logged_event import Topic
from kungfu.event_log.record_follower import NewRecords

# The texts of these topics have separate tags; all other topics share the tag of the job.
_TEXTS: Mapping[Topic, str] = {
    **dict.fromkeys(("decision", "call", "superseded", "refusal"), "decisions"),
    "setting": "settings", "shadow": "shadow", "held back": "held back", "rescale": "rescales",
    "recovery": "recoveries", "request": "requests", "checkpoint": "checkpoints", "view": "views",
}  # fmt: skip


class SummaryMaker:
    """Makes TensorBoard events from the lines of the record, in the order of the lines."""

    def __init__(self) -> None:
        self._numbers = NumberReader()

    def made_of(self, new: NewRecords) -> Iterator[Event]:
        """The TensorBoard events for new lines of the record."""
        for row in new.rows:
            if (kept := self._numbers.of_row(row)) is not None:
                yield _event(kept.at, kept.step, _scalars(kept.numbers))
        for event in new.events:
            yield from self._of_event(event)

    def _of_event(self, event: LoggedEvent) -> Iterator[Event]:
        at, step, numbers = self._numbers.of_event(event)
        if numbers:
            yield _event(at, step, _scalars(numbers))
        if text := _text(event):
            yield _event(at, step, [_text_value(f"events/{_TEXTS.get(event.topic, 'job')}", text)])


def _text(event: LoggedEvent) -> str:
    """The text of an event in the words of ``kungfu why``; empty for an event that ``kungfu why`` omits."""
    if event.topic in ("rescale", "recovery"):
        return "\n".join([event.headline(), *(f"- {one}" for one in event.details())])
    return event.one_line()


def _text_value(tag: str, text: str) -> Summary.Value:
    """A text as a code block for TensorBoard, which then does not interpret Markdown or HTML in names."""
    block = "".join(f"    {line}\n" for line in text.splitlines())
    metadata = create_summary_metadata(display_name=None, description=None)
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto([block.encode("utf-8", "replace")]))


def _scalars(numbers: Mapping[str, float]) -> Iterable[Summary.Value]:
    return [Summary.Value(tag=_utf8(tag), simple_value=value) for tag, value in numbers.items()]


def _utf8(name: str) -> str:
    """A name that a protocol buffer can hold: JSON may contain lone surrogates."""
    return name.encode("utf-8", "replace").decode()


def _event(at: float, step: int, values: Iterable[Summary.Value]) -> Event:
    return Event(wall_time=at, step=step, summary=Summary(value=values))


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
    """Writes a record for TensorBoard, including lines that are added later, until the run is over.

    Args:
        is_over: Waits up to the given seconds for the end of the run, and returns True at the end.
        report: Called with a remark when writing the events fails, and when writing succeeds again.

    Returns:
        The folder that was written; ``None`` if none could be written.

    Raises:
        UsageError: The record is of another version, or cannot be read.
    """
    maker, file = SummaryMaker(), EventFile(target)

    def made_of(new: NewRecords) -> Iterable[list[Event]]:
        events = [*maker.made_of(new)]
        return [events] if events else []

    export_growing(
        record, made_of, file.append, target=str(target), later=f"kungfu tensorboard {record}",
        is_over=is_over, report=report,
    )  # fmt: skip
    file.close()
    return file.folder


if __name__ == "__main__":
    record, target = map(Path, sys.argv[1:])
    sys.exit(run_beside(lambda report: export_record(record, target, is_over=job_ends, report=report)))
