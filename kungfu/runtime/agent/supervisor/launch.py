"""Starts a peer with its share of the host, reads its output line by line, and ends it with all its descendants."""

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
from kungfu.runtime.agent.supervisor.script_runner import guarded
from kungfu.runtime.agent.supervisor.slots import device_for_slot, devices_of

TAIL_LINES = 60

# For a peer that trains, the first SIGTERM is a preemption notice, and the second ends the peer. The third is in
# case a busy machine merges two signals. No more are sent, since a program with a handler for SIGTERM gets all of them.
_SIGTERM_AT_S = (0.0, 0.2, 1.0)
_LOOK_S = 0.02
_REAPED_WITHIN_S = 5.0
_KILL_ALL = 0  # to the subreaper: kill all remaining processes


class OutputLog(Protocol):
    """Receives the output of a peer; never raises ``OSError``, so that a full disk does not end a peer."""

    def write(self, data: bytes) -> object:
        """Writes a line of the peer's output."""

    def close(self) -> None:
        """Closes the log, because the output of the peer has ended."""


class PeerProcess:
    """A running peer under a dedicated parent process: see ``subreaper``.

    Args:
        child: The parent process of the peer, which runs ``subreaper``.
        control: The socket to the subreaper: sends signals, receives the peer's process id and exit code.

    Attributes:
        pid: The process id of the peer itself.
        tail: The last lines of the peer's output.
    """

    def __init__(self, child: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.child, self._control = child, control
        self._replies, self._has_exited = control.makefile("rb"), threading.Event()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.pid = int(self._replies.readline() or child.pid)

    def watch(self, log: OutputLog, on_line: Callable[[str], None], on_exit: Callable[[int], None]) -> None:
        """Reads the peer's output in one thread, and waits for the peer's exit in another thread.

        The threads are separate because a child of the peer may hold the output open after the peer has exited.

        Args:
            log: Receives all output.
            on_line: Receives each line of output.
            on_exit: Receives the exit code (negative: the signal) when the peer has exited.
        """
        reader = threading.Thread(target=self._read, args=(log, on_line), daemon=True, name="kungfu-output")
        reader.start()

        def wait() -> None:
            code = self._exit_code()
            self._has_exited.set()
            reader.join(timeout=1.0)
            on_exit(code)
            self.child.wait()  # until no descendant of the peer is left
            self._close_socket()

        threading.Thread(target=wait, daemon=True, name="kungfu-wait").start()

    def has_exited(self) -> bool:
        """True if the peer has exited; processes that it started may still run."""
        return self._has_exited.is_set() or self.child.poll() is not None

    def send_signal(self, number: int) -> None:
        """Sends a signal to the peer and its process group; SIGKILL, or 0, also ends descendants outside the group."""
        with suppress(OSError):  # the subreaper has exited
            self._control.send(bytes([number]))

    def discard(self) -> None:
        """Ends a process for which `watch` was not called, and all descendants of the process."""
        kill_and_reap(self)
        if self.child.stdout is not None:
            self.child.stdout.close()
        self._close_socket()

    def _close_socket(self) -> None:
        self._replies.close()
        self._control.close()

    def _exit_code(self) -> int:
        with suppress(OSError):
            if text := self._replies.readline():
                return int(text)
        return -signal.SIGKILL  # the subreaper was killed, and the kernel killed the peer with it

    def _read(self, log: OutputLog, on_line: Callable[[str], None]) -> None:
        assert self.child.stdout is not None
        with self.child.stdout as output, closing(log):
            log.write(b"")  # a peer that prints nothing has a log too
            for raw in output:
                log.write(raw)
                line = raw.decode(errors="replace").rstrip("\r\n")
                self.tail.append(line)
                on_line(line)


def start(
    command: list[str], *, environment: Mapping[str, str], folder: str = "", stdin: int = subprocess.DEVNULL
) -> PeerProcess:
    """Starts a peer in a separate session, so that a key press in the terminal reaches only the agent.

    The peer and all its descendants end when this process ends.

    Args:
        command: The user's program.
        environment: All environment variables of the peer.
        folder: The folder of the peer's temporary files; removed if this process ends first.
        stdin: The descriptor of the peer's standard input.
    """
    control, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-S", "-E", subreaper.__file__, str(theirs.fileno()), folder, *guarded(command)],
            env=dict(environment),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
    return PeerProcess(child, control)


def kill_and_reap(process: PeerProcess) -> None:
    """Kills a peer and its descendants in all sessions, if they still run, and waits until all have ended."""
    process.send_signal(_KILL_ALL)
    try:
        process.child.wait(_REAPED_WITHIN_S)
    except subprocess.TimeoutExpired:  # for example, the subreaper is stopped: at least the peer ends with it
        process.child.kill()
        process.child.wait()


def terminate_all(processes: Sequence[PeerProcess], *, grace_s: float) -> None:
    """Ends these peers with all descendants: sends SIGTERM repeatedly, and SIGKILL after ``grace_s`` seconds."""
    started = time.monotonic()
    for asked_at_s in _SIGTERM_AT_S:
        _await_exits(processes, until=started + asked_at_s)
        for process in processes:
            process.send_signal(signal.SIGTERM)
    _await_exits(processes, until=started + grace_s)
    for process in processes:
        kill_and_reap(process)


def _await_exits(processes: Sequence[PeerProcess], *, until: float) -> None:
    while time.monotonic() < until and not all(process.has_exited() for process in processes):
        time.sleep(_LOOK_S)


def threads_per_peer(peers: int) -> int:
    """The threads of each peer if ``peers`` peers share this host's cores; at least 1."""
    return max(1, len(psutil.Process().cpu_affinity() or [0]) // max(1, peers))


def peer_environment(
    environment: Mapping[str, str], *, slot: int, peers: int, gpus: int, threads: int = 0
) -> dict[str, str]:
    """The environment of a peer: the user's variables, with the peer's share of the host's cores and its device.

    Variables set by the user remain unchanged, except that each peer gets only one of the devices that they list; see
    ``devices_of``. TensorFlow gets at least two inter-op threads, since a barrier would occupy the only thread and wait
    forever. TensorFlow allocates device memory only as needed, since slots may share a device, and a replacement starts
    while the replaced peer still runs.

    Args:
        environment: The user's variables.
        slot: The peer's slot on this host, from 0.
        peers: The number of slots of this host.
        gpus: The number of GPUs that the driver shows.
        threads: The intra-op threads of every peer of the job; 0 for this host's share. All peers must have the same
            number, because sums round differently with another number of threads.

    >>> share = peer_environment({"OMP_NUM_THREADS": "7"}, slot=1, peers=2, gpus=4)
    >>> share["OMP_NUM_THREADS"], share["CUDA_VISIBLE_DEVICES"]
    ('7', '1')
    """
    threads = threads or threads_per_peer(peers)
    share = {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    devices = devices_of(environment, gpus=gpus)
    if not devices:  # no devices are named, or the user chose none
        return {**share, **environment}
    return {**share, **environment, "CUDA_VISIBLE_DEVICES": device_for_slot(slot, devices)}


def count_gpus(root: Path = Path("/")) -> int:
    """The number of GPUs that this host's driver shows; 0, for example, without a driver or under WSL."""
    shown = root / "proc/driver/nvidia/gpus"
    # A container may hide the driver's folder but still have the devices.
    entries = shown.iterdir() if shown.is_dir() else (root / "dev").glob("nvidia[0-9]*")
    return sum(1 for entry in entries)
