"""Records events: writes them to the journal, shows them to people, and replicates them to the other hosts.

The recorder also detects policies' named signals whose values are not finite in many steps; nothing else reports them.
A policy that waits for a noise scale requests nothing while the noise scale is NaN. Steps before the first finite value
of a signal are not counted: many signals are NaN until something was measured.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from kungfu.event_log.codec import event_in, event_to_line, pack_event, row_in, unpack_event
from kungfu.event_log.events import (
    AnyEvent,
    EndedEvent,
    FailedEvent,
    FinishedEvent,
    GapEvent,
    LoggedEvent,
    PeerEndedEvent,
    RecordEvent,
    UndefinedEvent,
    UnrecordedEvent,
)
from kungfu.event_log.numbers import as_float
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.core.failure import NO_QUORUM_CODE
from kungfu.runtime.ipc import messages_pb2 as pb

_LEADER = -1
_SO_FAR = -2  # the leader, for a host that has joined: its record begins with the events before
_PART = 1000  # events in one message
# The events about the files of one host only.
_OF_THIS_HOST = (RecordEvent, GapEvent, UnrecordedEvent)
_FIRST_STEPS = 100
# The minimum share of undefined steps since the last check that is reported.
_SHARE = 0.1
# The loss has separate events.
_REPORTED_ELSEWHERE = ("loss",)


class RecordListener(Protocol):
    """Receives the records of a host. A listener gets all records, on any thread, and must return at once."""

    def event(self, event: LoggedEvent) -> None:
        """Receives an event that has been recorded."""

    def status(self, fields: Mapping[str, Any]) -> None:
        """Receives a measured step, as the fields of the step's line of metrics."""


class Console(RecordListener, Protocol):
    """The console of a running job; formats the events for people."""

    def note(self, event: LoggedEvent) -> None:
        """Handles a recorded event that is not shown."""

    def line(self, who: str, text: str) -> None:
        """Shows a line that a peer has printed."""


class HostRecorder:
    """One host's record of the job.

    Args:
        journal: Writes the record to the files of the job's folder.
        console: Shows events to people while the job runs.
        listeners: Receive every event and measured step that is recorded.

    Attributes:
        replicate: Sends all records to the other hosts while this agent leads.
        ended: The ids of the peers whose end is recorded.
        has_ended: True if the end of the job is recorded.
    """

    def __init__(self, journal: Journal, console: Console, *, listeners: Sequence[RecordListener] = ()) -> None:
        self.journal, self._console, self._listeners = journal, console, listeners
        journal.notify = console.event
        self.replicate: Callable[[pb.Records], None] = lambda records: None  # until this agent leads other hosts
        self._lock = threading.Lock()
        self._undefined = UndefinedSignals()
        self._numbers: dict[int, int] = {}  # the number of the last message of each peer
        # The events of a record that this host continues: a leader sends all events to a host that joins it.
        self._held = frozenset(journal.events_so_far())
        # The peers with a recorded end of training, each with the phase.
        self._finished: set[tuple[int, int]] = set()
        self.ended: set[int] = set()
        self.has_ended = False

    def event(self, event: LoggedEvent, *, shown: bool = False) -> pb.Records:
        """Records an event of the leader, and shows it if ``shown``; returns the records for the other hosts."""
        with self._lock:
            stamped = self.journal.write(event)
            self._note(stamped)
            records = pb.Records(peer=_LEADER, records=[pb.Record(event=pack_event(stamped))])
            self.replicate(records)
        for listener in self._listeners:
            listener.event(stamped)
        if shown:
            self._console.event(stamped)
        else:
            self._console.note(stamped)
        return records

    @contextmanager
    def so_far(self, *, shown: bool) -> Iterator[list[pb.Records]]:
        """The events of this host's record for a host that joins, which shows them to people if ``shown``; no event is
        recorded within the block.

        Cost:
            Reads ``events.jsonl``: about 10 µs for each event.
        """
        with self._lock:
            events = [event for line in self.journal.events_so_far() if (event := event_in(line)) is not None]
            packed = [pb.Record(event=pack_event(one)) for one in events if not _is_of_this_host(one)]
            parts = range(0, len(packed), _PART)
            peer = _LEADER if shown else _SO_FAR
            yield [pb.Records(peer=peer, records=packed[start : start + _PART]) for start in parts]

    def finished(self, event: FinishedEvent) -> None:
        """Records the end of a peer's training only once, because the peer repeats an unconfirmed report."""
        with self._lock:
            is_new = (event.peer, event.phase) not in self._finished
            self._finished.add((event.peer, event.phase))
        if is_new:
            self.event(event, shown=True)

    def receive(self, records: pb.Records, *, leads: bool = True) -> NewRecords:
        """Adds records of a peer or records forwarded by the leader; ignores a repeated message of a peer.

        Args:
            records: Events, measured steps and lines of the trace, encoded by the sender.
            leads: True if this agent leads. Only the leader records undefined signals, and sends them to its followers.
        """
        events, metrics = list[AnyEvent](), list[dict[str, Any]]()
        lines: dict[str, list[str]] = {"events": [], "metrics": [], "trace": []}
        now = round(time.time(), 6)
        with self._lock:
            # A peer counts its messages; messages of the leader come in order, once each.
            if records.peer not in (_LEADER, _SO_FAR):
                # A repeated message: the peer missed the confirmation of the first one.
                if records.number <= self._numbers.get(records.peer, 0):
                    return NewRecords()
                self._numbers[records.peer] = records.number
            for record in records.records:
                match record.WhichOneof("content"):
                    case "event":
                        event = _event_or_gap(record.event, now)
                        # The leader has stamped its own events; events of peers get the time at which it receives them.
                        if event.time is None:
                            event = replace(event, time=now)
                            record.event = pack_event(event)  # the record of each host has the same line
                        if (line := event_to_line(event)) in self._held:
                            continue
                        self._note(event)
                        events.append(event)
                        lines["events"].append(line)
                    case "metrics":
                        metrics += [row] if (row := row_in(record.metrics)) is not None else []
                        lines["metrics"].append(record.metrics)
                    case "trace":
                        lines["trace"].append(record.trace)
            for stream, some in lines.items():
                self.journal.append(stream, some)
            self.replicate(records)
        # People who start a host later need not read everything that happened before.
        show = self._console.note if records.peer == _SO_FAR else self._console.event
        for event in events:
            for hear in (show, *(listener.event for listener in self._listeners)):
                hear(event)
        for audience in (self._console, *self._listeners):
            for fields in metrics:
                audience.status(fields)
        # Followers count too, so that a new leader continues the count.
        undefined = [event for row in metrics for event in self._undefined.after_step(row)]
        for event in undefined if leads else ():
            self.event(event, shown=True)
            events.append(event)
        return NewRecords(tuple(events), tuple(metrics))

    def _note(self, event: LoggedEvent) -> None:
        # The event may come from the previous leader, and the peer may have missed its confirmation.
        if isinstance(event, FinishedEvent):
            self._finished.add((event.peer, event.phase))
        elif isinstance(event, PeerEndedEvent):
            self.ended.add(event.peer)
        self.has_ended = self.has_ended or isinstance(event, EndedEvent | FailedEvent)


