"""Processes of a host: their share of it, their output, their end. Each test ends what it started, by its id."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from kungfu.runtime.agent.journal.log_file import LogFile
from kungfu.runtime.agent.supervisor.launch import (
    TAIL_LINES,
    PeerProcess,
    kill_and_reap,
    peer_environment,
    start,
    terminate_all,
    threads_per_peer,
)
from tests.jobs.harness import awaited

DEADLINE_S = 180.0
PYTHON = (sys.executable, "-c")
Watched = tuple[PeerProcess, queue.SimpleQueue[str], queue.SimpleQueue[int]]


@contextmanager
def watched(log: Path, *command: str, environment: Mapping[str, str] = os.environ) -> Iterator[Watched]:
    """A peer, the lines that it prints, and its exit code; at last it is gone, with all that it started."""
    lines, ends = queue.SimpleQueue[str](), queue.SimpleQueue[int]()
    process = start(list(command), environment=environment)
    process.watch(LogFile(log, clock=time.time), lines.put, ends.put)
    try:
        yield process, lines, ends
    finally:
        process.send_signal(signal.SIGKILL)
        process.child.wait(DEADLINE_S)


def drained(lines: queue.SimpleQueue[str]) -> list[str]:
    return [lines.get() for _ in range(lines.qsize())]


def ended(pid: int) -> bool:
    """Whether a process ends within the deadline, ours or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    readable, _, _ = select.select([descriptor], [], [], DEADLINE_S)
    os.close(descriptor)
    return bool(readable)


# ---- share of the host ----------------------------------------------------------------------------------------------


def test_peers_share_the_cores_and_always_have_two_threads_between_ops() -> None:
    cores = len(psutil.Process().cpu_affinity())
    alone = peer_environment({}, slot=0, peers=1, gpus=0)
    crowded = peer_environment({}, slot=0, peers=1000, gpus=0)
    assert alone["OMP_NUM_THREADS"] == alone["TF_NUM_INTRAOP_THREADS"] == str(cores)
    assert (crowded["OMP_NUM_THREADS"], crowded["TF_NUM_INTEROP_THREADS"]) == ("1", "2")


def test_a_job_has_one_number_of_threads_unless_the_user_says_otherwise() -> None:
    share = peer_environment({}, slot=0, peers=1000, gpus=0, threads=3)
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    assert [share[name] for name in names] == ["3", "3", "3"]
    own = peer_environment({"TF_NUM_INTRAOP_THREADS": "7"}, slot=0, peers=1, gpus=0, threads=3)
    assert [own[name] for name in names] == ["3", "7", "3"]
    assert threads_per_peer(1000) == 1


def test_what_the_user_set_stays() -> None:
    own = {"OMP_NUM_THREADS": "9", "TF_FORCE_GPU_ALLOW_GROWTH": "false", "CUDA_VISIBLE_DEVICES": "", "HOME": "/tmp"}
    share = peer_environment(own, slot=1, peers=2, gpus=4)
    assert own.items() <= share.items()
    assert share["TF_NUM_INTRAOP_THREADS"] == peer_environment({}, slot=1, peers=2, gpus=4)["TF_NUM_INTRAOP_THREADS"]


# ---- output and ends ------------------------------------------------------------------------------------------------


def test_output_goes_to_the_log_the_listener_and_the_tail_and_the_end_comes_after_it(tmp_path: Path) -> None:
    program = "import sys; print('one'); print('two', file=sys.stderr, flush=True); print('\\xff-ü'); sys.exit(7)"
    with watched(tmp_path / "peers" / "peer-0.log", *PYTHON, program) as (process, lines, ends):
        assert ends.get(timeout=DEADLINE_S) == 7
    said = drained(lines)
    assert sorted(said) == ["one", "two", "ÿ-ü"]
    assert list(process.tail) == said
    assert (tmp_path / "peers" / "peer-0.log").read_text().splitlines() == said


