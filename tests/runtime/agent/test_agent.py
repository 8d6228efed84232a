"""Whole jobs of real processes, small ones: an agent in this process, and peers that need no TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from kungfu.event_log.events import LoggedEvent
from kungfu.runtime.agent.agent import Agent, Ending, JobSpec
from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.core.failure import Failure
from kungfu.runtime.core.request import Asked, Resize
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.job_file import read_job_file
from kungfu.runtime.settings import CheckpointSettings, Deadlines, Limits, Settings

pytestmark = pytest.mark.slow  # each starts two or three Python processes that load gRPC
PEER = str(Path(__file__).with_name("peer.py"))


@dataclass
class Console:
    """Keeps what a person would see; ``on_line`` is called with every line of a peer."""

    on_line: Callable[[str], None] = lambda text: None
    lines: list[tuple[str, str]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def line(self, who: str, text: str) -> None:
        self.lines.append((who, text))
        self.on_line(text)

    def event(self, event: LoggedEvent) -> None:
        self.events.append(event.kind)

    def note(self, event: LoggedEvent) -> None:
        """It is not shown."""

    def status(self, fields: Mapping[str, Any]) -> None:
        raise AssertionError(f"these peers measure nothing: {fields}")


@dataclass
class Run:
    """A job that has ended."""

    ending: Ending
    console: Console
    events: list[dict[str, Any]]
    folder: Path

    @property
    def failure(self) -> Failure:
        assert self.ending.failure is not None
        return self.ending.failure

    def all(self, event: str) -> list[dict[str, Any]]:
        return [fields for fields in self.events if fields["event"] == event]


def run(
    folder: Path,
    *command: str,
    console: Console | None = None,
    deadlines: Deadlines | None = None,
    scaling: Scaling = "elastic",
) -> Run:
    """Runs a job of two peers to its end, and sees to it that none of its processes is left."""
    # Another test beside this one runs such a job too: peers find each other by the name and the secret of their job.
    name, deadlines = f"job-{os.getpid()}", deadlines or Deadlines(ready_s=180.0, wait_s=120.0)
    checkpoints = CheckpointSettings(str(folder / "checkpoints"))
    settings = Settings(name, -1, "127.0.0.1", "ab" * 32, "local", Limits(1, 3), deadlines, checkpoints=checkpoints)
    journal, console = Journal(folder), console or Console()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    job = JobSpec((sys.executable, *command), 2, settings, environment, scaling=scaling)
    ending = Agent(job, journal=journal, console=console).run()
    journal.close()
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    ended = Run(ending, console, events, folder)
    assert not [spawned["pid"] for spawned in ended.all("spawned") if psutil.pid_exists(spawned["pid"])]
    return ended


def test_a_job_grows_and_shrinks_and_every_decision_is_in_its_journal(tmp_path: Path) -> None:
    job = run(tmp_path, PEER, "nothing")
    assert job.ending == Ending(0)
    assert [(view["version"], view["peers"]) for view in job.all("view")] == [(1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1])]
    assert [spawned["peer"] for spawned in job.all("spawned")] == [0, 1, 2]
    finished = {fields["peer"]: (fields["leaving"], fields["steps"]) for fields in job.all("finished")}
    assert set(finished) == {0, 1, 2}
    assert [leaving for _, (leaving, _) in sorted(finished.items())] == [False, False, True]
    assert len({barriers for _, barriers in finished.values()}) == 1
    assert {ended["how"] for ended in job.all("peer ended")} == {"exit code 0"}
    assert sorted(text for _, text in job.console.lines) == ["joined a view of 2"] * 2 + ["joined a view of 3"]
    assert (tmp_path / "peers" / "peer-2.log").read_text() == "joined a view of 3\n"


def test_a_full_disk_under_the_output_of_a_peer_costs_its_lines_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "peer-0.log").symlink_to("/dev/full")
    job = run(tmp_path, PEER, "nothing")
    assert job.ending == Ending(0)
    assert sorted(text for _, text in job.console.lines) == ["joined a view of 2"] * 2 + ["joined a view of 3"]
    assert job.console.events.count("unrecorded") == 1
    (gap,) = job.all("gap")
    assert (gap["file"], gap["lines"], gap["error"]) == ("peers/peer-0.log", 1, "No space left on device")


def test_a_joiner_of_another_program_is_told_why_and_nobody_comes_in_its_place(tmp_path: Path) -> None:
    job = run(tmp_path, PEER, "joiner differs")
    assert job.ending == Ending(0)
    (dismissed,) = job.all("dismissed")
    why = "its program is not that of the job"
    assert dismissed["peer"] == 2
    assert dismissed["reason"] == f"{why}: model: peer 0 has kernel (2, 2), peer 2 has kernel (2, 3)"
    (missing,) = job.all("missing")
    assert (missing["peers"], missing["reason"]) == ([2], f"peer 2: {why}")
    assert [spawned["peer"] for spawned in job.all("spawned")] == [0, 1, 2]
    assert [view["peers"] for view in job.all("view")] == [[0, 1]]
    assert job.console.events.count("dismissed") == 1


def test_a_usage_error_of_a_member_ends_the_job_with_2_and_its_output(tmp_path: Path) -> None:
    job = run(tmp_path, PEER, "member is wrong")
    assert job.ending.code == 2
    where = job.failure.text.partition("(tests/runtime/agent/peer.py:")
    assert where[0] == "rank 1 (peer 1): its program raised UsageError: a file of this peer is missing "
    assert job.failure.output[-1] == "kungfu.errors.UsageError: a file of this peer is missing"
    (ended,) = [event for event in job.all("program ended") if event["peer"] == 1]
    assert (ended["rank"], ended["step"], ended["how"], ended["others"]) == (1, 2, "usage", 1)


def test_a_member_that_exits_with_a_code_ends_the_job_with_it(tmp_path: Path) -> None:
    job = run(tmp_path, PEER, "member exits")
    assert job.ending.code == 7
    assert (job.failure.peer, job.failure.chosen) == (1, True)
    assert job.failure.text == (
        "rank 1 (peer 1): exit code 7: its program ended by itself after step 2, before the end of training"
    )


def test_a_script_that_fails_after_its_training_fails_the_job_with_its_output(tmp_path: Path) -> None:
    job = run(tmp_path, PEER, "script fails")
    assert job.ending.code == 1
    assert job.failure.text == (
        "rank 0 (peer 0): exit code 1, after its training was over: ValueError: cannot save the model"
    )
    assert job.failure.output[-1] == "ValueError: cannot save the model"


def test_a_peer_that_is_never_ready_ends_the_job_at_the_deadline(tmp_path: Path) -> None:
    deadlines = Deadlines(ready_s=1.0, wait_s=120.0)
    job = run(tmp_path, "-c", "import signal; signal.pause()", deadlines=deadlines)
    assert job.ending.code == 3
    assert "waited 1 s for peer 0 to get ready; it has started" in job.failure.text
    assert [event["event"] for event in job.events[-3:]] == ["failed", "peer ended", "peer ended"]
    assert [ended["how"] for ended in job.all("peer ended")] == ["killed by SIGTERM"] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_peers_even_those_that_do_not_listen(tmp_path: Path, number: signal.Signals) -> None:
    both = threading.Barrier(2, action=lambda: os.kill(os.getpid(), number))
    program = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    console = Console(on_line=lambda text: print(both.wait(180.0)))
    job = run(tmp_path, "-c", program, console=console)
    assert job.ending == Ending(128 + number)
    assert job.events[-1]["reason"] == number.name


def test_a_running_job_reports_its_status_and_an_inelastic_one_is_not_resized(tmp_path: Path) -> None:
    answers: list[Any] = []

    def ask() -> None:
        with connected(tmp_path) as steered:
            answers.extend([steered.status(), steered.submit(Asked(Resize(1), id="r"))])
        os.kill(os.getpid(), signal.SIGTERM)

    both = threading.Barrier(2, action=ask)

    def printed(text: str) -> None:
        if text.startswith("joined"):  # a busy peer may be ended in the middle of a notice, and say so
            both.wait(180.0)

    job = run(tmp_path, PEER, "waits", console=Console(on_line=printed), scaling="inelastic")
    assert job.ending == Ending(128 + signal.SIGTERM)
    status, refused = answers
    assert (status.scaling, status.membership.version, status.membership.size) == ("inelastic", 1, 2)
    assert [(peer.id, peer.rank, peer.state) for peer in status.peers] == [(0, 0, "training"), (1, 1, "training")]
    assert {peer.pid for peer in status.peers} == {spawned["pid"] for spawned in job.all("spawned")}
    assert (refused.state, "inelastic" in refused.reason) == ("refused", True)
    assert [event["state"] for event in job.all("request")] == ["refused"]
    assert (read_job_file(tmp_path).code, read_job_file(tmp_path).secret) == (143, "")
