"""Records events: writes them to the journal, shows them to people, and replicates them to the other hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from kungfu.event_log.codec import event_to_line, pack_event, row_in, unpack_event
from kungfu.event_log.events import AnyEvent, FinishedEvent, GapEvent, LoggedEvent, PeerEndedEvent, UndefinedEvent
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.journal.undefined_signals import UndefinedSignals
from kungfu.runtime.ipc import messages_pb2 as pb

_LEADER = -1


class RecordListener(Protocol):
    """Receives the records of a host. A listener gets all records, on any thread, and must return at once."""

    def event(self, event: LoggedEvent) -> None:
        """Handles a recorded event."""

    def status(self, fields: Mapping[str, Any]) -> None:
        """Handles a measured step, by its line of metrics."""


class Console(RecordListener, Protocol):
    """The console of a running job; formats the events for people."""

    def line(self, who: str, text: str) -> None:
        """Shows a line that a peer has printed."""


def replicate_nowhere(records: pb.Records) -> None:
    """Ignores records, because there are no other hosts."""


class HostRecorder:
    """One host's record of the job.

    Args:
        journal: Writes the record.
        console: Shows the record.
        listeners: Receive the record.

    Attributes:
        replicate: Sends all records to the other hosts while this agent leads.
        ended: The peers with a recorded end.
    """

    def __init__(self, journal: Journal, console: Console, *, listeners: Sequence[RecordListener] = ()) -> None:
        self.journal, self._console, self._listeners = journal, console, listeners
        journal.notify = console.event
        self.replicate: Callable[[pb.Records], None] = replicate_nowhere
        self._lock = threading.Lock()
        self._undefined = UndefinedSignals()
        self._numbers: dict[int, int] = {}  # the number of the last message of each peer
        # The peers with a recorded end of training, each with the phase.
        self._finished: set[tuple[int, int]] = set()
        self.ended: set[int] = set()

    def event(self, event: LoggedEvent, *, shown: bool = False) -> pb.Records:
        """Records an event of the leader, and shows it if ``shown``; returns the records that the other hosts get."""
        with self._lock:
            stamped = self.journal.write(event)
            self._note(stamped)
            records = pb.Records(peer=_LEADER, records=[pb.Record(event=pack_event(stamped))])
            self.replicate(records)
        for listener in self._listeners:
            listener.event(stamped)
        if shown:
            self._console.event(event)
        return records

    def finished(self, event: FinishedEvent) -> None:
        """Records the end of a peer's training only once, because the peer repeats an unconfirmed report."""
        with self._lock:
            is_new = (event.peer, event.phase) not in self._finished
            self._finished.add((event.peer, event.phase))
        if is_new:
            self.event(event, shown=True)

    def receive(self, records: pb.Records) -> NewRecords:
        """Adds the records of a peer, and the events of undefined signals; ignores a repeated message."""
        new, noticed = self._add(records)
        for event in noticed:
            self.event(event, shown=True)
        return NewRecords((*new.events, *noticed), new.rows)

    def follow(self, records: pb.Records) -> NewRecords:
        """Adds records forwarded by the leader on another host; the leader also sends events that follow from them."""
        return self._add(records)[0]

    def _add(self, records: pb.Records) -> tuple[NewRecords, list[UndefinedEvent]]:
        """Adds records; returns the new records, and events of undefined signals, to be recorded by the leader only."""
        events, metrics = list[AnyEvent](), list[dict[str, Any]]()
        lines: dict[str, list[str]] = {"events": [], "metrics": [], "trace": []}
        now = round(time.time(), 6)
        with self._lock:
            # A peer counts its messages; messages of the leader come in order, once each.
            if records.peer != _LEADER:
                # A repeated message: the peer missed the confirmation of the first one.
                if 0 < records.number <= self._numbers.get(records.peer, 0):
                    return NewRecords(), []
                self._numbers[records.peer] = records.number
            for record in records.records:
                match record.WhichOneof("content"):
                    case "event":
                        event = _event_or_gap(record.event, now)
                        # The leader has stamped its own events; events of peers get their time of arrival.
                        event = replace(event, time=now) if event.time is None else event
                        self._note(event)
                        events.append(event)
                        lines["events"].append(event_to_line(event))
                    case "metrics":
                        metrics += [row] if (row := row_in(record.metrics)) is not None else []
                        lines["metrics"].append(record.metrics)
                    case "trace":
                        lines["trace"].append(record.trace)
            for stream, some in lines.items():
                self.journal.append(stream, some)
            self.replicate(records)
        for audience in (self._console, *self._listeners):
            for event in events:
                audience.event(event)
            for fields in metrics:
                audience.status(fields)
        noticed = [one for row in metrics for one in self._undefined.after_step(row)]
        return NewRecords(tuple(events), tuple(metrics)), noticed

    def _note(self, event: LoggedEvent) -> None:
        # The event may come from the previous leader, and the peer may have missed its confirmation.
        if isinstance(event, FinishedEvent):
            self._finished.add((event.peer, event.phase))
        elif isinstance(event, PeerEndedEvent):
            self.ended.add(event.peer)


def _event_or_gap(packed: bytes, now: float) -> AnyEvent:
    """The packed event, or a gap event in its place if this version cannot read the event."""
    try:
        return unpack_event(packed)
    except ValueError as error:
        return GapEvent(file="events.jsonl", since=now, until=now, lines=1, error=str(error))
