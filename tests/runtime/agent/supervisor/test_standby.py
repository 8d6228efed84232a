"""Processes on standby, with a TensorFlow and a Keras that are quick to load."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from kungfu.runtime.agent.supervisor.process_supervisor import CALM_S, ProcessSupervisor
from kungfu.runtime.core.cluster.events import Spawn
from kungfu.runtime.settings import ENVIRONMENT_KEY
from tests.jobs.harness import awaited
from tests.runtime.agent.supervisor.test_process_supervisor import DEADLINE_S, Heard, settings_of, supervisor

StandingBy = tuple[ProcessSupervisor, Heard, list[float]]  # with the clock of the supervisor
PROGRAM = """
import json, os, sys
print(json.dumps({
    "pid": os.getpid(), "loaded": [one for one in ("tensorflow", "keras") if one in sys.modules], "words": sys.argv,
    "device": os.environ.get("CUDA_VISIBLE_DEVICES"), "kungfu": sorted(one for one in os.environ if "KUNGFU" in one),
    "input": sys.stdin.read(), "main": __name__,
}), flush=True)
"""


def until(holds: Callable[[], object], what: str) -> Any:
    return awaited(holds, what=what, deadline_s=DEADLINE_S)


@contextmanager
def standing_by(tmp_path: Path, *, standby: int, keras: str = "", **environment: str) -> Iterator[StandingBy]:
    """A supervisor whose peers print what they find, and what is heard of them."""
    modules = tmp_path / "modules"
    modules.mkdir()
    for name, text in {"tensorflow": "", "grpc": "", "keras": keras}.items():
        (modules / f"{name}.py").write_text(text)
    script, now = tmp_path / "train.py", [0.0]
    script.write_text(PROGRAM)
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), **environment}
    with supervisor(
        tmp_path, str(script), "--epochs", "3", slots=4, environment=variables, clock=lambda: now[0], standby=standby
    ) as (peers, heard):
        yield peers, heard, now


def gate_in(folder: Path) -> tuple[Path, str]:
    """A file, and a Keras that loads until the file exists."""
    gate = folder / "loads"
    return gate, f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"


def printed(heard: Heard) -> dict[str, Any]:
    """What the next peer has printed."""
    found: dict[str, Any] = json.loads(heard.lines.get(timeout=DEADLINE_S))
    return found


def kept(peers: ProcessSupervisor, *, ready: int) -> None:
    """Looks after those on standby until so many have loaded."""

    def are_ready() -> bool:
        assert peers.keep_standby() == ""
        return peers._standby.ready == ready

    until(are_ready, f"{ready} processes on standby")


def test_a_process_on_standby_becomes_a_peer_with_its_environment(tmp_path: Path) -> None:
    with standing_by(tmp_path, standby=2, CUDA_VISIBLE_DEVICES="0,1,2,3") as (peers, heard, now):
        kept(peers, ready=2)
        waiting = {one.process.pid for one in peers._standby._waiting}
        pid = peers.start(settings_of(0), Spawn(0, joins=True))
        assert peers._standby.ready == 1
        found = printed(heard)
        assert found.pop("pid") == pid
        assert pid in waiting
        assert found == {
            "loaded": ["tensorflow", "keras"], "words": [str(tmp_path / "train.py"), "--epochs", "3"], "device": "0",
            "kungfu": [ENVIRONMENT_KEY], "input": "", "main": "__main__",
        }  # fmt: skip
        assert heard.ends.get(timeout=DEADLINE_S) == 0
        now[0] += CALM_S
        kept(peers, ready=2)
        assert not {one.process.pid for one in peers._standby._waiting} & {pid}
        assert f'"pid": {pid}' in (tmp_path / "record" / "peers" / "peer-0.log").read_text()


def test_peers_hear_of_one_that_loads_and_the_next_one_waits_for_it(tmp_path: Path) -> None:
    gate, waits = gate_in(tmp_path)
    with standing_by(tmp_path, standby=2, keras=waits) as (peers, _, _):
        for _ in range(3):
            assert peers.keep_standby() == ""
            assert len(peers._standby._waiting) == 1
        assert peers.joiners.count() == 1, "it takes processor time as a joiner does"
        assert peers._standby.ready == 0
        gate.touch()
        kept(peers, ready=2)
        assert peers.keep_standby() == ""
        assert peers.joiners.count() == 0


def test_while_peers_join_none_is_started_and_after_first_peers_at_once(tmp_path: Path) -> None:
    with standing_by(tmp_path, standby=1) as (peers, _, now):
        peers.start(settings_of(0), Spawn(0, joins=False))
        kept(peers, ready=1)
        peers.start(settings_of(1), Spawn(1, joins=True))
        now[0] = CALM_S - 0.1
        assert peers.keep_standby() == ""
        assert not peers._standby._waiting
        now[0] = CALM_S
        kept(peers, ready=1)


def test_a_process_on_standby_that_still_loads_can_be_taken(tmp_path: Path) -> None:
    """A process on standby that still loads can be taken, and then it is the peer that is on its way."""
    gate, waits = gate_in(tmp_path)
    with standing_by(tmp_path, standby=1, keras=waits) as (peers, heard, _):
        peers.keep_standby()
        pid = peers.start(settings_of(3), Spawn(3, joins=True))
        assert peers.keep_standby() == ""
        assert peers.joiners.count() == 1
        gate.touch()
        assert printed(heard)["pid"] == pid


def test_one_that_has_loaded_under_another_environment_is_not_taken(tmp_path: Path) -> None:
    with standing_by(tmp_path, standby=1) as (peers, heard, now):
        kept(peers, ready=1)
        (waiting,) = peers._standby._waiting
        peers.start(settings_of(0), Spawn(0, joins=True, threads=3))  # within an op, as the leader has told
        found = printed(heard)
        assert found["pid"] != waiting.process.pid
        assert found["loaded"] == []
        until(lambda: not psutil.pid_exists(waiting.process.pid), "the end of the one that is not used")
        until(lambda: heard.ends.qsize() == 1, "the end of the peer")
        now[0] += CALM_S
        kept(peers, ready=1)
        pid = peers.start(settings_of(1), Spawn(1, joins=True, threads=3))
        found = printed(heard)
        assert (found["pid"], found["loaded"]) == (pid, ["tensorflow", "keras"])


def test_where_loading_fails_it_is_said_once_and_peers_start_without(tmp_path: Path) -> None:
    with standing_by(tmp_path, standby=2, keras="raise ImportError('no backend')") as (peers, heard, _):
        assert (
            until(peers.keep_standby, "the reason") == "a process on standby ended with exit code 1 while it loaded it"
        )
        assert [peers.keep_standby() for _ in range(3)] == ["", "", ""]
        assert not peers._standby._waiting
        assert peers.joiners.count() == 0
        peers.start(settings_of(0), Spawn(0, joins=True))
        assert printed(heard)["loaded"] == []


def test_a_process_killed_on_standby_is_replaced_and_none_outlives_the_supervisor(tmp_path: Path) -> None:
    with standing_by(tmp_path, standby=1) as (peers, _, _):
        kept(peers, ready=1)
        (first,) = peers._standby._waiting
        psutil.Process(first.process.pid).kill()
        until(first.process.has_exited, "the end of the first")
        kept(peers, ready=1)
        (second,) = peers._standby._waiting
        assert second.process.pid != first.process.pid
    assert not psutil.pid_exists(second.process.pid)
