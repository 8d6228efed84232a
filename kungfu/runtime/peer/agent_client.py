"""A peer's calls to its agent. Reports go out from a thread of their own, so that training never waits for a log."""

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
from kungfu.runtime.ipc.convert import from_report
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceStub
from kungfu.runtime.settings import Settings

# An entry of the job's record: an event, or a function that gives the fields of a line or its text when it is sent; see
# ``AgentClient.record``.
DeferredEntry = Callable[[], Mapping[str, Any] | str]
RecordEntry = LoggedEvent | DeferredEntry

# To wake the reporting thread and the agent costs more than the lines do, so those of steps are sent every
# `Settings.report_s`. People read of events, and wait for them.
_NEWS_WITHIN_S = 0.25

# What gathered while the agent did not answer goes out in several messages: gRPC takes none beyond 64 MiB.
_MOST_BYTES = 4 << 20

# How often a peer that is held up on its way says so, and for how long.
_REPEAT_S, _MOST_REPEATED_S = 5.0, 1800.0

# A trace has a line for every step of every peer; the other streams are read by people.
_TRACE = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class AgentClient:
    """Calls to the agent of this host, on behalf of one peer."""

    def __init__(self, settings: Settings, peer: Peer) -> None:
        self.peer, self._deadline_s, self._report_s = peer, settings.deadlines.wait_s, settings.report_s
        self._channel = rpc.connect(settings.agent, secret=settings.secret)
        self._stub = AgentServiceStub(self._channel)
        self._records: queue.SimpleQueue[pb.Record | tuple[str, DeferredEntry]] = queue.SimpleQueue()
        self._reports, self._is_incomplete = 0, False
        self._unacknowledged: pb.Records | None = None  # sent, and not answered
        self._closing, self._news, self._flushing = threading.Event(), threading.Event(), threading.Lock()
        self._reporter = threading.Thread(target=self._report, name="kungfu-report", daemon=True)
        self._reporter.start()

    def phase_progress(self) -> pb.PhaseProgress:
        """The phases of the job that are over, and the peers that know their results."""
        ask, deadline_s = self._stub.GetPhaseProgress, self._deadline_s
        progress: pb.PhaseProgress = rpc.call(ask, pb.Empty(), deadline_s=deadline_s, what="the agent")
        return progress

    def report(self, event: ReportedEvent) -> None:
        """Reports an event to the agent that leads, which has it when this returns."""
        self._call(self._stub.ReportEvent, from_report(event))

    def record(self, stream: str, entry: RecordEntry) -> None:
        """Queues an entry for a stream of the agent's journal, which has it within ``report_s``, an event sooner.

        Args:
            stream: "events", "metrics" or "trace"; or "step", of which the entry gives the line of each stream that has
                one.
            entry: An event; or a function that gives the fields of a line, or its text, and is called in the reporting
                thread.
        """
        self._records.put((stream, entry) if callable(entry) else pb.Record(event=pack_event(entry)))
        # People wait for events.
        if stream == "events":
            self._news.set()

    def finish(self, summary: Mapping[str, Any], *, leaving: bool, phase: int = 0) -> None:
        """This peer's training is over; everything it recorded is with the agent when this returns.

        Args:
            summary: Further fields of its event.
            leaving: True if a decision let it go.
            phase: The phase that is over, after which another one may follow; 0 if none can.
        """
        self._flush()
        event = FinishedEvent(peer=self.peer.id, leaving=leaving, phase=phase, **summary)
        self._call(self._stub.ReportFinished, pb.TrainingFinished(event=pack_event(event)))

    def close(self) -> None:
        """Sends what is left and hangs up."""
        self._closing.set()
        self._news.set()
        self._reporter.join(timeout=2.0)
        self._channel.close()

    def _call(self, method: Any, message: Any) -> None:
        rpc.call(method, message, deadline_s=self._deadline_s, what="the agent")

    def _report(self) -> None:
        last = False
        while not last:
            # An event seldom comes alone: a stop has several, which travel together.
            if self._news.wait(self._report_s):
                self._closing.wait(_NEWS_WITHIN_S)
                self._news.clear()
            last = self._closing.is_set()
            with suppress(PeerFailure, DeadlineExceeded):  # an agent that stands still gets it when it continues
                self._flush()

    def _flush(self) -> None:
        with self._flushing:  # no record may overtake those that are on their way
            while self._unacknowledged is not None or not self._records.empty():
                self._unacknowledged = self._unacknowledged or self._next_message()
                # Of two with one number the agent takes the first.
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
        except Exception as error:  # noqa: BLE001 - one line that cannot be made does not take the others with it
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
    """Repeats a report to the agent as long as the block continues, half an hour at most."""
    over, until = threading.Event(), time.monotonic() + _MOST_REPEATED_S

    def repeat() -> None:
        while not over.wait(every_s) and time.monotonic() < until:
            with suppress(KungfuError):  # an agent that does not answer hears it later
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
    except ValueError:  # a name that is no Unicode
        line = b"null"
    # A null may be a number that is not finite, of which a line says what it is: that is rare.
    if b"null" in line or not line.isascii():
        return json.dumps(as_json(fields))
    return line.decode()


def _trace_line(fields: Mapping[str, Any]) -> str:
    try:
        return _TRACE.encode(fields)
    except ValueError:  # something in it is not finite, which is rare
        return _TRACE.encode(as_json(fields, nan=None))
