"""How a job ended, in the order in which a person needs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kungfu.cli.console.noise import is_noise
from kungfu.runtime.deciding.failure import EXIT_CODES, Failure

__all__ = ["farewell"]

_MOST_LINES = 40


def farewell(
    code: int, failure: Failure | None, *, folder: Path, paces: Sequence[str] = (), leaves: bool = False
) -> list[str]:
    """What failed and in which peer, its last output, where the whole of it is, the exit code.

    After a run that went well ``paces`` says how long things took; ``leaves``: it goes on, without this host.

    >>> from kungfu.runtime.deciding.failure import Failure
    >>> print("\\n".join(farewell(1, Failure(1, "rank 1 (peer 1): killed by SIGKILL", 1), folder=Path("runs/a"))))
    kungfu-run: failed: rank 1 (peer 1): killed by SIGKILL
      it printed nothing
      all it printed: runs/a/peers/peer-1.log; how it came to that: kungfu why runs/a
      exit code 1: a peer's program failed or was killed
    """
    if leaves:
        return [f"kungfu-run: this host has left the job, which goes on; the record so far: {_why(folder)}"]
    if failure is None:
        return [_without_failure(code, folder), *(f"  {line}" for line in paces)]
    headline = f"kungfu-run: failed: {failure.text}"
    ending = f"  exit code {code}: {EXIT_CODES.get(code, 'not one of our own')}"
    if failure.peer < 0:
        return [headline, f"  all that the peers printed: {folder}/peers/; how it came to that: {_why(folder)}", ending]
    whole = f"  all it printed: {folder}/peers/peer-{failure.peer}.log; how it came to that: {_why(folder)}"
    return [headline, *_last_output(failure), whole, ending]


def _last_output(failure: Failure) -> list[str]:
    lines = [line for line in failure.output if not is_noise(line)]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        return ["  it printed nothing"]
    return ["  its last output:", *(f"  | {line}" for line in lines[-_MOST_LINES:])]


def _without_failure(code: int, folder: Path) -> str:
    if code == 0:
        return f"kungfu-run: training is over; what was decided, and why: {_why(folder)}"
    return f"kungfu-run: {EXIT_CODES.get(code, f'ended with exit code {code}')}; the record so far: {_why(folder)}"


def _why(folder: Path) -> str:
    return f"kungfu why {folder}"
