"""The files in the job's folder: decisions, metrics, the peers' output.

``events.jsonl`` contains the version of the record, then one object per decision and change (`kungfu.event_log`);
``metrics.jsonl`` contains one object per step of rank 0; ``peers/peer-N.log`` contains the whole output of a peer;
``trace.jsonl`` contains the inputs of the policies in each step, on every peer.

A failure to write these files never ends the job. Lines that are lost are reported once on the screen, and recorded as
an event ``gap`` as soon as the record can be written again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line, row_in
from kungfu.event_log.events import RECORD_VERSION, GapEvent, LoggedEvent, RecordEvent, UnrecordedEvent
from kungfu.runtime.agent.journal.log_file import LogFile, LogGap, merged

STREAMS = ("events", "metrics")

# Enough for a few hundred thousand steps of a few peers.
TRACE_LIMIT_BYTES = 256 << 20
_LONGEST_CUT_BYTES = 100  # of the line about the limit
# A nearly full disk fails and works alternately.
_NOTIFY_EVERY_S = 60.0


class Journal:
    """Appends to the files of one job. Every line is written at once, so that a killed job leaves a complete record.

    Args:
        folder: The folder of the job.
        trace_limit_bytes: The size limit of the trace; in place of the first line beyond the limit, the trace ends with
            a line about the limit. 0 for no trace.
        clock: Returns the seconds since 1970.
        continues: True to append to the record of a job that is started again.

    Attributes:
        notify: Called with an event when lines are being lost, and with another event after the loss.

    Raises:
        UsageError: The folder contains a record already, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        trace_limit_bytes: int = TRACE_LIMIT_BYTES,
        clock: Callable[[], float] = time.time,
        continues: bool = False,
    ) -> None:
        self.folder, self._clock, self._continues = folder, clock, continues
        self.notify: Callable[[LoggedEvent], None] = lambda event: None  # while there is no console yet
        self._lock = threading.RLock()  # a line may end a gap, which is recorded by another line
        self._trace_left = self._trace_limit = trace_limit_bytes
        self._failing: dict[Path, LogFile] = {}
        self._unrecorded: dict[str, LogGap] = {}  # gaps that are over but not recorded yet, by file
        self._unwritten: dict[str, Callable[[], None]] = {}
        self._notified_at: float | None = None
        self._is_notified = False  # True while people know of a loss but not yet of its end
        if (folder / "events.jsonl").exists() and not continues:
            raise UsageError(
                f"--logdir {folder} holds the record of a run already; delete it, give another folder, or let the job "
                "go on from its newest checkpoint: --restarts 3"
            )
        names = (*STREAMS, "trace") if trace_limit_bytes else STREAMS
        first = {"events": _line(RecordEvent(version=RECORD_VERSION))}
        self._files = {
            name: LogFile(folder / f"{name}.jsonl", clock=clock, head=first.get(name, b""), continues=continues)
            for name in names
        }  # fmt: skip
        try:
            (folder / "peers").mkdir(parents=True, exist_ok=True)
            for file in self._files.values():
                file.open()
        except OSError as error:
            raise UsageError(f"--logdir {folder}: {error.strerror}; give a folder that can be written") from error
        self._continue_trace()
        for file in self._files.values():
            if file.is_cut:
                now = self._clock()
                self.write(
                    _event(self._name(file), LogGap(now, now, 1, "kungfu-run was killed while it wrote the line"))
                )

    def _continue_trace(self) -> None:
        """Subtracts the lines of former runs from the limit of the trace, which may have been reached."""
        if (file := self._files.get("trace")) is None or not file.found_bytes:
            return
        with file.path.open("rb") as lines:
            lines.seek(max(0, file.found_bytes - _LONGEST_CUT_BYTES))
            last = row_in(lines.read().splitlines()[-1])
        is_at_limit = last is not None and "cut" in last
        self._trace_left = -1 if is_at_limit else max(0, self._trace_left - file.found_bytes)

    def output_of(self, peer: int) -> Output:
        """The log for the output of a peer."""
        path = self.folder / "peers" / f"peer-{peer}.log"
        return Output(self, LogFile(path, clock=self._clock, mark=_mark, continues=self._continues))

    def write(self, event: LoggedEvent) -> LoggedEvent:
        """Writes an event, stamped with the time in seconds since 1970, and returns the stamped event."""
        with self._lock:  # the agent and the threads that serve the peers all write
            stamped = self._stamped(event)
            self.append_to(self._files["events"], _line(stamped))
            self._write_small_files()
        return stamped

    def _stamped(self, event: LoggedEvent) -> LoggedEvent:
        return replace(event, time=round(self._clock(), 6))

    def events_so_far(self) -> list[str]:
        """The lines of ``events.jsonl``; empty if the file cannot be read."""
        try:
            return (self.folder / "events.jsonl").read_text(errors="replace").splitlines()
        except OSError:
            return []

    def append(self, stream: str, lines: Sequence[str]) -> None:
        """Appends lines to a stream unchanged; to the trace only up to its limit."""
        # There is nothing to append, or the trace is off.
        if not lines or stream not in self._files:
            return
        with self._lock:
            if stream == "trace":
                lines = [kept for line in lines if (kept := self._fitting(line)) is not None]
            self.append_to(self._files[stream], "".join(f"{line}\n" for line in lines).encode())
            self._end_gap_of_events()
            self._write_small_files()

    def keep(self, name: str, write: Callable[[], None]) -> None:
        """Calls ``write`` to write a small file; after an ``OSError``, does so again when the next line is written."""
        with self._lock:
            self._unwritten[name] = write
            self._write_small_files()

    def close(self) -> None:
        """Closes the files; idempotent. Lines missing at the end of a file are reported and, if possible, recorded."""
        with self._lock:
            self._is_notified, lacking = False, dict[str, LogGap]()
            for stream in ("trace", "metrics", "events"):  # events.jsonl last: it records the gaps of other files
                if (file := self._files.get(stream)) is None:
                    continue
                if file.gap is not None and file.is_open:
                    lacking[self._name(file)] = file.gap
                if (ended := file.write(b"", at_once=True)) is not None:
                    self.on_gap_over(file, ended)
                self.close_file(file)
            for name, gap in lacking.items():
                self.notify(_event(name, gap))

    # ---- gaps --------------------------------------------------------------------------------------------------------

    def on_gap_over(self, file: LogFile, gap: LogGap) -> None:
        """Handles the end of a gap: the file can be written again, and the gap is recorded."""
        with self._lock:
            self._end_gap(file, gap)
            event = _event(self._name(file), self._unrecorded[self._name(file)])
            self._conclude_gap(event)

    def close_file(self, file: LogFile) -> None:
        """Closes a file; if its last lines could not be written, records them as lost."""
        with self._lock:
            file.close()
            # The last lines of the file could not be written.
            if file.gap is not None:
                self._end_gap(file, file.gap)
                self._write_gaps()

    def _end_gap(self, file: LogFile, gap: LogGap) -> None:
        self._failing.pop(file.path, None)
        self._unrecorded[self._name(file)] = merged(self._unrecorded.get(self._name(file)), gap)

    def _end_gap_of_events(self) -> None:
        """Ends a gap (missing lines) in ``events.jsonl`` when another file is written: the next event may come late."""
        file = self._files["events"]
        name = self._name(file)

        def line(gap: LogGap) -> bytes:
            return _line(self._stamped(_event(name, merged(self._unrecorded.get(name), gap))))

        if (ended := file.end_gap(line)) is None:
            return
        self._failing.pop(file.path, None)
        self._conclude_gap(_event(name, merged(self._unrecorded.pop(name, None), ended)))

    def _conclude_gap(self, event: LoggedEvent) -> None:
        """Records the unrecorded gaps (missing lines); shows the end of a gap on the screen if its start was shown."""
        self._write_gaps()
        if self._is_notified:
            self._is_notified = bool(self._failing)
            self.notify(event)

    def _write_gaps(self) -> None:
        """Writes an event for each gap (missing lines of a file) to ``events.jsonl``, if that file can be written."""
        events = self._files["events"]
        while self._unrecorded and events.gap is None and events.is_open:
            name, gap = next(iter(self._unrecorded.items()))
            self.append_to(events, _line(self._stamped(_event(name, gap))))
            if events.gap is None:
                self._unrecorded.pop(name, None)

    def append_to(self, file: LogFile, data: bytes) -> None:
        """Appends to a file, and notes the first failed write, or the first successful write after failures."""
        had_gap, ended = file.gap is not None, file.write(data)
        if ended is not None:
            self.on_gap_over(file, ended)
        # The file cannot be written at present. A full disk affects all files: people are notified of the first.
        elif file.gap is not None and not had_gap:
            with self._lock:
                first = not self._failing
                self._failing[file.path] = file
                if first:
                    self._notify_of_loss(self._name(file), file.gap.error)

    def _write_small_files(self) -> None:
        for name, write in list(self._unwritten.items()):
            try:
                write()
            # The file is tried again with a later line.
            except OSError as error:
                self._notify_of_loss(name, error.strerror or str(error))
            else:
                del self._unwritten[name]

    def _notify_of_loss(self, name: str, error: str) -> None:
        now = self._clock()
        # People were notified a moment ago.
        if self._notified_at is not None and 0 <= now - self._notified_at < _NOTIFY_EVERY_S:
            return
        self._notified_at, self._is_notified = now, True
        self.notify(UnrecordedEvent(file=name, error=error))

    def _name(self, file: LogFile) -> str:
        return str(file.path.relative_to(self.folder))

    def _fitting(self, line: str) -> str | None:
        """The line if it fits in the trace; else a line about the limit, once; ``None`` after that."""
        left, self._trace_left = self._trace_left, self._trace_left - len(line.encode()) - 1
        # The first line that does not fit: the trace ends with a line about the limit.
        if self._trace_left < 0 <= left:
            return json.dumps({"cut": True, "limit_bytes": self._trace_limit})
        return line if self._trace_left >= 0 else None


class Output:
    """The log of one peer, written by the thread that reads the peer's output."""

    def __init__(self, journal: Journal, file: LogFile) -> None:
        self._journal, self._file = journal, file

    def write(self, line: bytes) -> None:
        """Appends a line, or counts it as lost if it cannot be written."""
        self._journal.append_to(self._file, line)

    def close(self) -> None:
        """Closes the log after the exit of the peer."""
        self._journal.close_file(self._file)


def _line(event: LoggedEvent) -> bytes:
    return f"{event_to_line(event)}\n".encode()


def _event(name: str, gap: LogGap) -> GapEvent:
    since, until = round(gap.since, 6), round(gap.until, 6)
    return GapEvent(file=name, since=since, until=until, lines=gap.lines, error=gap.error)


def _mark(gap: LogGap) -> bytes:
    lines = "line is" if gap.lines == 1 else "lines are"
    return f"[kungfu: {gap.lines} {lines} missing here, which could not be written: {gap.error}]\n".encode()
