"""SIGTERM as a notice: this process will be taken away soon, so it asks to leave the job in good order.

Python runs a signal's handler between two instructions of the main thread, and that thread may be in an op of the
graph for seconds. So the kernel's delivery is heard through a wake-up descriptor, which Python's C code writes to at
once, and by a thread of its own. Python's handler writes to the same socket, in case the descriptor is another's.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import final

from kungfu.errors import KungfuError

__all__ = ["PREEMPTED_CODE", "on_preemption_signal"]

# The exit code of a process that got a second notice: the one that a shell gives for SIGTERM.
PREEMPTED_CODE = 143

_HANDLED = b"\0"  # no signal has this number
_NOBODY = -1


def on_preemption_signal(on_notice: Callable[[], None]) -> Callable[[], None]:
    """From now on the first SIGTERM calls ``on_notice``, in a thread of its own, and the second ends this process.

    Gives what ends that: SIGTERM ends the process again, as it did before. Nothing happens outside the main thread,
    where Python allows no handlers, and where the program handles, or ignores, SIGTERM itself; a program that does so
    later is left in peace from then on. Forked children are ended by SIGTERM as ever.

    Raises nothing; where ``on_notice`` raises an error of ours, standard error tells.
    """
    if threading.current_thread() is not threading.main_thread():
        return _nothing
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return _nothing
    return _PreemptionSignal(on_notice).close


def _nothing() -> None:
    """There is nothing to end."""


@final
class _PreemptionSignal:
    def __init__(self, on_notice: Callable[[], None]) -> None:
        self._on_notice, self._over = on_notice, False
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        signal.signal(signal.SIGTERM, self._handle)
        before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        if before != _NOBODY:  # an event loop's, say: the handler has to do
            signal.set_wakeup_fd(before)
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._listen, name="kungfu-notice", daemon=True).start()

    def close(self) -> None:
        """SIGTERM is as it was before; outside the main thread, the next one ends this process. Idempotent."""
        self._over = True
        if threading.current_thread() is threading.main_thread():
            self._let_go()
            with suppress(OSError):
                self._told.shutdown(socket.SHUT_WR)

    def _handle(self, number: int, frame: object) -> None:
        with suppress(OSError):
            self._told.send(_HANDLED)

    def _is_ours(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._handle

    def _let_go(self) -> None:
        if self._is_ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        current = signal.set_wakeup_fd(_NOBODY)
        if current != self._told.fileno():
            signal.set_wakeup_fd(current)

    def _forked(self) -> None:
        """In a child: its signals are no notices, and must not be written to the parent's socket."""
        if not self._over:
            self._over = True
            self._let_go()

    def _listen(self) -> None:
        delivered = handled = heeded = 0
        while numbers := self._heard.recv(64):
            # The handler follows each delivery, sooner or later; without our descriptor there is only the handler.
            delivered += numbers.count(signal.SIGTERM) if self._is_ours() else 0
            handled += numbers.count(_HANDLED)
            while heeded < max(delivered, handled):
                heeded += 1
                self._heed(heeded)

    def _heed(self, nth: int) -> None:
        if nth > 1 or self._over:
            os._exit(PREEMPTED_CODE)
        threading.Thread(target=self._pass_on, name="kungfu-notice-passing", daemon=True).start()

    def _pass_on(self) -> None:
        try:
            self._on_notice()
        except KungfuError as error:
            print(f"kungfu: SIGTERM is a notice, but it reached nobody: {error}", file=sys.stderr, flush=True)
