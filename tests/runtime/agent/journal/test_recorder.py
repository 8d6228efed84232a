"""What one host records of what peers and the leader send: each thing once, and all that can be recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack, to_builtins

from kungfu.event_log.codec import pack_event
from kungfu.event_log.events import CalledEvent, FailedEvent, FinishedEvent, LoggedEvent, UndefinedEvent
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.journal.recorder import HostRecorder, UndefinedSignals
from kungfu.runtime.core.failure import NO_QUORUM_CODE
from kungfu.runtime.ipc import messages_pb2 as pb
from tests.runtime.agent.journal.test_journal import events_in


class Heard:
    """A console or a listener: everything that it was shown, or that was recorded."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.noted: list[LoggedEvent] = []
        self.metrics: list[Mapping[str, Any]] = []

    def line(self, who: str, text: str) -> None:
        raise AssertionError(f"nobody prints here: {who}: {text}")

    def note(self, event: LoggedEvent) -> None:
        self.noted.append(event)

    def event(self, event: LoggedEvent) -> None:
        self.events.append(event)

    def status(self, fields: Mapping[str, Any]) -> None:
        self.metrics.append(fields)


@contextmanager
def recorder_in(folder: Path, *listeners: Heard) -> Iterator[tuple[HostRecorder, Heard]]:
    """A recorder and its console."""
    console = Heard()
    with closing(Journal(folder)) as journal:
        yield HostRecorder(journal, console, listeners=listeners), console


def record(event: LoggedEvent, **changed: Any) -> pb.Record:
    return pb.Record(event=msgpack.encode({**to_builtins(event), **changed}) if changed else pack_event(event))


def called(step: int) -> CalledEvent:
    return CalledEvent(step=step, rule="hook", saw={}, asked=2)


def finished(peer: int) -> FinishedEvent:
    return FinishedEvent(peer=peer, leaving=False, steps=7, traces=1)


def test_a_listener_hears_of_all_that_is_recorded_once_on_whatever_host(tmp_path: Path) -> None:
    heard = Heard()
    with recorder_in(tmp_path, heard) as (recorder, console):
        recorder.event(called(1))  # no line is printed
        recorder.event(called(2), shown=True)
        measured = pb.Record(metrics='{"step": 3, "loss": "NaN"}')
        for _ in range(2):  # the peer repeats what was not confirmed to it
            recorder.receive(pb.Records(peer=0, number=1, records=[record(called(3)), measured]))
        recorder.receive(pb.Records(peer=-1, records=[record(called(4))]))  # of the leader on another host
    assert [event.step for event in heard.events if isinstance(event, CalledEvent)] == [1, 2, 3, 4]
    assert all(event.time is not None for event in heard.events)
    assert heard.metrics == console.metrics == [{"step": 3, "loss": "NaN"}]
    assert [event.step for event in console.events if isinstance(event, CalledEvent)] == [2, 3, 4]
    assert [event.step for event in console.noted if isinstance(event, CalledEvent)] == [1]


def test_a_host_that_continues_its_record_gets_each_event_of_the_leader_once(tmp_path: Path) -> None:
    """Peers report events without a time, and each host receives them at another time."""

    def events_on(host: str) -> list[dict[str, Any]]:
        return [line for line in events_in(tmp_path / host) if line["event"] not in ("record", "failed")]

    def receive(host: HostRecorder, records: pb.Records) -> None:
        host.receive(records, leads=False)

    with recorder_in(tmp_path / "leader") as (leader, _):
        with recorder_in(tmp_path / "follower") as (follower, _):
            leader.replicate = partial(receive, follower)
            leader.receive(pb.Records(peer=0, number=1, records=[record(called(1))]))
            leader.event(finished(0))
        leader.replicate = lambda records: None
        leader.receive(pb.Records(peer=0, number=2, records=[record(called(2))]))
        leader.event(FailedEvent(peer=-1, error="cut off from the others, to which it came back", code=NO_QUORUM_CODE))
        with (
            closing(Journal(tmp_path / "follower", continues=True)) as journal,
            leader.so_far(shown=False) as records,
        ):
            again = HostRecorder(journal, Heard())
            for part in records:
                receive(again, part)
    assert [line["event"] for line in events_on("follower")] == ["called", "finished", "called"]
    assert events_on("follower") == events_on("leader")
    assert "failed" not in [line["event"] for line in events_in(tmp_path / "follower")], "the end of one host's part"


