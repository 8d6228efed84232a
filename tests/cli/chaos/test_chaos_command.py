"""The command line of chaos against a real line to a job without peers: what is foreseen, and what is refused."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.chaos.chaos_command import read_schedule
from kungfu.errors import UsageError
from kungfu.testing.faults import parse
from tests.cli.conftest import Printed
from tests.event_log.made import write_record
from tests.runtime.job_api.served_job import serve_job

# A shell makes a job in its background ignore Ctrl-C, and the tests may run in one.
AT_A_TERMINAL = """
import signal, sys
from kungfu.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
FORESEE = ("--dry-run", "--json")


@contextmanager
def trained(folder: Path, *, hosts: tuple[str, ...] = (), **more: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A job of two processes that do nothing, with their record."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    named = ({"event": "host", "host": at, "name": name, "pid": 2**30} for at, name in enumerate(hosts))
    spawned = (
        {"event": "spawned", "peer": peer, "pid": child.pid, "host": peer if hosts else 0}
        for peer, child in enumerate(children)
    )
    view = {"event": "view", "version": 3, "peers": [0, 1]}
    write_record(folder, *named, *spawned, view, {"step": 7, "epoch": 0, "batch": 12})
    try:
        with serve_job(folder, **more):
            yield children
        assert all(child.poll() is None for child in children), "nobody was hit"
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_dry_run_tells_whom_each_fault_would_hit_and_what_cannot_be_done(tmp_path: Path, printed: Printed) -> None:
    texts = ["at step +5 kill coordinator", "once settled kill ranks 0,1", "now resize 9", "now kill rank 7",
             "now freeze rank 1 for 2 s", "now kill host 0", "now kill host 3", "now kill joiner"]  # fmt: skip
    with trained(tmp_path):
        words = (word for text in texts for word in ("--fault", text))
        found = json.loads(printed("chaos", tmp_path, *FORESEE, *words))["faults"]
        assert "cannot be done" in printed("chaos", tmp_path, "--dry-run", "--fault", texts[1])
    obstacles = [one["obstacle"] for one in found]
    assert found[0]["hits"].startswith("peer 0, process ")
    assert obstacles[0] == obstacles[4] == obstacles[7] == ""
    assert "no other peer holds the state" in obstacles[1]
    assert obstacles[2] == "the job takes 1 to 4 peers"
    assert obstacles[3].startswith("the job never has more than 4 peers")
    assert found[4]["remark"].startswith("thawed after 2.0 s")
    assert "the only kungfu-run" in obstacles[5]
    assert [one["ends_job"] for one in found] == [False, True, False, False, False, True, True, False]


def test_peers_and_agents_on_other_machines_are_said_to_be_there(tmp_path: Path, printed: Printed) -> None:
    with trained(tmp_path, hosts=("127.0.0.1", "192.0.2.1")):
        words = ("--fault", "now kill rank 1", "--fault", "now notice host 1")
        peer, agent = json.loads(printed("chaos", tmp_path, *FORESEE, *words))["faults"]
    assert "peer 1 runs on another machine (192.0.2.1)" in peer["obstacle"]
    assert agent["obstacle"] == "kungfu-run runs on another machine (192.0.2.1): run kungfu chaos there"


def test_a_drawn_schedule_follows_from_its_seed_and_resizes_no_inelastic_job(tmp_path: Path, printed: Printed) -> None:
    with trained(tmp_path, scaling="inelastic"):
        words = ("chaos", tmp_path, *FORESEE, "--seed", "3", "--faults", "20", "--every", "10")
        text = printed(*words)
        assert printed(*words) == text
        drawn = json.loads(text)["faults"]
        assert [one["when"] for one in drawn][:2] == ["at step +10 once settled", "at step +20 once settled"]
        assert not [one for one in drawn if "resize" in one["what"] or one["obstacle"]]
        refused = printed("chaos", tmp_path, "--fault", "now resize 3", "--yes", code=2)
        assert "takes no change of its peers" in refused


@pytest.mark.parametrize(
    ("words", "why"), [
        ([], "no fault was given"),
        (["--fault", "now kil rank 1"], "is no fault; write a moment"),
        (["--seed", "1", "--fault", "now checkpoint"], "take one of them"),
        (["--seed", "1", "--faults", "0"], "one fault and one step at least"),
        (["--fault", "now kill ranks 0,1", "--yes"], "--may-end-job does it all the same"),
        (["--fault", "now checkpoint"], "there is no terminal to confirm at: give --yes"),
        (["--fault", "now checkpoint", "--within", "0"], "--within 0: must be from 1"),
        (["--schedule", "nowhere.txt"], "cannot be read"),
        (["--watch", "nowhere", "--seed", "1"], "the job does not train yet"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_done(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with trained(tmp_path):
        assert why in printed("chaos", tmp_path, *words, code=2)


def test_a_second_chaos_at_the_same_job_and_one_without_a_job_are_refused(tmp_path: Path, printed: Printed) -> None:
    words = ("chaos", tmp_path, "--fault", "now checkpoint", "--yes")
    assert "holds no job.json" in printed(*words, code=2)
    with trained(tmp_path):
        handle = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            assert "another kungfu chaos is at work" in printed(*words, code=2)
        finally:
            os.close(handle)


def test_who_is_asked_and_says_no_changes_nothing(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    with trained(tmp_path):
        said = printed("chaos", tmp_path, "--fault", "now kill rank 1", code=2)
    assert "which trains with 2 peers? [y/N] nothing was done" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_thaws_what_is_frozen_and_reports_what_has_been(tmp_path: Path, number: int) -> None:
    faults = ["--fault", "now freeze rank 1", "--fault", "at step 900 kill rank 0"]
    with trained(tmp_path) as children:
        line = [sys.executable, "-c", AT_A_TERMINAL, "chaos", str(tmp_path), "--yes", "--json", *faults]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert "freeze rank 1 (peer 1)" in process.stderr.readline()
                assert os.WIFSTOPPED(os.waitpid(children[1].pid, os.WUNTRACED)[1])
                process.send_signal(number)
                said, also = process.communicate(timeout=120)
            finally:
                process.kill()
        assert os.WIFCONTINUED(os.waitpid(children[1].pid, os.WCONTINUED)[1])
    assert process.returncode == 130
    assert [one["fault"] for one in json.loads(said)["faults"]] == ["now freeze rank 1"]
    assert "nothing is frozen any more, 1 fault left out" in also


def test_a_schedule_is_read_from_lines_and_from_a_list(tmp_path: Path) -> None:
    expected = parse("at step +5 kill coordinator; once settled resize 2")
    lines, listed = tmp_path / "faults.txt", tmp_path / "faults.yaml"
    lines.write_text("at step +5 kill coordinator  # the first\n\nonce settled resize 2\n")
    listed.write_text("- at step +5 kill coordinator\n- once settled resize 2\n")
    (tmp_path / "faults.json").write_text(json.dumps([str(one) for one in expected]))
    assert read_schedule(lines) == read_schedule(listed) == read_schedule(tmp_path / "faults.json") == expected
    for text in ("at: 5", "- 5", "- [", "5"):
        listed.write_text(text)
        with pytest.raises(UsageError, match=r"must be a list of faults|is no YAML"):
            read_schedule(listed)


def test_only_a_schedule_in_yaml_needs_the_library_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (listed := tmp_path / "faults.json").write_text('["now resize 2"]')
    assert read_schedule(listed) == parse("now resize 2")
    listed.write_text("[")
    with pytest.raises(UsageError, match="is no YAML or JSON"):
        read_schedule(listed)
    with pytest.raises(ModuleNotFoundError):
        read_schedule(listed.rename(tmp_path / "faults.yaml"))