def _is_of_this_host(event: AnyEvent) -> bool:
    """True if an event is about this host alone: its files, or its end when the others may have continued."""
    return isinstance(event, _OF_THIS_HOST) or (isinstance(event, FailedEvent) and event.code == NO_QUORUM_CODE)


def _event_or_gap(packed: bytes, now: float) -> AnyEvent:
    """Decodes an event; returns a gap event in its place if this version of kungfu cannot read the event."""
    try:
        return unpack_event(packed)
    except ValueError as error:
        return GapEvent(file="events.jsonl", since=now, until=now, lines=1, error=str(error))


@dataclass
class _Counted:
    """The steps since a signal's first finite value, and the undefined ones among them: now, and at the last check."""

    since: int
    steps: int = 0
    missing: int = 0
    steps_before: int = 0
    missing_before: int = 0


class UndefinedSignals:
    """Counts the steps in which a signal is undefined; each signal is checked after 100, 200, 400 steps and so on."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}

    def after_step(self, row: Mapping[str, Any]) -> list[UndefinedEvent]:
        """Counts the step that a line of metrics describes; returns events for signals that are undefined too often."""
        step = row.get("step")
        if not isinstance(step, int):
            return []
        events = list[UndefinedEvent]()
        for name, value in row.items():
            number = as_float(value)
            # The value is no number of a policy, or the signal has not had a finite value yet.
            if name in _REPORTED_ELSEWHERE or number is None or not (name in self._counted or math.isfinite(number)):
                continue
            one = self._counted.setdefault(name, _Counted(step))
            one.steps, one.missing = one.steps + 1, one.missing + (not math.isfinite(number))
            # A check is due after the first steps, and then whenever the steps have doubled.
            if one.steps < max(_FIRST_STEPS, 2 * one.steps_before):
                continue
            if one.missing - one.missing_before >= _SHARE * (one.steps - one.steps_before):
                events.append(UndefinedEvent(step=step, what=name, since=one.since, missing=one.missing, of=one.steps))
            one.steps_before, one.missing_before = one.steps, one.missing
        return events
