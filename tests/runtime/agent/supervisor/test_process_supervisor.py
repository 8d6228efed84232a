"""The slot of its host that a peer gets, with a device; and what the supervisor reports of starts and exits.

The devices are names: no machine has them.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kungfu.runtime.agent.journal.journal import Journal
from kungfu.runtime.agent.supervisor.launch import count_gpus, peer_environment
from kungfu.runtime.agent.supervisor.process_supervisor import ProcessSupervisor
from kungfu.runtime.agent.supervisor.slots import AVOIDED_S, choose_slot, devices_of
from kungfu.runtime.core.cluster.events import Spawn
from kungfu.runtime.settings import ENVIRONMENT_KEY, Deadlines, Limits, Settings
from tests.jobs.harness import awaited

DEADLINE_S = 180.0
MIG = "MIG-GPU-8f2a/1/0"


@pytest.mark.parametrize(
    ("environment", "gpus", "devices"),
    [
        ({}, 0, ()),
        ({}, 2, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 8, ("4", "5")),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 0 "}, 2, ("1", "0")),
        ({"CUDA_VISIBLE_DEVICES": f"GPU-8f2a,{MIG}"}, 2, ("GPU-8f2a", MIG)),
        ({"CUDA_VISIBLE_DEVICES": ""}, 2, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 2, ()),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 2, ()),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, 2, ("1",)),
        ({"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_GPUS": "2,3", "NVIDIA_VISIBLE_DEVICES": "all"}, 8, ("3",)),
        ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "2,3"}, 8, ("2",)),
        ({"SLURM_JOB_GPUS": "2,3", "NVIDIA_VISIBLE_DEVICES": "all"}, 8, ("2", "3")),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 2, ("0", "1")),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 2, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, 2, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "5,6"}, 2, ("0", "1")),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 2, ("GPU-a", "GPU-b")),
    ],
)
def test_the_devices_are_those_that_the_user_slurm_or_the_container_names(
    environment: dict[str, str], gpus: int, devices: tuple[str, ...]
) -> None:
    assert devices_of(environment, gpus=gpus) == devices


def given(environment: dict[str, str], *, peers: int, gpus: int = 0) -> list[str | None]:
    shares = [peer_environment(environment, slot=place, peers=peers, gpus=gpus) for place in range(peers)]
    return [share.get("CUDA_VISIBLE_DEVICES") for share in shares]


def test_what_the_user_names_is_divided_and_does_not_go_whole_to_every_peer() -> None:
    assert given({"CUDA_VISIBLE_DEVICES": "4,GPU-b,6"}, peers=3) == ["4", "GPU-b", "6"]
    assert given({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, peers=2) == ["4", "5"]
    assert given({"CUDA_VISIBLE_DEVICES": ""}, peers=2, gpus=2) == ["", ""]
    assert given({}, peers=5, gpus=2) == ["0", "1", "0", "1", "0"]
    assert given({}, peers=1) == [None]


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "4,5"}])
def test_no_peer_takes_all_the_memory_of_a_device(environment: dict[str, str]) -> None:
    """Neither where slots share one, nor where a peer takes over from one that leaves, nor where none is known of."""
    assert peer_environment(environment, slot=0, peers=2, gpus=0)["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_gpus_are_counted_where_the_driver_lists_them_or_else_by_their_devices(tmp_path: Path) -> None:
    assert count_gpus(tmp_path) == 0
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert count_gpus(tmp_path) == 3
    listed = tmp_path / "proc/driver/nvidia/gpus"
    for name in ("0000:3b:00.0", "0000:af:00.0"):
        (listed / name).mkdir(parents=True)
    assert count_gpus(tmp_path) == 2, "a container may have the devices of others in /dev"


def test_a_slot_that_was_left_recently_comes_last() -> None:
    def slot(taken: dict[int, int], now: float) -> int:
        return choose_slot(taken, slots=3, leaving=(), vacated={0: 100.0, 1: 50.0}, now=now)

    assert slot({}, now=110.0) == 2
    assert slot({7: 2}, now=110.0) == 1
    assert slot({7: 2, 8: 1}, now=110.0) == 0
    assert slot({}, now=50.0 + AVOIDED_S) == 1, "a while is over"
    assert slot({}, now=100.0 + AVOIDED_S) == 0


@pytest.mark.parametrize(
    ("leaving", "slot"),
    [
        ((), 1),  # the lowest of those with the fewest processes
        ((4, 5), 2),  # peers 4 and 5 leave slots 2 and 3
        ((6, 5), 3),  # in slot 0, of peer 6, peer 7 stays
        ((6,), 0),
    ],
)
def test_a_peer_without_a_free_slot_shares_the_one_with_the_fewest_peers(leaving: tuple[int, ...], slot: int) -> None:
    """Two peers on one device run at half the speed while another device is idle."""
    used = {7: 0, 6: 0, 3: 1, 4: 2, 5: 3}
    assert choose_slot(used, slots=4, leaving=leaving, vacated={}, now=0.0) == slot


class Heard:
    """Hears what peers print and that they end."""

    def __init__(self) -> None:
        self.lines, self.ends = queue.SimpleQueue[str](), queue.SimpleQueue[int]()

    def on_output(self, peer: int, text: str) -> None:
        self.lines.put(text)

    def on_exit(self, peer: int, code: int, tail: Sequence[str]) -> None:
        self.ends.put(peer)


def settings_of(peer: int) -> Settings:
    return Settings("job", peer, "127.0.0.1:1", "ab" * 32, "local", Limits(1, 3), Deadlines())


@contextmanager
def supervisor(
    tmp_path: Path,
    *arguments: str,
    slots: int,
    environment: Mapping[str, str],
    clock: Callable[[], float] = lambda: 0.0,
    spares: int = 0,
) -> Iterator[tuple[ProcessSupervisor, Heard]]:
    """The peers of a host that run Python with these arguments; all of them have ended afterwards."""
    heard, journal = Heard(), Journal(tmp_path / "record")
    peers = ProcessSupervisor(
        [sys.executable, *arguments], environment=environment, slots=slots, journal=journal, listener=heard,
        clock=clock, spares=spares,
    )  # fmt: skip
    try:
        yield peers, heard
    finally:
        peers.close()
        journal.close()


@contextmanager
def seated(
    tmp_path: Path, *, slots: int, clock: Callable[[], float], devices: int | None = None, spares: int = 0
) -> Iterator[Callable[..., str]]:
    """Gives what starts a peer and says which device it got; of a host with as many devices as slots by default."""
    program = "import os, signal; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); signal.pause()"
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{number}" for number in range(devices or slots))}
    with supervisor(tmp_path, "-S", "-c", program, slots=slots, environment=visible, clock=clock, spares=spares) as (
        peers,
        heard,
    ):

        def start(peer: int, *, leaving: Sequence[int] = (), ended: int | None = None) -> str:
            if ended is not None:
                peers.kill(ended)
                assert heard.ends.get(timeout=DEADLINE_S) == ended
            peers.start(settings_of(peer), Spawn(peer, joins=True, leaving=leaving))
            return heard.lines.get(timeout=DEADLINE_S)

        yield start


def test_the_newcomer_of_an_exchange_gets_the_device_of_the_peer_that_leaves_for_it(tmp_path: Path) -> None:
    with seated(tmp_path, slots=3, clock=lambda: 0.0) as start:
        assert [start(peer) for peer in range(3)] == ["GPU-0", "GPU-1", "GPU-2"]
        assert start(3, leaving=(2,)) == "GPU-2"
        assert start(4, leaving=(1,), ended=2) == "GPU-1"


def test_a_spare_gets_a_device_beyond_the_slots_and_one_that_it_shares_with_nobody(tmp_path: Path) -> None:
    with seated(tmp_path, slots=2, devices=4, spares=1, clock=lambda: 0.0) as start:
        assert [start(peer) for peer in range(3)] == ["GPU-0", "GPU-1", "GPU-2"]
        assert start(3, ended=1) == "GPU-1", "the next spare, after this one has taken the place of a lost peer"


def test_temporary_files_of_the_peers_go_with_the_job(tmp_path: Path) -> None:
    program = "import tempfile; print(tempfile.mkstemp(prefix='__autograph_generated_file')[1], flush=True)"
    with supervisor(tmp_path, "-S", "-c", program, slots=1, environment={"TMPDIR": str(tmp_path)}) as (peers, heard):
        peers.start(settings_of(0), Spawn(0, joins=True))
        peers.start(settings_of(1), Spawn(1, joins=True))
        files = [Path(heard.lines.get(timeout=DEADLINE_S)) for _ in range(2)]
        assert [file.parent.parent for file in files] == [tmp_path] * 2
        assert files[0].parent == files[1].parent
    assert not files[0].parent.exists()


def test_the_device_of_a_peer_that_ended_is_avoided_for_a_while(tmp_path: Path) -> None:
    now = [0.0]
    with seated(tmp_path, slots=3, clock=lambda: now[0]) as start:
        assert [start(peer) for peer in range(2)] == ["GPU-0", "GPU-1"]
        assert start(2, ended=1) == "GPU-2"
        assert start(3) == "GPU-1", "there is no other"
        now[0] = 2 * AVOIDED_S
        assert start(4, ended=3) == "GPU-1"


# Says that it runs; with a line from the test it would be ready, which needs the page that its settings name.
PROGRAM = f"""
import json, os, signal
print(json.loads(os.environ["{ENVIRONMENT_KEY}"])["joiner_page"], flush=True)
signal.pause()
"""


def test_a_joiner_is_on_its_way_until_its_process_ends_and_a_first_peer_never(tmp_path: Path) -> None:
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
    reported_before: list[bool] = []

    def ended(pid: int) -> None:
        awaited(lambda: not psutil.pid_exists(pid), what="the end of the process", deadline_s=DEADLINE_S)
        reported_before.append(not heard.ends.empty())

    with supervisor(tmp_path, "-S", "-c", "pass", slots=1, environment={}) as (peers, heard):
        peers.start(settings_of(0), Spawn(0, joins=False), on_start=ended)
        assert reported_before == [False], "it has ended, and nobody was told"
        assert heard.ends.get(timeout=DEADLINE_S) == 0
