"""Processes of this host: started with their share of it, listened to line by line, ended by their id."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

import psutil

from kungfu.runtime.agent.supervisor import subreaper
from kungfu.runtime.agent.supervisor.fit_guard import guarded
from kungfu.runtime.agent.supervisor.slots import device_for_slot, devices_of

__all__ = ["Log", "Process", "end", "kill_and_reap", "peer_environment", "start", "terminate_all", "threads_per_peer"]

TAIL_LINES = 60

# To a peer that trains the first SIGTERM is a notice, and the second ends it. A third one for a machine so busy that it
# delivered two as one; no more, for a program that handles the signal itself gets them all.
_ASKED_AT_S = (0.0, 0.2, 1.0)
_LOOK_S = 0.02
_PARENT_S = 5.0
_END = 0


class Log(Protocol):
    """Takes what a peer prints; it never raises ``OSError``, so that a full disk ends no peer."""

    def write(self, data: bytes) -> object:
        """A line."""

    def close(self) -> None:
        """The peer prints nothing any more."""


class Process:
    """A running peer, under a parent of its own (see ``shim``) that this one talks to over a socket.

    ``pid`` is the peer's own process id. ``tail`` holds its last lines of output, which also go to ``log`` and to
    ``on_line``.
    """

    def __init__(self, child: subprocess.Popen[bytes], line: socket.socket, log: Log) -> None:
        self.child, self.log, self._line = child, log, line
        self._said, self._over = line.makefile("rb"), threading.Event()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.pid = int(self._said.readline() or child.pid)

    def listen(self, on_line: Callable[[str], None], on_end: Callable[[int], None]) -> None:
        """Reads the output in a thread; another one says with which code the process ended, and when it did.

        A child of the peer may hold the output open after the peer is gone: its end is not taken for the peer's.
        """
        reader = threading.Thread(target=self._read, args=(on_line,), daemon=True, name="kungfu-output")
        reader.start()

        def wait() -> None:
            code = self._exit_code()
            self._over.set()
            reader.join(timeout=1.0)
            on_end(code)
            self.child.wait()  # until nothing is left that the peer started
            self.hang_up()

        threading.Thread(target=wait, daemon=True, name="kungfu-wait").start()

    def ended(self) -> bool:
        """Whether the peer has ended; what it started may go on."""
        return self._over.is_set() or self.child.poll() is not None

    def order(self, number: int) -> None:
        """Has the peer's parent send this signal to the peer and its group; at 0 it ends all that is left."""
        with suppress(OSError):  # it has ended
            self._line.send(bytes([number]))

    def hang_up(self) -> None:
        """Closes the socket to the peer's parent, which has ended."""
        self._said.close()
        self._line.close()

    def _exit_code(self) -> int:
        with suppress(OSError):
            if text := self._said.readline():
                return int(text)
        return -signal.SIGKILL  # somebody killed its parent, and the kernel the peer with it

    def _read(self, on_line: Callable[[str], None]) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as output, closing(self.log):
            self.log.write(b"")  # a peer that prints nothing has a log too
            for raw in output:
                self.log.write(raw)
                line = raw.decode(errors="replace").rstrip("\r\n")
                self.tail.append(line)
                on_line(line)


def start(command: list[str], *, environment: Mapping[str, str], log: Log, folder: str = "") -> Process:
    """Starts one peer in a session of its own, so that a key press in the terminal reaches only the agent.

    It ends with this process, and so does all that it started. ``folder``, of its temporary files, is removed then.
    """
    line, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-S", "-E", subreaper.__file__, str(theirs.fileno()), folder, *guarded(command)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
    return Process(child, line, log)


def end(process: Process, how: signal.Signals) -> None:
    """Sends a signal to the peer and to what it started; SIGKILL ends what left its group too."""
    process.order(how)


def kill_and_reap(process: Process) -> None:
    """Ends a peer that may still run, and all that it left behind, whatever session it is in."""
    process.order(_END)
    try:
        process.child.wait(_PARENT_S)
    except subprocess.TimeoutExpired:  # its parent was stopped, say: the peer at least goes with it
        process.child.kill()
        process.child.wait()


def terminate_all(processes: Sequence[Process], *, grace_s: float) -> None:
    """Ends every process by its id, and what it started: asked to at once and again, forced after ``grace_s``."""
    started = time.monotonic()
    for asked_at_s in _ASKED_AT_S:
        _await_ends(processes, until=started + asked_at_s)
        for process in processes:
            end(process, signal.SIGTERM)
    _await_ends(processes, until=started + grace_s)
    for process in processes:
        kill_and_reap(process)


def _await_ends(processes: Sequence[Process], *, until: float) -> None:
    while time.monotonic() < until and not all(process.ended() for process in processes):
        time.sleep(_LOOK_S)


def threads_per_peer(peers: int) -> int:
    """The threads that each of so many peers would have of this host's cores, at least 1."""
    return max(1, len(psutil.Process().cpu_affinity() or [0]) // max(1, peers))


def peer_environment(
    environment: Mapping[str, str], *, place: int, peers: int, gpus: int, threads: int = 0
) -> dict[str, str]:
    """CPU threads and the GPU of the peer at ``place`` (0, 1, ...) of ``peers`` on this host.

    ``threads`` is the number that all peers of the job have, 0 for this host's share: in an op that adds up, another
    number of them rounds in another way.
    What the user set stays, but of the devices that it names each peer gets one; see ``devices_of``. TensorFlow gets at
    least two threads between ops: with one, a barrier would wait for ever for the thread that it holds.

    >>> share = peer_environment({"OMP_NUM_THREADS": "7"}, place=1, peers=2, gpus=4)
    >>> share["OMP_NUM_THREADS"], share["CUDA_VISIBLE_DEVICES"]
    ('7', '1')
    """
    threads = threads or threads_per_peer(peers)
    share = {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    devices = devices_of(environment, gpus=gpus)
    if not devices:  # nothing is said of them, or what the user says: none
        return {**share, **environment}
    if len(devices) < peers:  # TensorFlow would take all the memory of a device for the first one
        share["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return {**share, **environment, "CUDA_VISIBLE_DEVICES": device_for_slot(place, devices)}


def count_gpus() -> int:
    """The GPUs that this host's driver shows; 0 without one."""
    return sum(1 for entry in Path("/proc/driver/nvidia/gpus").glob("*"))