def test_what_is_no_event_leaves_a_gap_and_the_others_are_recorded(tmp_path: Path) -> None:
    sent = [record(called(3)), record(called(4), step="four"), record(called(5))]
    with recorder_in(tmp_path) as (recorder, _):
        recorder.receive(pb.Records(peer=0, number=1, records=sent))
    first, gap, last = events_in(tmp_path)
    assert (first["step"], last["step"]) == (3, 5)
    assert (gap["event"], gap["lines"]) == ("gap", 1)
    assert "step" in gap["error"]


def test_that_a_peer_has_finished_is_recorded_once_however_often_it_reports_it(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as (recorder, _):
        for peer in (0, 0, 1):
            recorder.finished(finished(peer))
        # Peer 2 has reported it to the leader before, which has replicated it.
        recorder.receive(pb.Records(peer=-1, records=[record(finished(2))]))
        recorder.finished(finished(2))
    assert [line["peer"] for line in events_in(tmp_path)] == [0, 1, 2]


# ---- signals that are not finite in many steps ----------------------------------------------------------------------


@pytest.mark.parametrize(("leads", "noticed"), [(True, [UndefinedEvent]), (False, [])])
def test_the_leader_alone_notices_a_signal_without_a_number(tmp_path: Path, leads: bool, noticed: list[type]) -> None:
    rows = [pb.Record(metrics=json.dumps({"step": n, "noise": "NaN" if n % 2 else 1.0})) for n in range(2, 103)]
    with recorder_in(tmp_path) as (recorder, console):
        new = recorder.receive(pb.Records(peer=0, number=1, records=rows), leads=leads)
    assert [type(one) for one in new.events] == [type(one) for one in console.events] == noticed
    assert [line["event"] for line in events_in(tmp_path)] == ["undefined"] * len(noticed)


def noticed_in(value: Callable[[int], object], *, name: str = "noise_scale", steps: int = 1000) -> list[UndefinedEvent]:
    signals = UndefinedSignals()
    rows = ({"step": step, "loss": "NaN", "samples_per_s": None, name: value(step)} for step in range(1, steps + 1))
    return [event for row in rows for event in signals.after_step(row)]


def steps_of(events: list[UndefinedEvent]) -> list[tuple[int, int, int]]:
    return [(one.step, one.missing, one.of) for one in events]


@pytest.mark.parametrize("none", ["NaN", math.nan, "Infinity"])
def test_a_noise_scale_that_is_nan_in_half_of_the_steps_is_noticed_ever_more_seldom(none: object) -> None:
    found = noticed_in(lambda step: 1.5 if step % 2 else none)
    assert steps_of(found) == [(100, 50, 100), (200, 100, 200), (400, 200, 400), (800, 400, 800)]
    assert {(one.what, one.since) for one in found} == {("noise_scale", 1)}


def test_a_signal_counts_from_its_first_number_on() -> None:
    assert noticed_in(lambda step: "NaN") == []
    assert noticed_in(lambda step: "NaN" if step < 900 else 1.0) == []
    assert steps_of(noticed_in(lambda step: 1.0 if step in (7, 8) else "NaN", steps=110)) == [(106, 98, 100)]


def test_single_steps_and_what_is_over_are_not_noticed() -> None:
    assert noticed_in(lambda step: "NaN" if step % 11 == 0 else 1.0) == []
    assert steps_of(noticed_in(lambda step: "NaN" if 10 < step < 70 else 1.0)) == [(100, 59, 100)]


def test_what_is_no_number_of_a_policy_is_left_out() -> None:
    assert noticed_in(lambda step: {"samples": step} if step > 1 else 1.0, name="progress") == []
    assert noticed_in(lambda step: "NaN" if step % 2 else 1.0, name="loss") == []
    assert UndefinedSignals().after_step({"noise_scale": "NaN"}) == []
