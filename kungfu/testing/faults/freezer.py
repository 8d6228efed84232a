"""Freezes and slows processes for a time, by a separate process that thaws them even if its parent is killed.

The separate process runs this file with the standard library only. It reads one order per line from its standard input,
and answers each order with a line. When the input closes, because the parent has ended or was killed, it thaws all
processes and exits. It has its own session, so key presses in the terminal do not reach it, and it thaws processes on
time even if the parent hangs. Only a SIGKILL to the separate process leaves a peer frozen; the job then declares that
peer lost after the heartbeat timeout.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

_PERIOD_S = 0.1  # a slowed process runs for its share of each period
_START_TICKS = 19  # index among the fields after the name in /proc/PID/stat, see proc(5)
_ENDS_WITHIN_S = 5.0


class Freezer:
    """Freezes and slows processes of this user in a ``with`` block; the first call starts the process that does so."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[str] | None = None

    def __enter__(self) -> Freezer:
        return self

    def __exit__(self, *_: object) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        # The guard may have been killed with an order in the pipe.
        with suppress(OSError):
            guard.stdin.close()
        guard.stdout.close()
        try:
            guard.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()

    def freeze(self, pid: int, *, for_s: float) -> bool:
        """Stops a process for this many seconds; returns False if the process is gone or may not be signalled."""
        return self._order(pid, share=0.0, for_s=for_s)

    def slow(self, pid: int, *, share: float, for_s: float) -> bool:
        """Runs a process for only a share of each 0.1 s, until ``for_s`` s have passed; see `freeze` for the result."""
        return self._order(pid, share=share, for_s=for_s)

    def thaw(self, pid: int) -> bool:
        """Lets a process run again; returns False if the process is gone or may not be signalled."""
        return self._order(pid, share=1.0, for_s=0.0)

    def _order(self, pid: int, *, share: float, for_s: float) -> bool:
        self._guard = self._guard or subprocess.Popen(
            [sys.executable, "-S", "-E", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        try:
            self._guard.stdin.write(f"{pid} {share} {for_s}\n")
            self._guard.stdin.flush()
            return self._guard.stdout.readline() == "done\n"
        # The guard was killed.
        except BrokenPipeError:
            return False


@dataclass
class _Held:
    """A process, frozen or slowed until a time; ``started`` distinguishes it from a later process with the same id."""

    pid: int
    started: str
    share: float
    until: float
    turn_at: float
    runs: bool = False

    def turn(self, now: float) -> None:
        """Freezes the process if it runs, else lets it run; sets the time at which the next switch is due."""
        self.runs = not self.runs
        part = self.share if self.runs else 1.0 - self.share
        self.turn_at = now + part * _PERIOD_S if self.share else self.until
        _signal(self, signal.SIGCONT if self.runs else signal.SIGSTOP)


def _started(pid: int) -> str:
    """The start time of a process, in ticks since the boot; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[_START_TICKS]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _signal(held: _Held, number: signal.Signals) -> None:
    """Sends a signal if the id still belongs to the same process."""
    if _started(held.pid) == held.started:
        with suppress(ProcessLookupError):  # the process has just ended
            os.kill(held.pid, number)


def _carry_out(words: str, held: dict[int, _Held]) -> str:
    """Carries out an order of the parent (to freeze, slow or thaw a process), and returns the answer."""
    number, share, seconds = words.split()
    pid, now = int(number), time.monotonic()
    one = _Held(pid, _started(pid), float(share), now + float(seconds), now, runs=True)
    held.pop(pid, None)
    if not one.started:
        return "gone\n"
    try:
        # A share of 1 thaws the process.
        if one.share >= 1.0:
            os.kill(pid, signal.SIGCONT)
        else:
            held[pid] = one
            one.turn(now)
    except PermissionError:
        held.pop(pid, None)
        return "refused\n"
    return "done\n"


def _wake(held: dict[int, _Held]) -> None:
    """Thaws processes whose freeze or slowdown has expired; switches slowed processes between running and frozen."""
    now = time.monotonic()
    for one in [*held.values()]:
        if now >= one.until:
            _signal(held.pop(one.pid), signal.SIGCONT)
        elif now >= one.turn_at:
            one.turn(now)


def _guard() -> None:
    """Carries out the parent's orders until standard input closes, then thaws all processes."""
    held: dict[int, _Held] = {}
    unread = b""
    try:
        while True:
            next_at = min((min(one.until, one.turn_at) for one in held.values()), default=None)
            wait_s = None if next_at is None else max(0.0, next_at - time.monotonic())
            if select.select([0], [], [], wait_s)[0]:
                chunk = os.read(0, 4096)
                # The parent has closed the input, or has ended.
                if not chunk:
                    return
                *orders, unread = (unread + chunk).split(b"\n")
                for order in orders:
                    os.write(1, _carry_out(order.decode(), held).encode())
            _wake(held)
    # The parent no longer reads the answers.
    except BrokenPipeError:
        return
    finally:
        for one in held.values():
            _signal(one, signal.SIGCONT)


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_number, signal.SIG_IGN)  # the process ends only when its input closes
    _guard()
