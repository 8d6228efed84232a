"""A process that loads TensorFlow and Keras, the longest part of a peer's start, before it is known which peer it is.

The process is the user's command under ``script_runner``, which loads both packages, reports this, and waits. When the
job wants a peer, the process receives the peer's environment and runs the script in this environment. Only the
variables that TensorFlow reads while it loads must be set before; the settings and the device of the peer are not.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kungfu.runtime.agent.supervisor.launch import PeerProcess, start
from kungfu.runtime.agent.supervisor.script_runner import LOADED, LOADS_ONLY_KEY, guarded


def can_load_only(command: Sequence[str]) -> bool:
    """True if a command runs a Python script or module: then its interpreter can be started in advance.

    >>> can_load_only(["python", "train.py"]), can_load_only(["bash", "run.sh"])
    (True, False)
    """
    return guarded(command) != list(command)


@dataclass
class LoadedProcess:
    """A process that loads TensorFlow, or waits.

    Args:
        process: The process.
        line: The socket to the process's standard input. The process sends ``LOADED``, and gets its peer's environment.
        has_loaded: True if the process was found to wait.
    """

    process: PeerProcess
    line: socket.socket
    has_loaded: bool = False

    @classmethod
    def start(cls, command: Sequence[str], *, environment: Mapping[str, str], folder: str) -> LoadedProcess:
        """Starts a process in the environment of a peer of this host; ``folder`` is for temporary files."""
        line, theirs = socket.socketpair()
        line.setblocking(False)
        with theirs:
            own = {**environment, LOADS_ONLY_KEY: "1"}
            return cls(start(list(command), environment=own, folder=folder, stdin=theirs.fileno()), line)

    def has_newly_loaded(self) -> bool:
        """True if the process has reported since the last call that it waits; does not wait itself."""
        if self.has_loaded:
            return False
        with suppress(OSError):
            self.has_loaded = self.line.recv(1) == LOADED
        return self.has_loaded

    def run(self, environment: Mapping[str, str]) -> None:
        """Lets the process run its program in this environment; does nothing if the process has ended."""
        with suppress(OSError), self.line:
            self.line.setblocking(True)
            self.line.sendall(json.dumps(dict(environment)).encode())

    def close(self) -> None:
        """Closes the socket, upon which the process ends without running its program."""
        self.line.close()