def test_bytes_that_are_no_text_do_not_stop_the_listener(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\nafter\\n')"
    with watched(tmp_path / "log", *PYTHON, program) as (_, lines, ends):
        assert ends.get(timeout=DEADLINE_S) == 0
    assert drained(lines) == ["\N{REPLACEMENT CHARACTER}" * 2, "after"]
    assert (tmp_path / "log").read_bytes() == b"\xff\xfe\nafter\n"


def test_the_tail_holds_the_last_lines_and_the_log_all_of_them(tmp_path: Path) -> None:
    with watched(tmp_path / "log", *PYTHON, "for number in range(500): print(number)") as (process, _, ends):
        assert ends.get(timeout=DEADLINE_S) == 0
    assert list(process.tail) == [str(number) for number in range(500 - TAIL_LINES, 500)]
    assert len((tmp_path / "log").read_text().splitlines()) == 500


def test_the_environment_is_the_one_that_was_given_and_there_is_no_input(tmp_path: Path) -> None:
    program = "import os, sys; print(sorted(set(os.environ) - {'LC_CTYPE'}), repr(sys.stdin.read()))"
    with watched(tmp_path / "log", *PYTHON, program, environment={"KEY": "value"}) as (_, lines, ends):
        assert ends.get(timeout=DEADLINE_S) == 0
    assert drained(lines) == ["['KEY'] ''"]


_SEMAPHORE = """
import multiprocessing, time
semaphore = multiprocessing.get_context("spawn").Semaphore()
print("sem." + semaphore._semlock.name[1:], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, 0], ids=["killed", "with all that it started"])
def test_a_killed_peer_leaves_no_named_semaphore(tmp_path: Path, number: int) -> None:
    with watched(tmp_path / "log", *PYTHON, _SEMAPHORE) as (process, lines, _):
        name = Path("/dev/shm", lines.get(timeout=DEADLINE_S))
        assert name.exists()
        process.send_signal(number)
        process.child.wait(DEADLINE_S)
        assert not name.exists()


@pytest.mark.slow  # the agent gives the output a second to end by itself
def test_the_end_of_a_peer_is_seen_though_a_child_of_it_holds_the_output_open(tmp_path: Path) -> None:
    program = """if True:
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        print(child.pid, flush=True)
    """
    with watched(tmp_path / "log", *PYTHON, program) as (_, lines, ends):
        left_behind = int(lines.get(timeout=DEADLINE_S))
        try:
            assert ends.get(timeout=DEADLINE_S) == 0
            assert psutil.pid_exists(left_behind)
        finally:
            os.kill(left_behind, signal.SIGKILL)
        assert ended(left_behind)


NOTICED = "import kungfu.runtime.preemption as n; n.on_preemption_signal(lambda: None); "
IGNORING = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WAITING = "import signal; print('up', flush=True)\nwhile True: signal.pause()"


@pytest.mark.parametrize(
    ("programs", "grace_s", "codes", "seconds"),
    [
        ([WAITING, WAITING], 120.0, [-15, -15], (0.0, 100.0)),
        ([NOTICED + WAITING, WAITING], 120.0, [143, -15], (0.2, 100.0)),
        ([IGNORING + WAITING, WAITING], 1.2, [-9, -15], (1.2, 100.0)),
    ],
    ids=["at-once", "noticed", "forced"],
)
def test_all_are_ended_some_at_the_second_request_and_some_by_force(
    tmp_path: Path, programs: list[str], grace_s: float, codes: list[int], seconds: tuple[float, float]
) -> None:
    with ExitStack() as stack:
        peers = []
        for program in programs:
            process, lines, _ = stack.enter_context(watched(tmp_path / str(len(peers)), *PYTHON, program))
            assert lines.get(timeout=DEADLINE_S) == "up"
            peers.append(process)
        began = time.monotonic()
        terminate_all(peers, grace_s=grace_s)
        assert seconds[0] <= time.monotonic() - began < seconds[1]
        assert [peer.child.returncode for peer in peers] == codes


# Starts a child that leaves its session, and says its number.
LEAVING_SESSION = """if True:
    import os, signal, subprocess, sys
    waiting = "import os, signal; os.setsid(); signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True)"
    child = subprocess.Popen([sys.executable, "-S", "-c", waiting + "; signal.pause()"])
"""


def test_all_that_a_peer_started_ends_with_a_killed_agent(tmp_path: Path) -> None:
    """All that a peer started ends with a killed agent, in whatever session it is, and so do its files."""
    agent = """if True:
        import os, sys
        from kungfu.runtime.agent.supervisor.launch import start

        peer = [sys.executable, "-S", "-c", sys.argv[1] + "    signal.pause()"]
        process = start(peer, environment=dict(os.environ), folder=sys.argv[2])
        child = int(process.child.stdout.readline())
        print(process.pid, process.child.pid, child, flush=True)
        process.child.wait()
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    (folder / "__autograph_generated_file.py").touch()
    line = [sys.executable, "-c", agent, LEAVING_SESSION, str(folder)]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        numbers = [int(word) for word in parent.stdout.readline().split()]
        assert len(numbers) == 3
        assert all(psutil.pid_exists(number) for number in numbers)
        parent.send_signal(signal.SIGKILL)
        parent.wait(DEADLINE_S)
    assert all(ended(number) for number in numbers)
    assert not folder.exists()


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_a_process_that_left_the_session_of_a_peer_ends_with_it(tmp_path: Path, how: str) -> None:
    """A process that has left the session of a peer ends with it if the peer is killed, or reaped after its end."""
    last = "    signal.pause()" if how == "killed" else "    sys.exit(3)"
    with watched(tmp_path / "log", *PYTHON, LEAVING_SESSION + last) as (process, lines, ends):
        child = int(lines.get(timeout=DEADLINE_S))
        if how == "killed":
            process.send_signal(signal.SIGKILL)
        assert ends.get(timeout=DEADLINE_S) == (-9 if how == "killed" else 3)
        if how == "fails":
            assert psutil.pid_exists(child)
            kill_and_reap(process)
        assert ended(child)


def test_a_peer_that_has_ended_leaves_no_zombie_and_to_end_it_again_does_nothing(tmp_path: Path) -> None:
    with watched(tmp_path / "log", *PYTHON, "pass") as (process, _, ends):
        assert ends.get(timeout=DEADLINE_S) == 0
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
        assert ended(process.child.pid)
        reaped = "the thread that waits for the process to reap it"
        awaited(lambda: not psutil.pid_exists(process.child.pid), what=reaped, deadline_s=DEADLINE_S)
        assert not psutil.pid_exists(process.pid)
        assert process.child.wait(DEADLINE_S) == 0
        process.send_signal(signal.SIGKILL)


def test_a_peer_does_not_outlive_its_parent(tmp_path: Path) -> None:
    with watched(tmp_path / "log", *PYTHON, WAITING) as (process, lines, ends):
        assert lines.get(timeout=DEADLINE_S) == "up"
        process.child.kill()
        assert ends.get(timeout=DEADLINE_S) == -signal.SIGKILL
        assert ended(process.pid)


def test_sigterm_to_every_process_of_a_host_is_the_peers_own_affair(tmp_path: Path) -> None:
    program = """if True:
        import os, signal
        def tell(word):  # not by print: a signal may come within it
            os.write(1, f"{word}\\n".encode())
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: tell(signal.Signals(number).name))
        tell("up")
        while True:
            signal.pause()
    """
    with watched(tmp_path / "log", *PYTHON, program) as (process, lines, ends):
        assert lines.get(timeout=DEADLINE_S) == "up"
        process.child.send_signal(signal.SIGTERM)  # as Slurm and systemd do it, with all of a job's processes
        os.kill(process.pid, signal.SIGTERM)
        assert lines.get(timeout=DEADLINE_S) == "SIGTERM"
        process.send_signal(signal.SIGUSR1)
        assert lines.get(timeout=DEADLINE_S) == "SIGUSR1"
        assert ends.empty()


def test_a_peer_whose_agent_died_before_it_came_up_gives_up(tmp_path: Path) -> None:
    from kungfu.runtime.agent.supervisor import subreaper

    ours, theirs = socket.socketpair()
    ours.close()  # as the agent's end is when the agent has died
    line = str(theirs.fileno())
    command = [sys.executable, "-S", "-E", subreaper.__file__, line, "", sys.executable, "-c", "print('ran')"]
    with theirs:
        finished = subprocess.run(
            command, capture_output=True, timeout=DEADLINE_S, check=False, pass_fds=[theirs.fileno()]
        )
    assert (finished.returncode, finished.stdout) == (1, b"")


@pytest.mark.parametrize("command", ["no-such-program", "/no/such/program"])
def test_a_command_that_cannot_be_run_is_an_end_with_an_error(command: str, tmp_path: Path) -> None:
    with watched(tmp_path / "log", command) as (process, _, ends):
        assert ends.get(timeout=DEADLINE_S) == 1
    assert process.tail[-1].startswith("FileNotFoundError")
