"""The summary of the end of a job, ordered by importance to the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from kungfu.cli.console.log_filter import is_startup_noise
from kungfu.cli.console.screens import packed
from kungfu.runtime.core.failure import EXIT_CODES, Failure

_MOST_LINES = 40
_OUTPUT, _INDENT = "  | ", "    "
# Commands that users copy are not wrapped.
_WORD = re.compile(r"kungfu why \S+|\S+")


def exit_summary(
    code: int,
    failure: Failure | None,
    *,
    folder: Path,
    totals: Sequence[str] = (),
    gaps: Sequence[str] = (),
    leaves: bool = False,
    raised: Mapping[int, str] | None = None,
) -> list[str]:
    """The lines of the summary: the failure and its peer, the peer's last output and log file, the exit code.

    Args:
        failure: The root cause; None if the job did not fail.
        totals: Joiners that were late, and the durations of steps and rescales; shown after a successful run.
        gaps: Descriptions of the parts of the record that could not be written.
        leaves: True if the job continues without this host.
        raised: The program's exceptions that ended peers, by peer; the summary's last line names the first exception.

    >>> from kungfu.runtime.core.failure import Failure
    >>> print("\\n".join(exit_summary(1, Failure(1, "rank 1 (peer 1): killed by SIGKILL", 1), folder=Path("runs/a"))))
    kungfu-run: failed: rank 1 (peer 1): killed by SIGKILL
      it printed nothing
      all it printed: runs/a/peers/peer-1.log; how it came to that: kungfu why runs/a
      exit code 1: a peer's program failed or was killed
    """
    if leaves and failure is None:
        left = f"kungfu-run: this host has left the job, which continues; the record so far: {_why(folder)}"
        return [left, *(f"  {gap}" for gap in gaps)]
    if failure is None:
        if code == 0:
            head = f"training is over; what was decided, and why: {_why(folder)}"
        else:
            head = f"{EXIT_CODES.get(code, f'ended with exit code {code}')}; the record so far: {_why(folder)}"
        return [f"kungfu-run: {head}", *(f"  {line}" for line in (*totals, *gaps)), *_lost(raised or {}, folder)]
    headline = f"kungfu-run: failed: {failure.text}"
    chosen = f"the program's own, by sys.exit({code})"
    ending = f"  exit code {code}: {chosen if failure.chosen else EXIT_CODES.get(code, 'not one of our own')}"
    others = {peer: error for peer, error in (raised or {}).items() if peer != failure.peer}
    last = [ending, *(f"  {gap}" for gap in gaps), *_lost(others, folder)]
    if failure.peer < 0:
        return [headline, f"  all that the peers printed: {folder}/peers/; how it came to that: {_why(folder)}", *last]
    whole = f"  all it printed: {folder}/peers/peer-{failure.peer}.log; how it came to that: {_why(folder)}"
    return [headline, *_last_output(failure), whole, *last]


def fitted(line: str, *, width: int | None, style: str = "") -> Text:
    """Wraps a line of the summary for the terminal.

    Args:
        line: A line from `exit_summary`; the printed output of a peer is not wrapped.
        width: The columns of the terminal; ``None`` for other outputs.

    >>> print(fitted("  the record so far: kungfu why runs/a", width=30))
      the record so far:
        kungfu why runs/a
    """
    if width is None or line.startswith(_OUTPUT) or not line.strip():
        return Text(line, style)
    lead = line[: len(line) - len(line.lstrip())]
    first, *others = _WORD.findall(line)
    text = packed([Text(word) for word in (lead + first, *others)], width=width, indent=_INDENT)
    text.stylize(style)
    return text


def _lost(raised: Mapping[int, str], folder: Path) -> list[str]:
    """The summary's last line if exceptions of the program ended peers: the peers' number and the first exception."""
    if not raised:
        return []
    peer, error = next(iter(raised.items()))
    count = "1 peer was" if len(raised) == 1 else f"{len(raised)} peers were"
    others = "" if len(raised) == 1 else ", the first of them"
    return [
        f"kungfu-run: {count} lost to an exception of the program on the way{others}: peer {peer}: {error}; all it "
        f"printed: {folder}/peers/peer-{peer}.log"
    ]


def _last_output(failure: Failure) -> list[str]:
    lines = [line for line in failure.output if not is_startup_noise(line)]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        return ["  it printed nothing"]
    return ["  its last output:", *(f"{_OUTPUT}{line}" for line in lines[-_MOST_LINES:])]


def _why(folder: Path) -> str:
    return f"kungfu why {folder}"
