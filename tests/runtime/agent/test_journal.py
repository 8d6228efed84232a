"""The job's folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.agent.record.journal import Journal


def test_every_line_is_an_object_with_its_time_and_there_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "run", clock=lambda: 12.3456789)
    journal.write("events", {"event": "view", "peers": [0, 1]})
    journal.write("events", {"event": "failed", "error": 'two\nlines, a "quote" and ü'})
    journal.write("metrics", {"step": 1, "loss": None})
    events = (journal.folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in events] == [
        {"time": 12.345679, "event": "view", "peers": [0, 1]},
        {"time": 12.345679, "event": "failed", "error": 'two\nlines, a "quote" and ü'},
    ]
    assert json.loads((journal.folder / "metrics.jsonl").read_text()) == {"time": 12.345679, "step": 1, "loss": None}
    journal.close()
    journal.close()


def test_lines_of_several_threads_stay_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    together = threading.Barrier(4)

    def write(who: int) -> None:
        together.wait(10.0)
        for number in range(200):
            journal.write("events", {"who": who, "number": number, "text": "x" * 500})

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    for who in range(4):
        assert [line["number"] for line in lines if line["who"] == who] == list(range(200))


def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("the story of another run\n")
    with pytest.raises(UsageError, match=r"holds the record of a run already; delete it or give another folder"):
        Journal(tmp_path)
    assert (tmp_path / "events.jsonl").read_text() == "the story of another run\n"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--logdir .*file/run: .*; give a folder that can be written"):
        Journal(tmp_path / "file" / "run")


def test_each_peer_has_a_log_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.log_of(3) == tmp_path / "peers" / "peer-3.log"
    assert journal.log_of(3).parent.is_dir()
    journal.close()


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
