"""Processes of this host: started with their share of it, listened to line by line, ended by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import psutil

from kungfu.runtime.agent.processes import shim
from kungfu.runtime.agent.processes.seats import device_of, devices_of

__all__ = ["Log", "Process", "bury", "end", "end_all", "share_of_host", "start", "threads_each"]

TAIL_LINES = 60

# To a peer that trains the first SIGTERM is a notice, and the second ends it. A third one for a machine so busy that it
# delivered two as one; no more, for a program that handles the signal itself gets them all.
_ASKED_AT_S = (0.0, 0.2, 1.0)
_LOOK_S = 0.02


class Log(Protocol):
    """Takes what a peer prints; it never raises ``OSError``, so that a full disk ends no peer."""

    def write(self, data: bytes) -> object:
        """A line."""

    def close(self) -> None:
        """The peer prints nothing any more."""


class Process:
    """A running peer. ``tail`` holds its last lines of output, which also go to ``log`` and to ``on_line``."""

    def __init__(self, child: subprocess.Popen[bytes], log: Log) -> None:
        self.child, self.log = child, log
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def listen(self, on_line: Callable[[str], None], on_end: Callable[[int], None]) -> None:
        """Reads the output in a thread; another one says with which code the process ended, and when it did.

        A child of the peer may hold the output open after the peer is gone: its end is not taken for the peer's.
        """
        reader = threading.Thread(target=self._read, args=(on_line,), daemon=True, name="kungfu-output")
        reader.start()

        def wait() -> None:
            code = self._exit_code()
            reader.join(timeout=1.0)
            on_end(code)

        threading.Thread(target=wait, daemon=True, name="kungfu-wait").start()

    def ended(self) -> bool:
        """Whether the peer has ended, seen without reaping it: until then nobody else can get its number."""
        if self.child.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # another thread has just reaped it

    def _exit_code(self) -> int:
        try:
            result = os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return self.child.wait()  # reaped meanwhile: its code is known
        assert result is not None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def _read(self, on_line: Callable[[str], None]) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as output, closing(self.log):
            self.log.write(b"")  # a peer that prints nothing has a log too
            for raw in output:
                self.log.write(raw)
                line = raw.decode(errors="replace").rstrip("\r\n")
                self.tail.append(line)
                on_line(line)


def start(command: list[str], *, environment: Mapping[str, str], log: Log) -> Process:
    """Starts one peer in a session of its own, so that a key press in the terminal reaches only the agent.

    Call it from the agent's main thread: the kernel ties the child's life to the thread that made it.
    """
    child = subprocess.Popen(
        [sys.executable, "-S", "-E", shim.__file__, str(os.getpid()), *command],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Process(child, log)


def end(process: Process, how: signal.Signals) -> None:
    """Sends a signal to the peer and to what it started, also when the peer itself has ended but is not reaped yet."""
    if process.child.returncode is None:
        try:
            os.killpg(process.child.pid, how)
        except ProcessLookupError:
            return  # nobody is left


def bury(process: Process) -> None:
    """Ends what a peer that has failed left behind, and forgets its number: a long job may lose many."""
    end(process, signal.SIGKILL)
    process.child.wait()


def end_all(processes: Sequence[Process], *, grace_s: float) -> None:
    """Ends every process by its id, and what it started: asked to at once and again, forced after ``grace_s``."""
    started = time.monotonic()
    for asked_at_s in _ASKED_AT_S:
        _await_ends(processes, until=started + asked_at_s)
        for process in processes:
            end(process, signal.SIGTERM)
    _await_ends(processes, until=started + grace_s)
    for process in processes:
        bury(process)


def _await_ends(processes: Sequence[Process], *, until: float) -> None:
    while time.monotonic() < until and not all(process.ended() for process in processes):
        time.sleep(_LOOK_S)


def threads_each(peers: int) -> int:
    """The threads that each of so many peers would have of this host's cores, at least 1."""
    return max(1, len(psutil.Process().cpu_affinity() or [0]) // max(1, peers))


def share_of_host(
    environment: Mapping[str, str], *, place: int, peers: int, gpus: int, threads: int = 0
) -> dict[str, str]:
    """CPU threads and the GPU of the peer at ``place`` (0, 1, ...) of ``peers`` on this host.

    ``threads`` is the number that all peers of the job have, 0 for this host's share: in an op that adds up, another
    number of them rounds in another way.
    What the user set stays, but of the devices that it names each peer gets one; see ``devices_of``. TensorFlow gets at
    least two threads between ops: with one, a barrier would wait for ever for the thread that it holds.

    >>> share = share_of_host({"OMP_NUM_THREADS": "7"}, place=1, peers=2, gpus=4)
    >>> share["OMP_NUM_THREADS"], share["CUDA_VISIBLE_DEVICES"]
    ('7', '1')
    """
    threads = threads or threads_each(peers)
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
    return {**share, **environment, "CUDA_VISIBLE_DEVICES": device_of(place, devices)}


def count_gpus() -> int:
    """The GPUs that this host's driver shows; 0 without one."""
    return sum(1 for entry in Path("/proc/driver/nvidia/gpus").glob("*"))
