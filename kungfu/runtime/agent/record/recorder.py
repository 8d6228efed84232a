"""Writes down what happens, shows it to a person, and has it written down on the other hosts too."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from kungfu.event_log.codec import event_to_line, line_to_event
from kungfu.event_log.events import AnyEvent, LoggedEvent
from kungfu.runtime.agent.record.console import Console
from kungfu.runtime.agent.record.journal import Journal
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.request_handler import ReportedRecords

__all__ = ["HostRecorder", "replicate_nowhere"]

_LEADER = -1


def replicate_nowhere(records: pb.Records) -> None:
    """There is no other host."""


class HostRecorder:
    """One host's record of the job. ``replicate`` takes whatever the leader writes down, for the other hosts."""

    def __init__(self, journal: Journal, console: Console, *, clock: Callable[[], float] = time.time) -> None:
        self.journal, self._console, self._clock = journal, console, clock
        journal.tell = console.event
        self.replicate: Callable[[pb.Records], None] = replicate_nowhere
        self._lock = threading.Lock()
        self._numbers: dict[int, int] = {}

    def event(self, event: LoggedEvent, *, told: bool = False) -> pb.Records:
        """Something that the leader did or saw, also as the other hosts get it; ``told``: a person shall see it."""
        with self._lock:
            line = self.journal.write(event)
            records = pb.Records(peer=_LEADER, records=[pb.Record(stream="events", line=line)])
            self.replicate(records)
        if told:
            self._console.event(event)
        return records

    def take(self, records: pb.Records) -> ReportedRecords:
        """What a peer recorded, or the leader of another host; what was taken before is not taken again."""
        events, metrics = list[AnyEvent](), list[dict[str, Any]]()
        lines: dict[str, list[str]] = {"events": [], "metrics": [], "trace": []}
        now = round(self._clock(), 6)
        with self._lock:
            if records.peer != _LEADER:
                if 0 < records.number <= self._numbers.get(records.peer, 0):
                    return ReportedRecords()
                self._numbers[records.peer] = records.number
            for record in records.records:
                line = record.line
                if record.stream == "events":
                    event = line_to_event(line)
                    events.append(event)
                    if event.time is None:  # the leader has stamped its own
                        line = event_to_line(replace(event, time=now))
                elif record.stream == "metrics":
                    metrics.append(json.loads(line))
                lines[record.stream].append(line)
            for stream, some in lines.items():
                self.journal.append(stream, some)
            self.replicate(records)
        for event in events:
            self._console.event(event)
        for fields in metrics:
            self._console.status(fields)
        return ReportedRecords(tuple(events), tuple(metrics))
