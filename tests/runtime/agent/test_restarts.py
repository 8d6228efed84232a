"""A job that starts again: from which checkpoint, how often, and in a folder that nobody else uses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from kungfu.event_log.events import LoggedEvent, RestartedEvent
from kungfu.runtime.agent.agent import Ending, JobSpec, run_job
from kungfu.runtime.agent.consensus.host_admission import FormerJob
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.restarts import UnreadableCheckpoints, former_job, is_over, next_restart, plan_restart
from kungfu.runtime.checkpoints.folder import CheckpointFolder
from kungfu.runtime.checkpoints.manifest import Manifest, write_manifest
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.hosts import Host
from kungfu.runtime.settings import CheckpointSettings, Deadlines, Limits, Settings
from tests.event_log.made import write_record

STARTED = {"event": "started", "job": "one", "size": 2, "command": ["true"]}
VIEW = {"event": "view", "version": 4, "peers": [0, 5]}


def job_in(folder: Path, *, restarts: int = 2, command: tuple[str, ...] = ("true",), **given: Any) -> JobSpec:
    """A job of two peers whose checkpoints are in its folder, with settings of checkpoints beside."""
    checkpoints = CheckpointSettings(str(folder / "checkpoints"), founders=2, restarts=restarts, **given)
    deadlines = Deadlines(ready_s=120.0, wait_s=60.0)
    settings = Settings("one", -1, "127.0.0.1", "ab" * 32, "local", Limits(1, 4), deadlines, checkpoints=checkpoints)
    return JobSpec(command, 2, settings, {**os.environ})


def publish(folder: Path, *steps: int, job: str = "one", size: int = 3) -> list[Path]:
    def written(step: int) -> Path:
        def write(path: Path) -> None:
            (path / "state").write_bytes(b"state")
            write_manifest(Manifest(step, size, 8, Terms(), files={"state": 5}), path)

        return CheckpointFolder(folder, job=job).publish(step, write)

    return [written(step) for step in steps]


def planned(folder: Path, job: JobSpec) -> RestartedEvent:
    found = plan_restart(folder, job)
    assert found is not None
    return found


def test_a_folder_in_which_no_job_has_started_begins_anew(tmp_path: Path) -> None:
    assert plan_restart(tmp_path, job_in(tmp_path)) is None
    publish(tmp_path / "checkpoints", 10, job="another")
    assert plan_restart(tmp_path, job_in(tmp_path)) is None
    write_record(tmp_path, {"event": "host", "host": 0, "name": "a", "pid": 7})
    assert plan_restart(tmp_path, job_in(tmp_path)) is None


def test_hosts_of_a_record_that_have_not_left_may_go_on_with_its_job(tmp_path: Path) -> None:
    def host(number: int, kind: str = "host", **given: Any) -> dict[str, Any]:
        return {"event": kind, "host": number, "name": "abcd"[number], **given}

    came = [host(number, pid=7, port=28100 + number) for number in range(4)]
    gone = [host(2, "host lost", why="cut off"), host(3, "host lost", why="cut off"), host(3, "host left", why="late")]
    write_record(tmp_path, STARTED, *came, VIEW, *gone)
    assert former_job(tmp_path) == FormerJob(("one",), {"a:28100": "a", "b:28101": "b", "c:28102": "c"})
    # A host without a majority ends alone.
    write_record(tmp_path, {"event": "failed", "peer": -1, "error": "no majority", "code": 4})
    assert [*former_job(tmp_path).hosts.values()] == ["a", "b", "c"]
    write_record(tmp_path, {"event": "ended", "reason": "SIGTERM", "code": 143})
    assert former_job(tmp_path) == FormerJob(("one",))


def test_it_goes_on_from_its_own_newest_checkpoint_with_new_numbers(tmp_path: Path) -> None:
    steps = [{"step": step, "view": 4} for step in (30, 31, 34)]
    write_record(tmp_path, STARTED, VIEW, *steps)
    _, newest = publish(tmp_path / "checkpoints", 10, 30)
    publish(tmp_path / "checkpoints", 99, job="another")
    found = planned(tmp_path, job_in(tmp_path))
    assert (found.path, found.step, found.steps_again, found.size) == (str(newest), 30, 4, 3)
    assert (found.first_peer, found.first_view) == (6, 6), "beyond those that were, and one that was not recorded"
    assert (found.nth, found.limit, found.damaged) == (1, 2, ())
    assert "killed" in found.why
    write_record(tmp_path, {"step": 35, "view": 7})
    assert planned(tmp_path, job_in(tmp_path)).first_view == 9, "a view of which only a step was recorded"


def test_a_host_that_others_may_have_joined_leaves_numbers_to_what_its_record_lacks(tmp_path: Path) -> None:
    """The others may have elected a leader after the loss of this host, and replaced many peers."""
    write_record(tmp_path, STARTED, VIEW)
    job = replace(job_in(tmp_path), hosts=(Host("a", 2, 28100),))
    found = planned(tmp_path, job)
    assert (found.first_peer, found.first_view) == (1000, 1000)
    write_record(tmp_path, STARTED, VIEW, to_builtins(found))
    again = planned(tmp_path, job)
    assert (again.first_peer, again.first_view) == (2000, 2000)


def test_without_a_checkpoint_of_its_own_it_begins_as_its_command_line_says(tmp_path: Path) -> None:
    write_record(tmp_path, STARTED, VIEW)
    found = planned(tmp_path, job_in(tmp_path))
    assert (found.path, found.step, found.size) == ("", 0, 2)
    assert "again from the beginning" in found.headline()
    (resumed,) = publish(tmp_path / "others", 50, job="another")
    found = planned(tmp_path, job_in(tmp_path, resume=str(resumed)))
    assert (found.path, found.step, found.size) == (str(resumed), 50, 2)


def test_a_damaged_checkpoint_is_named_and_if_none_is_whole_the_job_ends(tmp_path: Path) -> None:
    write_record(tmp_path, STARTED, VIEW)
    older, newer = publish(tmp_path / "checkpoints", 10, 30)
    (newer / "state").write_bytes(b"")
    found = planned(tmp_path, job_in(tmp_path))
    assert (found.path, found.damaged) == (str(older), (str(newer),))
    assert f"{newer} is newer, and cannot be read" in found.details()
    (older / "kungfu.json").unlink()
    with pytest.raises(UnreadableCheckpoints, match=r"step-00000030, .*step-00000010; restore one"):
        plan_restart(tmp_path, job_in(tmp_path, resume=str(older)))


def test_restarts_without_a_newer_checkpoint_are_counted_except_after_a_signal(tmp_path: Path) -> None:
    job, kept = job_in(tmp_path), tmp_path / "checkpoints"

    def again(folder: Path = tmp_path) -> int:
        """Starts it again, as it is recorded; how many restarts in a row that makes."""
        found = planned(folder, job)
        write_record(folder, json.loads(json.dumps(_fields(found))), {**STARTED, "job": "two"})
        return found.nth

    write_record(tmp_path, STARTED, VIEW)
    assert (next_restart(tmp_path, job), again()) == (1, 1)
    write_record(tmp_path, {"event": "ended", "reason": "SIGTERM", "code": 143})
    assert again() == 1, "it was asked to end"
    write_record(tmp_path, {"event": "failed", "error": "rank 0: killed", "peer": 0, "code": 1})
    assert planned(tmp_path, job).why == "rank 0: killed"
    assert (next_restart(tmp_path, job), again()) == (2, 2)
    assert (next_restart(tmp_path, job), next_restart(tmp_path, job_in(tmp_path, restarts=0))) == (0, 0)
    publish(kept, 20, job="two")
    assert (next_restart(tmp_path, job), again(), again()) == (1, 1, 2)


def _fields(event: RestartedEvent) -> dict[str, Any]:
    return {"event": event.kind, **{name: getattr(event, name) for name in event.__struct_fields__ if name != "time"}}


def test_a_job_is_over_once_its_training_has_ended_and_not_after_a_signal(tmp_path: Path) -> None:
    write_record(tmp_path, STARTED, {"event": "ended", "reason": "SIGTERM", "code": 143})
    assert not is_over(tmp_path)
    write_record(tmp_path, {"event": "ended", "reason": "training is over"})
    assert is_over(tmp_path)


def test_a_second_kungfu_run_in_the_folder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    program = f"from kungfu.runtime.agent.restarts import *; lock_record(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "-c", f"{program}; print('locked', flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"locked\n"
        second = subprocess.run(words, input=b"\n", capture_output=True, env=environment, timeout=120)
        holder = f"kungfu-run, process {first.pid} on {socket.gethostname()}, keeps the record of its job there"
        assert holder in second.stderr.decode()
        first.kill()
    third = subprocess.run(words, input=b"\n", capture_output=True, env=environment, timeout=120)
    assert third.stdout == b"locked\n", "the kernel has released the lock"


class Screen:
    """Keeps what a person would see; sends SIGTERM to this process when the job is about to start again, if asked."""

    def __init__(self, *, is_ended: bool = False) -> None:
        self.lines, self._is_ended = list[str](), is_ended

    def line(self, who: str, text: str) -> None:
        self.lines.append(f"{who}: {text}")
        if self._is_ended and "starts again" in text:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()

    def event(self, event: LoggedEvent) -> None:
        """It is in the record too."""

    def note(self, event: LoggedEvent) -> None:
        """It is not shown."""

    def status(self, fields: Mapping[str, Any]) -> None:
        raise AssertionError(f"these peers measure nothing: {fields}")


def ran(folder: Path, program: str, screen: Screen, *, restarts: int = 1) -> tuple[Ending, list[dict[str, Any]]]:
    journal = Journal(folder, continues=True)
    job = job_in(folder, restarts=restarts, command=(sys.executable, "-S", "-c", program))
    ending = run_job(replace(job, size=1), journal=journal, console=screen)
    journal.close()
    return ending, [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


KILLED = "import os; os.kill(os.getpid(), 9)"


def test_a_job_that_is_killed_again_and_again_ends_with_its_error(tmp_path: Path) -> None:
    screen = Screen()
    ending, events = ran(tmp_path, KILLED, screen)
    assert (ending.code, ending.restarts) == (1, 0)
    assert ending.failure is not None
    assert ending.failure.text == "peer 1: killed by SIGKILL"
    assert screen.lines == ["kungfu-run: peer 0: killed by SIGKILL; the job starts again in 1.0 s"]
    found = [event for event in events if event["event"] in ("started", "spawned", "restarted", "failed")]
    assert [event["event"] for event in found] == ["started", "spawned", "restarted", "started", "spawned", "failed"]
    assert (found[2]["why"], found[2]["nth"]) == ("peer 0: killed by SIGKILL", 1)
    assert len({found[0]["job"], found[3]["job"]}) == 2

    # Its supervisor starts it again, and again.
    ending, events = ran(tmp_path, KILLED, Screen())
    assert (ending.code, [event["event"] for event in events][-1]) == (1, "failed")
    assert events[-1]["error"].startswith("peer 1: killed by SIGKILL; 1 restart in a row brought no newer checkpoint")


@pytest.mark.parametrize("program", ["raise ValueError('wrong')", "import os; os._exit(3)", ""])
def test_a_job_that_its_program_has_ended_does_not_start_again(tmp_path: Path, program: str) -> None:
    ending, events = ran(tmp_path, program, Screen())
    assert ending.code in (1, 2)
    assert not [event for event in events if event["event"] == "restarted"]


def test_a_signal_ends_a_job_that_is_about_to_start_again(tmp_path: Path) -> None:
    ending, events = ran(tmp_path, KILLED, Screen(is_ended=True))
    assert ending == Ending(143)
    assert (events[-1]["event"], events[-1]["reason"], events[-1]["code"]) == ("ended", "SIGTERM", 143)
