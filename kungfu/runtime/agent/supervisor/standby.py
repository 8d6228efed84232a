"""Interpreters on standby: started before they are needed, with TensorFlow and Keras loaded, for peers that join.

Loading TensorFlow and Keras is the longest part of a peer's start. A standby process is the user's command under
``script_runner``, which loads both, reports this, and waits. When a peer starts on this host, the process receives the
peer's environment, runs the script in this environment, and becomes that peer.

A standby process loads in the environment that a peer of this host would have. If the peer's environment differs in
more than its settings and its device, which are read later, a new process is started instead.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kungfu.runtime.agent.supervisor.launch import PeerProcess, start
from kungfu.runtime.agent.supervisor.script_runner import LOADED, STANDBY_KEY, guarded
from kungfu.runtime.settings import ENVIRONMENT_KEY

_READ_LATER = {STANDBY_KEY, ENVIRONMENT_KEY, "CUDA_VISIBLE_DEVICES"}


def can_stand_by(command: Sequence[str]) -> bool:
    """True if a command runs a Python script or module: then its interpreter can be started in advance.

    >>> can_stand_by(["python", "train.py"]), can_stand_by(["bash", "run.sh"])
    (True, False)
    """
    return guarded(command) != list(command)


@dataclass
class _Standby:
    """A standby process.

    Args:
        process: The process; its output is not read yet.
        line: The socket to the process's standard input. The process sends ``LOADED``, and gets its peer's environment.
        environment: The environment in which the process loads.
        has_loaded: True if the process has loaded and waits.
    """

    process: PeerProcess
    line: socket.socket
    environment: Mapping[str, str]
    has_loaded: bool = False

    def look(self) -> None:
        """Sets ``has_loaded`` if the process has sent ``LOADED``; does not wait."""
        with suppress(OSError):
            self.has_loaded = self.has_loaded or self.line.recv(1) == LOADED

    def end(self) -> None:
        self.line.close()
        self.process.discard()


class StandbyPool:
    """The standby processes of one host. Only the agent's main thread may use the pool.

    Args:
        command: The user's program.
        size: The initial value of the attribute ``size``; 0 for no standby processes.

    Attributes:
        size: The number of processes that should be waiting; 0 after a process has failed to load.
        failure: The reason why a process failed to load; empty if none has failed.
    """

    def __init__(self, command: Sequence[str], *, size: int) -> None:
        self._command, self.size = list(command), size
        self._waiting: list[_Standby] = []
        self.failure = ""

    @property
    def is_loading(self) -> bool:
        """True if a process is still loading; loading takes processor time."""
        return self.ready < len(self._waiting)

    @property
    def ready(self) -> int:
        """The number of processes that have loaded and wait."""
        for one in self._waiting:
            one.look()
        return sum(one.has_loaded for one in self._waiting)

    def is_short(self) -> bool:
        """Removes ended processes; returns True if a process should be started. If a process has ended during loading,
        the next process would end too, so ``failure`` is set and no more processes are started."""
        loading = self.is_loading
        ended = [one for one in self._waiting if one.process.has_exited()]
        for one in ended:
            self._waiting.remove(one)
            code = one.process.child.wait()
            if not one.has_loaded:
                self.size = 0
                self.failure = f"a process on standby ended with exit code {code} while it loaded it"
            one.end()
        return not loading and len(self._waiting) < self.size

    def add(self, environment: Mapping[str, str], *, folder: str) -> None:
        """Starts a standby process in the environment of a peer of this host; ``folder`` is for temporary files."""
        line, theirs = socket.socketpair()
        line.setblocking(False)
        with theirs:
            own = {**environment, STANDBY_KEY: "1"}
            process = start(self._command, environment=own, folder=folder, stdin=theirs.fileno())
        self._waiting.append(_Standby(process, line, dict(environment)))

    def claim(self, environment: Mapping[str, str]) -> PeerProcess | None:
        """Turns a standby process into a peer with this environment; ``None`` if no process is suitable."""
        for one in sorted(self._waiting, key=lambda one: not one.has_loaded):
            self._waiting.remove(one)
            if (
                _same(one.environment, environment)
                and not one.process.has_exited()
                and _send_environment(one.line, environment)
            ):
                return one.process
            one.end()
        return None

    def close(self) -> None:
        """Ends all standby processes."""
        while self._waiting:
            self._waiting.pop().end()


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """True if two environments differ only in variables that are read after TensorFlow and Keras were loaded."""
    return all(one.get(name) == other.get(name) for name in (one.keys() | other.keys()) - _READ_LATER)


def _send_environment(line: socket.socket, environment: Mapping[str, str]) -> bool:
    """Sends a process its environment and closes the socket; returns True on success."""
    try:
        with line:
            line.setblocking(True)
            line.sendall(json.dumps(dict(environment)).encode())
    except OSError:  # the process has just ended
        return False
    return True
