"""What one host records of what peers and the leader send: each thing once, and all that can be recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec import msgpack, to_builtins

from kungfu.event_log.codec import pack_event
from kungfu.event_log.events import CalledEvent, FinishedEvent, LoggedEvent, UndefinedEvent
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.journal.recorder import HostRecorder
from kungfu.runtime.ipc import messages_pb2 as pb


class Heard:
    """A console or a listener: everything that it was shown, or that was recorded."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.metrics: list[Mapping[str, Any]] = []

    def line(self, who: str, text: str) -> None:
        raise AssertionError(f"nobody prints here: {who}: {text}")

    def event(self, event: LoggedEvent) -> None:
        self.events.append(event)

    def status(self, fields: Mapping[str, Any]) -> None:
        self.metrics.append(fields)


@contextmanager
def recorder_in(folder: Path) -> Iterator[HostRecorder]:
    journal = Journal(folder)
    try:
        yield HostRecorder(journal, Heard())
    finally:
        journal.close()


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """The events after the one that says the version."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()][1:]


def record(event: LoggedEvent, **changed: Any) -> pb.Record:
    return pb.Record(event=msgpack.encode({**to_builtins(event), **changed}) if changed else pack_event(event))


def called(step: int) -> CalledEvent:
    return CalledEvent(step=step, rule="hook", saw={}, asked=2)


def finished(peer: int) -> FinishedEvent:
    return FinishedEvent(peer=peer, leaving=False, steps=7, traces=1)


def test_a_listener_hears_of_all_that_is_recorded_once_on_whatever_host(tmp_path: Path) -> None:
    heard, journal = Heard(), Journal(tmp_path)
    console = Heard()
    recorder = HostRecorder(journal, console, listeners=[heard])
    recorder.event(called(1))  # nobody sees it
    recorder.event(called(2), shown=True)
    measured = pb.Record(metrics='{"step": 3, "loss": "NaN"}')
    for _ in range(2):  # the peer repeats what was not confirmed to it
        recorder.receive(pb.Records(peer=0, number=1, records=[record(called(3)), measured]))
    recorder.receive(pb.Records(peer=-1, records=[record(called(4))]))  # of the leader on another host
    journal.close()
    assert [event.step for event in heard.events if isinstance(event, CalledEvent)] == [1, 2, 3, 4]
    assert all(event.time is not None for event in heard.events)
    assert heard.metrics == console.metrics == [{"step": 3, "loss": "NaN"}]
    assert [event.step for event in console.events if isinstance(event, CalledEvent)] == [2, 3, 4]


def test_what_is_no_event_leaves_a_gap_and_the_others_are_recorded(tmp_path: Path) -> None:
    sent = [record(called(3)), record(called(4), step="four"), record(called(5))]
    with recorder_in(tmp_path) as recorder:
        recorder.receive(pb.Records(peer=0, number=1, records=sent))
        recorder.receive(pb.Records(peer=0, number=1, records=sent))  # told again
    first, gap, last = lines_in(tmp_path)
    assert (first["step"], last["step"]) == (3, 5)
    assert (gap["event"], gap["lines"]) == ("gap", 1)
    assert "step" in gap["error"]


def test_that_a_peer_has_finished_is_recorded_once_however_often_it_is_told(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        for peer in (0, 0, 1):
            recorder.finished(finished(peer))
        # Peer 2 has told the leader before, which has replicated it.
        recorder.receive(pb.Records(peer=-1, records=[record(finished(2))]))
        recorder.finished(finished(2))
    assert [line["peer"] for line in lines_in(tmp_path)] == [0, 1, 2]


def test_the_leader_alone_notices_a_signal_without_a_number(tmp_path: Path) -> None:
    rows = [pb.Record(metrics=json.dumps({"step": n, "noise": "NaN" if n % 2 else 1.0})) for n in range(2, 103)]
    for host, noticed in (("leader", [UndefinedEvent]), ("follower", [])):
        console = Heard()
        with closing(Journal(tmp_path / host)) as journal:
            recorder = HostRecorder(journal, console)
            receive = recorder.receive if host == "leader" else recorder.follow
            reported = receive(pb.Records(peer=0, number=1, records=rows))
        assert [type(one) for one in reported.events] == [type(one) for one in console.events] == noticed
        assert [line["event"] for line in lines_in(tmp_path / host)] == ["undefined"] * len(noticed)
