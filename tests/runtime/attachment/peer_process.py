"""A process that a test drives: a command a line on its standard input, a JSON answer a line on its output."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lean_start import environment

DEADLINE_S = 300.0  # against a hang only: the processes share the machine with whatever else runs


class PeerProcess:
    """A process that runs ``program``; it does not find the libraries ``without``, which it does not need."""

    def __init__(self, program: Path, *words: str, without: tuple[str, ...] = ("keras",), threads: int = 1) -> None:
        self.words = words
        settings = environment(*without) | {"TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": "2"}
        pipe, command = subprocess.PIPE, [sys.executable, str(program), *words]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=settings)

    def tell(self, do: str, **arguments: Any) -> None:
        print(json.dumps({"do": do, **arguments}), file=self.process.stdin, flush=True)

    def hear(self) -> Any:
        """The next answer. A test hears each one before it causes another: no line waits in this process."""
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert ready, f"process {self.process.pid} has not answered for {DEADLINE_S} s"
        line = self.process.stdout.readline()
        assert line, f"the process ended with exit code {self.process.wait()}"
        return json.loads(line)

    def end(self) -> int:
        """Its exit code; it has done all that it was told."""
        self.process.stdin.close()
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.kill()
        with self.process:  # waits for it, and closes its streams
            pass


def serve(act: Callable[..., Any]) -> None:
    """In such a process: answers each command with what ``act`` returns for it."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Horovod writes its log to standard output
    for line in sys.stdin:
        print(json.dumps(act(**json.loads(line))), file=answers)
