"""Processes that load TensorFlow before they run their program; here TensorFlow and Keras are quick to load."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from kungfu.runtime.agent.supervisor.process_supervisor import ProcessSupervisor
from kungfu.runtime.core.cluster.events import Spawn
from kungfu.runtime.settings import ENVIRONMENT_KEY
from tests.jobs.harness import awaited
from tests.runtime.agent.supervisor.test_process_supervisor import DEADLINE_S, Heard, settings_of, supervisor

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
def supervised(tmp_path: Path, *, keras: str = "", **environment: str) -> Iterator[tuple[ProcessSupervisor, Heard]]:
    """A supervisor whose peers print what they find, and what is heard of them."""
    modules = tmp_path / "modules"
    modules.mkdir()
    for name, text in {"tensorflow": "", "grpc": "", "keras": keras}.items():
        (modules / f"{name}.py").write_text(text)
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), **environment}
    with supervisor(tmp_path, str(script), "--epochs", "3", slots=4, environment=variables) as found:
        yield found


def gate_in(folder: Path) -> tuple[Path, str]:
    """A file, and a Keras that loads until the file exists."""
    gate = folder / "loads"
    return gate, f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)"


def printed(heard: Heard) -> dict[str, Any]:
    """What the next peer has printed."""
    found: dict[str, Any] = json.loads(heard.lines.get(timeout=DEADLINE_S))
    return found


def loads(peer: int) -> Spawn:
    return Spawn(peer, loads_only=True)


def test_a_process_that_has_loaded_runs_its_program_in_the_environment_of_its_peer(tmp_path: Path) -> None:
    with supervised(tmp_path, CUDA_VISIBLE_DEVICES="0,1,2,3") as (peers, heard):
        peers.start(settings_of(0), Spawn(0, joins=False))
        assert printed(heard)["loaded"] == []
        assert heard.ends.get(timeout=DEADLINE_S) == 0
        started = list[int]()
        pid = peers.start(settings_of(7), loads(7), on_start=started.append)
        ((peer, memory_bytes),) = until(peers.newly_loaded, "a process that has loaded")
        assert (peer, peers.newly_loaded(), peers.running) == (7, [], [7])
        assert memory_bytes > 1e6
        assert peers.start(settings_of(7), Spawn(7), on_start=started.append) == pid
        assert printed(heard) == {
            "pid": pid, "loaded": ["tensorflow", "keras"], "words": [str(tmp_path / "train.py"), "--epochs", "3"],
            "device": "1", "kungfu": [ENVIRONMENT_KEY], "input": "", "main": "__main__",
        }  # fmt: skip
        assert heard.ends.get(timeout=DEADLINE_S) == 7
        assert started == [pid, pid], "reported both times, before the process can end"
        assert peers.start(settings_of(7), Spawn(7)) == pid, "a repeated command starts nothing"
        assert heard.lines.empty()
        assert f'"pid": {pid}' in (tmp_path / "record" / "peers" / "peer-7.log").read_text()


def test_peers_hear_of_a_process_that_loads_like_of_a_joiner(tmp_path: Path) -> None:
    gate, waits = gate_in(tmp_path)
    with supervised(tmp_path, keras=waits) as (peers, heard):
        peers.start(settings_of(7), loads(7))
        assert (peers.newly_loaded(), peers.joiners.count()) == ([], 1), "it takes processor time"
        gate.touch()
        until(peers.newly_loaded, "a process that has loaded")
        assert peers.joiners.count() == 0
        peers.start(settings_of(7), Spawn(7))
        assert peers.joiners.count() == 1, "until its peer is ready"
        assert heard.ends.get(timeout=DEADLINE_S) == 7


def test_a_process_that_still_loads_runs_its_program_afterwards(tmp_path: Path) -> None:
    gate, waits = gate_in(tmp_path)
    with supervised(tmp_path, keras=waits) as (peers, heard):
        pid = peers.start(settings_of(7), loads(7))
        peers.start(settings_of(7), Spawn(7))
        gate.touch()
        assert printed(heard)["pid"] == pid


def test_a_process_that_fails_to_load_is_reported_like_any_end_of_a_peer(tmp_path: Path) -> None:
    with supervised(tmp_path, keras="raise ImportError('no backend')") as (peers, heard):
        peers.start(settings_of(7), loads(7))
        assert heard.ends.get(timeout=DEADLINE_S) == 7
        assert (peers.newly_loaded(), peers.joiners.count()) == ([], 0)
        assert "no backend" in "".join(peers.tail(7))


def test_a_waiting_process_is_killed_on_command_and_none_outlives_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path) as (peers, heard):
        pids = [peers.start(settings_of(peer), loads(peer)) for peer in (7, 8)]
        until(lambda: 8 in [peer for peer, _ in peers.newly_loaded()], "the second has loaded")
        peers.kill(7)
        assert heard.ends.get(timeout=DEADLINE_S) == 7
        assert psutil.pid_exists(pids[1])
    assert not any(map(psutil.pid_exists, pids))
    assert heard.lines.empty(), "the program did not run"
