"""Writes down what happens, shows it to a person, and has it written down on the other hosts too."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

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

    def event(self, fields: Mapping[str, Any], *, told: bool = False) -> pb.Records:
        """Something that the leader did or saw, also as the other hosts get it; ``told``: a person shall see it."""
        with self._lock:
            line = self.journal.write("events", fields)
            records = pb.Records(peer=_LEADER, records=[pb.Record(stream="events", line=line)])
            self.replicate(records)
        if told:
            self._console.event(fields)
        return records

    def take(self, records: pb.Records) -> ReportedRecords:
        """What a peer recorded, or the leader of another host; what was taken before is not taken again."""
        told: dict[str, list[dict[str, Any]]] = {"events": [], "metrics": []}
        lines: dict[str, list[str]] = {"events": [], "metrics": [], "trace": []}
        stamp = f'{{"time": {round(self._clock(), 6)}, '
        with self._lock:
            if records.peer != _LEADER:
                if 0 < records.number <= self._numbers.get(records.peer, 0):
                    return ReportedRecords()
                self._numbers[records.peer] = records.number
            for record in records.records:
                line = record.line
                if record.stream != "trace":
                    fields = json.loads(line)
                    told[record.stream].append(fields)
                    line = line if "time" in fields else stamp + line[1:]  # the leader has stamped its own
                lines[record.stream].append(line)
            for stream, some in lines.items():
                self.journal.append(stream, some)
            self.replicate(records)
        for fields in told["events"]:
            self._console.event(fields)
        for fields in told["metrics"]:
            self._console.status(fields)
        return ReportedRecords(tuple(told["events"]), tuple(told["metrics"]))
