"""Jobs of any system as processes: starts them, reads their stamps, waits with a deadline, ends them by id."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.elasticity.stamps import Stamp, read_stamps

__all__ = ["Job", "awaited", "started"]

ROOT = Path(__file__).parents[2]
LOOK_S, GRACE_S = 0.25, 5.0
ONE_THREAD_EACH = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONPATH": str(ROOT),
}


@dataclass(frozen=True)
class Job:
    """A running job, or one host of a job; the workers write their stamps to ``stamped``."""

    process: subprocess.Popen[bytes]
    folder: Path
    console: Path
    stamped: Path

    def stamps(self) -> dict[int, list[Stamp]]:
        """The stamps so far, by process."""
        return read_stamps(self.stamped)

    def until(self, seen: Callable[[dict[int, list[Stamp]]], object], *, what: str, deadline_s: float) -> None:
        """Waits until ``seen`` is true of the stamps; exits if the job ends earlier, or the deadline passes."""

        def look() -> object:
            if self.process.poll() is not None:
                raise SystemExit(f"the job ended before {what}; its last words:\n{self._last_words()}")
            return seen(self.stamps())

        awaited(look, what=f"{what} (see {self.console})", deadline_s=deadline_s)

    def steps_at(self, size: int, *, count: int, deadline_s: float) -> None:
        """Waits until ``size`` workers have each done their last ``count`` steps at this size."""

        def seen(workers: dict[int, list[Stamp]]) -> bool:
            tails = [stamps[-count:] for stamps in workers.values()]
            return sum(len(tail) == count and all(one.size == size for one in tail) for tail in tails) >= size

        self.until(seen, what=f"{count} steps with {size} workers", deadline_s=deadline_s)

    def has_ended(self) -> bool:
        """True if the job has ended by itself; exits the benchmark if the job failed."""
        code = self.process.poll()
        if code:
            raise SystemExit(f"the job ended with exit code {code}; its last words:\n{self._last_words()}")
        return code is not None

    def _last_words(self) -> str:
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-40:])


@contextmanager
def started(
    launcher: Callable[[Path], Sequence[object]],
    *,
    program: str,
    options: Mapping[str, object],
    beside: Job | None = None,
) -> Iterator[Job]:
    """Starts a job, and ends all of its processes after the ``with`` block.

    Args:
        launcher: Returns the words before the workers' command, given the job's folder.
        program: The workers' module in ``benchmarks``.
        options: The options of the workers; a tuple is several words for one option.
        beside: Another host of the same job, with the folder for all stamps.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as path:
        folder = Path(path)
        stamped = beside.stamped if beside else folder
        own = [word for key, value in options.items() for word in (f"--{key}", *_words(value))]
        worker = [sys.executable, "-m", f"benchmarks.{program}", "--stamps", stamped, *own]
        words = [str(word) for word in [*launcher(folder), *worker]]
        console = folder / "console.txt"
        with console.open("wb") as output:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD_EACH, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Job(process, folder, console, stamped)
        finally:
            _end(process, stamped)


def awaited(look: Callable[[], object], *, what: str, deadline_s: float) -> None:
    """Returns once ``look`` is true; exits the benchmark at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not look():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {deadline_s:g} s for {what}")
        time.sleep(LOOK_S)


def _words(value: object) -> Sequence[object]:
    return value if isinstance(value, tuple) else (value,)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends the launcher, then kills the remaining processes of launcher and workers by their ids."""
    family = [] if process.poll() is not None else psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.terminate()
    _, alive = psutil.wait_procs([*family, *_workers(folder)], timeout=GRACE_S)
    for one in alive:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    if process.poll() is None:
        process.kill()
    process.wait()


def _workers(folder: Path) -> list[psutil.Process]:
    """The running workers, without processes that have reused the id of an ended worker."""
    found = []
    for pid in read_stamps(folder):
        with suppress(psutil.NoSuchProcess):
            worker = psutil.Process(pid)
            if str(folder) in worker.cmdline():
                found.append(worker)
    return found
