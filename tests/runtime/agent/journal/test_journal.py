"""The job's folder."""

from __future__ import annotations

import errno
import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_json
from kungfu.event_log.events import RECORD_VERSION, EndedEvent, FailedEvent, ProgramEndedEvent, UnheardEvent, ViewEvent
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.job_api.job_file import JobFile, read_job_file, write_job_file

VIEW, ENDED = ViewEvent(version=1, peers=(0, 1)), EndedEvent(reason="training is over")
LOST = UnheardEvent(peer=1, error="nobody listens")  # written while the disk is full
TOO_LARGE, NO_ROOM = os.strerror(errno.EFBIG), os.strerror(errno.ENOSPC)


def test_every_line_is_an_object_with_its_time_and_there_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "run", clock=lambda: 12.3456789)
    journal.write(ViewEvent(version=1, peers=(0, 1)))
    journal.write(FailedEvent(peer=-1, error='two\nlines, a "quote" and ü', code=1))
    journal.append("metrics", ['{"step": 1, "loss": null}'])
    events = (journal.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in events] == [
        {"event": "record", "version": RECORD_VERSION},
        {"time": 12.345679, "event": "view", "version": 1, "peers": [0, 1]},
        {"time": 12.345679, "event": "failed", "peer": -1, "error": 'two\nlines, a "quote" and ü', "code": 1},
    ]
    assert json.loads((journal.folder / "metrics.jsonl").read_text()) == {"step": 1, "loss": None}
    journal.close()
    journal.close()


def test_lines_of_several_threads_stay_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    together = threading.Barrier(4)

    def write(who: int) -> None:
        together.wait(180.0)
        for number in range(200):
            journal.write(ProgramEndedEvent(peer=who, rank=0, step=number, others=0, how="exit", error="x" * 500))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180.0)
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    for who in range(4):
        assert [line["step"] for line in lines[1:] if line["peer"] == who] == list(range(200))


def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("the story of another run\n")
    with pytest.raises(UsageError, match=r"holds the record of a run already; delete it, .*--restarts 3"):
        Journal(tmp_path)
    assert (tmp_path / "events.jsonl").read_text() == "the story of another run\n"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--logdir .*file/run: .*; give a folder that can be written"):
        Journal(tmp_path / "file" / "run")


def test_a_trace_ends_before_it_grows_beyond_its_limit_and_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, trace_limit_bytes=25)
    journal.append("trace", ['{"step":1}', '{"step":2}', '{"step":3}'])
    journal.append("trace", ["{}"])
    journal.close()
    assert (tmp_path / "trace.jsonl").read_text().splitlines() == [
        '{"step":1}',
        '{"step":2}',
        '{"cut": true, "limit_bytes": 25}',
    ]


def test_without_a_limit_to_fill_there_is_no_trace(tmp_path: Path) -> None:
    journal = Journal(tmp_path, trace_limit_bytes=0)
    journal.append("trace", ['{"step":1}'])
    journal.close()
    assert not (tmp_path / "trace.jsonl").exists()


# ---- a disk without room --------------------------------------------------------------------------------------------


class Clock:
    """Seconds that a test sets."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def full_disk(*, room_bytes: int = 0) -> Iterator[None]:
    """No file is longer than ``room_bytes``: what would make it so is written as far as it fits, then ``EFBIG``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def opened(folder: Path, **options: Any) -> tuple[Journal, Clock, list[dict[str, Any]]]:
    """A journal, its clock, and what it tells a person."""
    clock, notices = Clock(), list[dict[str, Any]]()
    journal = Journal(folder, clock=clock, **options)
    journal.notify = lambda event: notices.append(event_to_json(event))
    return journal, clock, notices


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The events of the record after its first line, which says the version and is written with the first event."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events[:1] in ([], [{"event": "record", "version": RECORD_VERSION}])
    return events[1:]


def test_a_full_disk_is_reported_once_and_the_record_says_what_it_lacks(tmp_path: Path) -> None:
    journal, clock, notices = opened(tmp_path)
    journal.write(VIEW)
    with full_disk():
        written = journal.write(LOST)
        clock.now = 12.0
        journal.append("metrics", ['{"step":1}', '{"step":2}'])
        journal.append("trace", ['{"step":1}'])
        clock.now = 14.0
        journal.write(LOST)
    assert written == replace(LOST, time=10.0), "the other hosts get it"
    assert notices == [{"event": "unrecorded", "file": "events.jsonl", "error": TOO_LARGE}]
    clock.now = 16.0
    journal.write(ENDED)
    journal.append("metrics", ['{"step":3}'])
    journal.append("trace", ['{"step":3}'])
    lacks = [
        {"event": "gap", "file": "events.jsonl", "from": 10.0, "to": 14.0, "lines": 2, "error": TOO_LARGE},
        {"event": "gap", "file": "metrics.jsonl", "from": 12.0, "to": 12.0, "lines": 2, "error": TOO_LARGE},
        {"event": "gap", "file": "trace.jsonl", "from": 12.0, "to": 12.0, "lines": 1, "error": TOO_LARGE},
    ]
    assert [{**event, "time": 16.0} for event in lacks] == [
        event for event in events_in(tmp_path) if event["event"] == "gap"
    ]
    assert [event["event"] for event in events_in(tmp_path) if event["event"] != "gap"] == ["view", "ended"]
    assert notices[1:] == lacks
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":3}\n'


