"""What the supervisor of a host tells of starts and exits, and its peers of those that are on their way there."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from kungfu.runtime.core.cluster.events import Spawn
from kungfu.runtime.settings import ENVIRONMENT_KEY
from tests.runtime.agent.supervisor.test_slots import DEADLINE_S, settings_of, supervisor

# Says that it runs; with a line from the test it would be ready, which needs the page that its settings name.
PROGRAM = f"""
import json, os, signal
print(json.loads(os.environ["{ENVIRONMENT_KEY}"])["joiner_page"], flush=True)
signal.pause()
"""


def test_a_joiner_is_on_its_way_until_its_process_ends_and_a_first_peer_never(tmp_path: Path) -> None:
    """A joiner is on its way until its process has ended, and a first peer never is."""
    with supervisor(tmp_path, "-S", "-c", PROGRAM, slots=3, environment={}) as (peers, heard):
        page = peers.joiners
        peers.start(settings_of(0), Spawn(0, joins=False))
        assert heard.lines.get(timeout=DEADLINE_S) == page.path
        assert page.count() == 0
        for peer in (1, 2):
            peers.start(settings_of(peer), Spawn(peer, joins=True))
            assert heard.lines.get(timeout=DEADLINE_S) == page.path
        assert page.count() == 2
        peers.kill(1)
        assert heard.ends.get(timeout=DEADLINE_S) == 1
        assert page.count() == 1, "the other one is on its way still"
        page.remove([2])  # as it does itself when it is ready
        peers.kill(2)
        assert heard.ends.get(timeout=DEADLINE_S) == 2
        assert page.count() == 0


def test_a_start_is_told_of_before_the_exit_of_a_process_that_ends_at_once(tmp_path: Path) -> None:
    told: list[bool] = []

    def ended(pid: int) -> None:
        until = time.monotonic() + DEADLINE_S
        while psutil.pid_exists(pid) and time.monotonic() < until:
            time.sleep(0.01)
        told.append(not psutil.pid_exists(pid) and heard.ends.empty())

    with supervisor(tmp_path, "-S", "-c", "pass", slots=1, environment={}) as (peers, heard):
        peers.start(settings_of(0), Spawn(0, joins=False), on_start=ended)
        assert told == [True], "it has ended, and nobody was told"
        assert heard.ends.get(timeout=DEADLINE_S) == 0
