"""A low-priority process that follows a job's record: the writer for TensorBoard, or the server of the page.

The job waits for the process only briefly, when the job ends. The process ends when its standard input closes, and
therefore also when kungfu-run ends for any reason. The lines that the process prints are remarks for the user.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import kungfu
from kungfu.errors import KungfuError

# Training must not wait for a processor that draws curves.
_NICENESS = 10
# The folder of this installation.
_INSTALLED = str(Path(kungfu.__file__).parents[1])


class SideProcess:
    """Runs a side process while the job runs; a context manager.

    Args:
        name: The prefix of the process's remarks.
        subject: The name of the process's output, for the message that the output stops as the process ended early.
        end_within_s: Seconds that the process may take after the end of the job.
        report: Called with remarks for the user, from another thread.
        late: The remark if the process takes longer than ``end_within_s``; empty for none.
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], *, subject: str, end_within_s: float,
        report: Callable[[str], None], late: str = "",
    ) -> None:  # fmt: skip
        self._name, self._command, self._subject = name, (module, *arguments), subject
        self._end_within_s, self._late, self._report = end_within_s, late, report
        self._process: subprocess.Popen[str] | None = None
        self._is_late, self._until = False, 0.0
        self._listener = threading.Thread(target=self._listen, name=f"kungfu-{name}", daemon=True)

    def __enter__(self) -> SideProcess:
        # The module is loaded from this installation, whatever directory the job is started in.
        path = os.pathsep.join(filter(None, [_INSTALLED, os.environ.get("PYTHONPATH", "")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", *self._command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                env={**os.environ, "PYTHONPATH": path}, process_group=0,
            )  # fmt: skip
        # No memory or no process is left: the job has priority.
        except OSError as error:
            self._report(f"{self._name}: no process could be started ({error.strerror}); training continues without")
            return self
        self._listener.start()
        return self

    def tell_end(self) -> None:
        """Tells the process that the job is over, without waiting for it; its time to end begins."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.closed:
            self._until = time.monotonic() + self._end_within_s
            self._process.stdin.close()

    def __exit__(self, *error: object) -> None:
        self.tell_end()
        process = self._process
        if process is None:
            return
        try:
            process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._is_late = True
            process.kill()
            process.wait()
            if self._late:
                self._report(f"{self._name}: {self._late}")
        self._listener.join(1.0)
        assert process.stdout is not None
        process.stdout.close()

    def _listen(self) -> None:
        """Passes on the remarks of the process; reports a failure with the last printed line."""
        assert self._process is not None
        assert self._process.stdout is not None
        last = ""
        for line in self._process.stdout:
            last = line.strip() or last
            if not line.startswith((" ", "Traceback")):
                self._report(f"{self._name}: {line.strip()}")
        if self._process.wait() != 0 and not self._is_late:
            why = last or "its process was killed"
            self._report(f"{self._name}: {self._subject} ends here ({why}); training continues")


def begin_beside() -> None:
    """Lowers the priority of this process, and ignores signals; the process ends when its standard input closes.

    Signals for the whole process group are meant for kungfu-run: the job decides when this process ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler, since programs that this process starts would inherit that a signal is ignored.
        signal.signal(number, lambda number, frame: None)
    os.nice(_NICENESS)


def job_ends(timeout_s: float) -> bool:
    """Waits up to ``timeout_s`` seconds for the end of standard input, which carries no data; True at the end."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    return bool(ready) and not os.read(0, 4096)


def outer_environment() -> dict[str, str]:
    """The environment of kungfu-run, without the folder that `SideProcess` has put before its Python path."""
    path = os.environ.get("PYTHONPATH", "").removeprefix(_INSTALLED).removeprefix(os.pathsep)
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            **({"PYTHONPATH": path} if path else {})}  # fmt: skip


def run_beside(work: Callable[[Callable[[str], None]], object]) -> int:
    """Runs the work of a side process, which is called with a function for remarks; returns the exit code."""
    begin_beside()
    remarks = sys.stdout

    def report(text: str) -> None:
        print(text, file=remarks, flush=True)

    try:
        work(report)
    except KungfuError as error:
        report(str(error))
        return 1
    return 0
