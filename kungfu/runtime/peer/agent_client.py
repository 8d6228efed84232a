"""A peer's calls to its agent. A separate thread sends the reports, so that training never waits for a log."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec.json

from kungfu.errors import DeadlineExceeded, KungfuError, PeerFailure
from kungfu.event_log.codec import pack_event
from kungfu.event_log.events import FinishedEvent, LoggedEvent
from kungfu.event_log.numbers import as_json
from kungfu.runtime.core.cluster.events import ReportedEvent
from kungfu.runtime.core.view import Peer
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_peer, from_report
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceStub
from kungfu.runtime.settings import Settings

# An entry of the job's record: an event, or a function that is called when the entry is sent and returns the fields or
# the text of a line; see ``AgentClient.record``.
DeferredEntry = Callable[[], Mapping[str, Any] | str]
RecordEntry = LoggedEvent | DeferredEntry

# Waking the reporting thread and the agent costs more than sending lines, so lines of steps are sent only every
# `Settings.report_s`. Events are sent sooner, since people wait for them.
_NEWS_WITHIN_S = 0.25

# Records queued while the agent did not answer are sent in several messages: gRPC's limit is 64 MiB per message.
_MOST_BYTES = 4 << 20

# The interval at which a peer that is delayed before joining repeats its report, and for how long it does so.
_REPEAT_S, _MOST_REPEATED_S = 5.0, 1800.0

# Compact, since a trace has a line for every step of every peer; people read the other streams.
_TRACE = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class AgentClient:
    """The calls of one peer to the agent of its host."""

    def __init__(self, settings: Settings, peer: Peer) -> None:
        self.peer, self._deadline_s, self._report_s = peer, settings.deadlines.wait_s, settings.report_s
        self._channel = rpc.connect(settings.agent, secret=settings.secret)
        self._stub = AgentServiceStub(self._channel)
        self._records: queue.SimpleQueue[pb.Record | tuple[str, DeferredEntry]] = queue.SimpleQueue()
        self._reports, self._is_incomplete = 0, False
        self._unacknowledged: pb.Records | None = None  # sent but not acknowledged
        self._closing, self._news, self._flushing = threading.Event(), threading.Event(), threading.Lock()
        self._reporter = threading.Thread(target=self._report, name="kungfu-report", daemon=True)
        self._reporter.start()

    def phase_progress(self) -> pb.PhaseProgress:
        """The number of finished phases of the job, and the peers that know their results."""
        progress: pb.PhaseProgress = self._call(self._stub.GetPhaseProgress, from_peer(self.peer))
        return progress

    def report(self, event: ReportedEvent) -> None:
        """Reports an event to the leading agent, and returns once the agent has received it."""
        self._call(self._stub.ReportEvent, from_report(event))

    def record(self, stream: str, entry: RecordEntry) -> None:
        """Queues an entry for the agent's journal, to be sent within ``report_s`` seconds; an event is sent sooner.

        Args:
            stream: "events", "metrics" or "trace"; or "step", for an entry that returns one line for each of several
                streams.
            entry: An event; or a function that is called in the reporting thread and returns the fields of a line, or
                its text.
        """
        self._records.put((stream, entry) if callable(entry) else pb.Record(event=pack_event(entry)))
        # Events are sent soon, since people wait for them.
        if stream == "events":
            self._news.set()

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """Reports that training is over on this peer; on return, the agent has received all records of this peer.

        Args:
            summary: Further fields of the `FinishedEvent`.
            leaving: True if a decision removed this peer.
            phase: The finished phase if another phase may follow, else 0.
        """
        self._flush()
        event = FinishedEvent(peer=self.peer.id, leaving=leaving, phase=phase, **summary)
        self._call(self._stub.ReportFinished, pb.TrainingFinished(event=pack_event(event)))

    def close(self) -> None:
        """Sends the remaining records and closes the connection."""
        self._closing.set()
        self._news.set()
        self._reporter.join(timeout=2.0)
        self._channel.close()

    def _call(self, method: Any, message: Any) -> Any:
        return rpc.call(method, message, deadline_s=self._deadline_s, what="the agent")

    def _report(self) -> None:
        last = False
        while not last:
            # One occurrence often causes several events, for example a stop: they are sent together.
            if self._news.wait(self._report_s):
                self._closing.wait(_NEWS_WITHIN_S)
                self._news.clear()
            last = self._closing.is_set()
            with suppress(PeerFailure, DeadlineExceeded):  # a frozen agent gets the records once it continues
                self._flush()

    def _flush(self) -> None:
        with self._flushing:  # keeps the order of the records
            while self._unacknowledged is not None or not self._records.empty():
                self._unacknowledged = self._unacknowledged or self._next_message()
                # The agent ignores a message whose number it has seen.
                self._call(self._stub.ReportRecords, self._unacknowledged)
                self._unacknowledged = None

    def _next_message(self) -> pb.Records:
        records, size = list[pb.Record](), 0
        while size < _MOST_BYTES and not self._records.empty():
            record = self._records.get()
            made = [record] if isinstance(record, pb.Record) else self._made(*record)
            records += made
            size += sum(one.ByteSize() for one in made)
        self._reports += 1
        return pb.Records(peer=self.peer.id, records=records, number=self._reports)

    def _made(self, stream: str, entry: DeferredEntry) -> list[pb.Record]:
        try:
            lines = entry()
            named = lines if stream == "step" and not isinstance(lines, str) else {stream: lines}
            return [_record(name, line) for name, line in named.items()]
        except Exception as error:  # noqa: BLE001 - the other lines are sent even if one cannot be made
            if not self._is_incomplete:
                self._is_incomplete = True
                print(
                    f"kungfu: peer {self.peer.id} could not make a line of the record and leaves it out; this is "
                    f"said once: {type(error).__name__}: {error}",
                    file=sys.stderr,
                )
            return []


@contextmanager
def repeated(report: Callable[[], None], *, every_s: float = _REPEAT_S) -> Iterator[None]:
    """Repeats a report to the agent until the block ends, for half an hour at most."""
    over, until = threading.Event(), time.monotonic() + _MOST_REPEATED_S

    def repeat() -> None:
        while not over.wait(every_s) and time.monotonic() < until:
            with suppress(KungfuError):  # if the agent does not answer, the next repetition may reach it
                report()

    thread = threading.Thread(target=repeat, name="kungfu-on-the-way", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _record(stream: str, entry: Mapping[str, Any] | str) -> pb.Record:
    if stream == "metrics":
        return pb.Record(metrics=entry if isinstance(entry, str) else _metrics_line(entry))
    return pb.Record(trace=entry if isinstance(entry, str) else _trace_line(entry))


def _metrics_line(fields: Mapping[str, Any]) -> str:
    try:
        line = msgspec.json.format(msgspec.json.encode(fields), indent=0)
    except ValueError:  # a name that is not valid Unicode
        line = b"null"
    # A null may represent a number that is not finite (this is rare): `as_json` writes such a number as text.
    if b"null" in line or not line.isascii():
        return json.dumps(as_json(fields))
    return line.decode()


def _trace_line(fields: Mapping[str, Any]) -> str:
    try:
        return _TRACE.encode(fields)
    except ValueError:  # a value is not finite, which is rare
        return _TRACE.encode(as_json(fields, nan=None))
