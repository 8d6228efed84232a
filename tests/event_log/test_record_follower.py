"""A record is read as far as it is written, line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, RecordEvent
from kungfu.event_log.growing_file import GrowingFile
from kungfu.event_log.record_follower import JobWatcher, NewRecords, RecordFollower
from tests.cli.recorded import GROWN, measured, written
from tests.event_log.made import write_record as write


def test_only_what_is_new_is_given_and_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    follower = RecordFollower(tmp_path)
    assert follower.read() == NewRecords(), "the run has made no file yet"
    written(tmp_path, GROWN[:2], metrics=[measured(1)])
    first = follower.read()
    assert (first.events, [row["step"] for row in first.rows]) == (GROWN[:2], [1])
    assert follower.read() == NewRecords()
    line = event_to_line(GROWN[2])
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(line[:20])
        file.flush()
        assert follower.read() == NewRecords()
        file.write(line[20:] + "\n")
    assert follower.read().events == (GROWN[2],)
    assert follower.damaged == 0


def test_damaged_lines_are_counted_and_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    written(tmp_path, GROWN[:1], metrics=[measured(1)])
    for name in ("events", "metrics"):
        with (tmp_path / f"{name}.jsonl").open("ab") as file:
            file.write(b'\xff{\n[1]\n"text"\n')
    follower = RecordFollower(tmp_path)
    assert (len(follower.read().rows), follower.damaged) == (1, 6)
    other = event_to_line(RecordEvent(version=RECORD_VERSION + 1))
    (tmp_path / "events.jsonl").write_text(f"{other}\n")
    for read in (RecordFollower(tmp_path).read, JobWatcher(tmp_path).look):
        with pytest.raises(UsageError, match=f"version {RECORD_VERSION + 1}, and this kungfu reads"):
            read()


# ---- the job that it tells of ----------------------------------------------------------------------------------------


def test_members_and_joiners_follow_from_the_record(tmp_path: Path) -> None:
    watch = JobWatcher(tmp_path)
    assert watch.look().members == (), "before there is a record"
    write(tmp_path, *({"event": "spawned", "peer": peer, "pid": 70 + peer} for peer in range(3)))
    write(tmp_path, {"event": "view", "version": 1, "peers": [1, 0]})
    sight = watch.look()
    assert (sight.members, sight.joiners) == ((1, 0), (2,))
    assert not sight.is_settled(2), "somebody is on the way"
    write(tmp_path, {"event": "dismissed", "peer": 2}, {"event": "span", "view": 1, "step": 0})
    assert not watch.look().is_settled(2), "a step is to come"
    write(tmp_path, {"step": 1})
    assert watch.look().is_settled(2)
    write(tmp_path, {"event": "lost", "peer": 1})
    sight = watch.look()
    assert sight.members == (0,)
    assert not sight.is_settled(1), "the view still has who is lost"
    write(tmp_path, {"event": "view", "version": 3, "peers": [0]})
    write(tmp_path, {"step": 2})
    assert not watch.look().is_settled(1), "nobody said yet after which step it came"
    write(tmp_path, {"event": "span", "view": 3, "step": 2})
    assert not watch.look().is_settled(1)
    write(tmp_path, {"step": 3})
    assert watch.look().is_settled(1)


def test_a_peer_that_left_is_no_member_though_its_process_may_run_on(tmp_path: Path) -> None:
    write(tmp_path, {"event": "view", "version": 1, "peers": [0, 1]}, {"event": "finished", "peer": 0, "leaving": True})
    assert JobWatcher(tmp_path).look().members == (1,)


def test_a_host_that_is_gone_takes_its_peers_along(tmp_path: Path) -> None:
    watch = JobWatcher(tmp_path)
    write(tmp_path, *({"event": "host", "host": host, "name": "a", "pid": 50 + host} for host in range(2)))
    write(tmp_path, *({"event": "spawned", "peer": peer, "pid": 70 + peer, "host": peer % 2} for peer in range(4)))
    write(tmp_path, {"event": "view", "version": 1, "peers": [0, 1, 2]}, {"event": "peer ended", "peer": 2})
    sight = watch.look()
    assert ({host: one.pid for host, one in sight.hosts.items()}, sight.hosts_present) == ({0: 50, 1: 51}, (0, 1))
    assert (sight.peers_of(0), sight.peers_of(1)) == ((0,), (1, 3))
    write(tmp_path, {"event": "host lost", "host": 1, "why": "silent"})
    sight = watch.look()
    assert (sight.hosts_present, sight.members, sight.joiners) == ((0,), (0,), ())


def test_of_the_steps_of_a_long_record_the_newest_are_read_and_all_that_come(tmp_path: Path) -> None:
    write(tmp_path, *({"step": step, "time": 1.0 * step, "noise": 0.5} for step in range(1, 40_001)))
    watch = JobWatcher(tmp_path)
    assert (watch.look().steps, watch.look().stepped_at) == (40_000, 40_000.0)
    for text, steps in (('{"step": 40001}\n{"step": 4000', 40_001), ("2}\n", 40_002)):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(text)
        assert watch.look().steps == steps


def test_a_barrier_counts_once_whatever_was_asked_of_it(tmp_path: Path) -> None:
    write(tmp_path, {"event": "called", "step": 4}, {"event": "decision", "step": 4}, {"event": "called", "step": 8})
    assert JobWatcher(tmp_path).look().barriers == 2


# ---- the files of a record ------------------------------------------------------------------------------------------


def test_each_line_is_given_once_when_it_is_whole_and_an_empty_one_never(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    growing = GrowingFile(path)
    assert growing.read() == ([], False), "nobody has made it yet"
    with path.open("ab", buffering=0) as file:
        file.write(b"one\n\n  \ntw")
        assert growing.read() == ([b"one"], False)
        assert growing.read() == ([], False)
        file.write(b"o\n")
        assert growing.read() == ([b"two"], False)


def test_a_long_file_comes_in_parts_and_no_line_is_cut_between_them(tmp_path: Path) -> None:
    lines = [b"%d" % number * 7 for number in range(300_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\nhalf")
    growing = GrowingFile(tmp_path / "lines")
    first, has_more = growing.read()
    assert has_more
    assert 0 < len(first) < len(lines)
    assert [*first, *growing.read_all()] == lines


def test_of_a_long_file_only_the_end_is_read_at_first_and_then_all_that_comes(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"first\nsecond\nthird\n")
    assert list(GrowingFile(path, at_first_bytes=100).read_all()) == [b"first", b"second", b"third"]
    growing = GrowingFile(path, at_first_bytes=6)
    assert list(growing.read_all()) == [b"third"]
    with path.open("ab") as file:
        file.write(b"fourth\nfifth\n")
    assert list(growing.read_all()) == [b"fourth", b"fifth"]
    within = GrowingFile(path, at_first_bytes=3)
    assert list(within.read_all()) == [], "the line was cut"
    with path.open("ab") as file:
        file.write(b"sixth\n")
    assert list(within.read_all()) == [b"sixth"]


@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(OSError, match="is no regular file"):
        GrowingFile(tmp_path / "events.jsonl").read()


def test_a_record_that_was_replaced_is_refused_and_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    written(tmp_path, GROWN[:2], metrics=[measured(step) for step in range(1, 6)])
    follower, watcher = RecordFollower(tmp_path), JobWatcher(tmp_path)
    assert len(follower.read().rows) == watcher.look().steps == 5
    (tmp_path / "metrics.jsonl").rename(tmp_path / "old")
    (tmp_path / "metrics.jsonl").write_bytes((tmp_path / "old").read_bytes() * 2)
    for read in (follower.read, watcher.look, follower.read):
        with pytest.raises(UsageError, match=r"metrics\.jsonl was replaced while it was read; start again"):
            read()
    shorter = GrowingFile(tmp_path / "old")
    assert len(shorter.read()[0]) == 5
    os.truncate(tmp_path / "old", 10)
    with pytest.raises(OSError, match="was replaced"):
        shorter.read()


def test_a_half_written_line_that_its_writer_cuts_off_again_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\nhalf of a li")
    growing = GrowingFile(path)
    assert growing.read() == ([b"one"], False)
    os.truncate(path, 4)
    assert growing.read() == ([], False)
    with path.open("ab") as file:
        file.write(b"two\n")
    assert growing.read() == ([b"two"], False)