def test_a_gap_of_the_events_ends_with_lines_of_another_file(tmp_path: Path) -> None:
    """A job that trains for long without an event says soon what its record lacks."""
    journal, clock, notices = opened(tmp_path)
    journal.write(VIEW)
    with full_disk():
        journal.write(LOST)
        clock.now = 12.0
        journal.append("metrics", [])
        journal.append("trace", ['{"step":1}'])
    journal.append("metrics", ['{"step":1}'])
    assert [event["event"] for event in events_in(tmp_path)] == ["view"], "it was tried a moment ago"
    clock.now = 14.0
    journal.append("metrics", ['{"step":2}'])
    lacks = {"event": "gap", "file": "events.jsonl", "from": 10.0, "to": 10.0, "lines": 1, "error": TOO_LARGE}
    assert events_in(tmp_path)[1:] == [{"time": 14.0, **lacks}]
    assert notices[1:] == [lacks]


def test_a_file_that_never_has_room_again_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    journal, clock, notices = opened(tmp_path)
    journal.append("metrics", ['{"step":1}'])
    clock.now = 25.0
    journal.append("metrics", ['{"step":2}'])
    journal.close()
    journal.close()
    lacks = {"event": "gap", "file": "metrics.jsonl", "from": 10.0, "to": 25.0, "lines": 2, "error": NO_ROOM}
    assert notices == [{"event": "unrecorded", "file": "metrics.jsonl", "error": NO_ROOM}, lacks]
    assert events_in(tmp_path) == [{"time": 25.0, **lacks}]


def test_a_record_that_ends_on_a_full_disk_is_told_to_the_person(tmp_path: Path) -> None:
    journal, clock, notices = opened(tmp_path)
    journal.write(VIEW)
    with full_disk():
        journal.write(ENDED)
        clock.now = 11.0
        journal.close()
    assert [event["event"] for event in events_in(tmp_path)] == ["view"]
    assert [(one["event"], one["file"]) for one in notices] == [
        ("unrecorded", "events.jsonl"),
        ("gap", "events.jsonl"),
    ]


def test_a_disk_that_fails_and_works_by_turns_is_told_once_a_minute(tmp_path: Path) -> None:
    journal, clock, notices = opened(tmp_path)
    for _ in range(100):
        clock.now += 2.0
        with full_disk():
            journal.write(LOST)
        clock.now += 2.0
        journal.write(VIEW)
    kinds = [event["event"] for event in events_in(tmp_path)]
    assert (kinds.count("view"), kinds.count("gap")) == (100, 100)
    assert len([one for one in notices if one["event"] == "unrecorded"]) == 7
    assert len([one for one in notices if one["event"] == "gap"]) == 7


def test_what_a_peer_prints_meanwhile_is_missing_in_its_log_which_says_so(tmp_path: Path) -> None:
    journal, clock, notices = opened(tmp_path)
    output = journal.output_of(3)
    output.write(b"one\n")
    with full_disk():
        output.write(b"two\n")
        output.write(b"three\n")
    clock.now = 12.0
    output.write(b"four\n")
    output.close()
    missing = f"[kungfu: 2 lines are missing here, which could not be written: {TOO_LARGE}]"
    assert (tmp_path / "peers" / "peer-3.log").read_text().splitlines() == ["one", missing, "four"]
    assert [(event["event"], event["file"], event["lines"]) for event in events_in(tmp_path)] == [
        ("gap", "peers/peer-3.log", 2)
    ]
    assert [one["event"] for one in notices] == ["unrecorded", "gap"]


def test_a_small_file_is_written_as_soon_as_there_is_room(tmp_path: Path) -> None:
    journal, _, notices = opened(tmp_path)
    content = JobFile("job", "127.0.0.1:1", "ab", 1, 2.0)
    with full_disk():
        journal.keep("job.json", partial(write_job_file, tmp_path, content))
        journal.append("metrics", ['{"step":1}'])
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "metrics.jsonl", "trace.jsonl", "peers"}
    assert notices == [{"event": "unrecorded", "file": "job.json", "error": TOO_LARGE}]
    journal.append("trace", ['{"step":1}'])
    assert read_job_file(tmp_path) == content


def test_a_job_that_is_started_again_continues_after_the_last_whole_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(VIEW)
    journal.close()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "vi' + "x" * 200_000)
    journal = Journal(tmp_path, continues=True)
    journal.append("metrics", ['{"step": 2}'])
    journal.write(ENDED)
    journal.close()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["record", "view", "gap", "gap", "ended"]
    assert [(event["file"], event["lines"]) for event in events[2:4]] == [("events.jsonl", 1), ("metrics.jsonl", 1)]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_the_limit_of_the_trace_is_that_of_all_runs_of_a_job(tmp_path: Path) -> None:
    line, trace = '{"step": 1}', tmp_path / "trace.jsonl"
    for _ in range(3):
        journal = Journal(tmp_path, trace_limit_bytes=50, continues=True)
        journal.append("trace", [line, line])
        journal.close()
    assert trace.read_text().splitlines() == [*[line] * 4, '{"cut": true, "limit_bytes": 50}']
