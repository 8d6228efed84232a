"""A process beside a job that follows its record, and is in nobody's way: TensorBoard's writer, or the page's server.

Nothing waits for it but the end of the job, and that not for long. It is told the end of the job by the end of its
standard input, so that it ends with kungfu-run however that ends; what it prints are remarks for people.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import kungfu

# Training is not to wait for a processor that draws curves.
_NICENESS = 10


class SideProcess:
    """One such process; a context, whose end is that of the job.

    Args:
        name: Stands before each of its remarks.
        module: Its module.
        arguments: Its arguments.
        subject: The function that stops if it ends before the job, in words.
        end_within_s: Seconds that it may take after the end of the job.
        tell: Takes remarks for people, from another thread.
        late: The message if it takes longer; empty for none.
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], *, subject: str, end_within_s: float,
        tell: Callable[[str], None], late: str = "",
    ) -> None:  # fmt: skip
        self._name, self._command, self._subject = name, (module, *arguments), subject
        self._end_within_s, self._late, self._tell = end_within_s, late, tell
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, name=f"kungfu-{name}", daemon=True)

    def __enter__(self) -> SideProcess:
        # Its module is this installation's, whatever the directory in which the user has started the job.
        path = os.pathsep.join(filter(None, [str(Path(kungfu.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", *self._command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**os.environ, "PYTHONPATH": path}, process_group=0,
            )  # fmt: skip
        # No memory or no process is left: the job matters more.
        except OSError as error:
            self._tell(f"{self._name}: no process could be started ({error.strerror}); training continues without")
            return self
        self._listener.start()
        return self

    def __exit__(self, *error: object) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(self._end_within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if self._late:
                self._tell(f"{self._name}: {self._late}")
        self._listener.join(1.0)
        assert process.stdout is not None
        process.stdout.close()

    def _listen(self) -> None:
        """Passes the remarks of the process on; one that ends by itself is told, with what it said last."""
        assert self._process is not None
        assert self._process.stdout is not None
        last = ""
        for line in self._process.stdout:
            last = line.strip() or last
            if not line.startswith((" ", "Traceback")):
                self._tell(f"{self._name}: {line.strip()}")
        if self._process.wait() != 0:
            why = last or "its process was killed"
            self._tell(f"{self._name}: {self._subject} ends here ({why}); training continues")


# ---- inside the process ----------------------------------------------------------------------------------------------


def begin_beside() -> None:
    """Makes this process one that is in nobody's way; it ends when its standard input does, and not by a signal.

    Signals for the whole process group are for kungfu-run: the job decides when it ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)


def job_ends(timeout_s: float) -> bool:
    """Waits up to so long for the end of the standard input; the agent holds its other end, and writes nothing."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    return bool(ready) and not os.read(0, 4096)
