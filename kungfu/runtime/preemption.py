"""SIGTERM as a preemption notice: the platform will soon end this process, so the process asks to leave the job.

Python runs a signal's handler between two instructions of the main thread, and that thread may be in an op of the
graph for seconds. So a separate thread reads from a socket. The socket's other end is Python's wake-up descriptor, to
which Python's C code writes as soon as the kernel delivers the signal. The signal's handler writes to the socket too,
in case another library has set the descriptor.
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

# The exit code after a second notice: the code that a shell reports for SIGTERM.
PREEMPTED_CODE = 143

_HANDLED = b"\0"  # no signal has this number
_NO_DESCRIPTOR = -1


def on_preemption_signal(on_notice: Callable[[], None]) -> Callable[[], None]:
    """Makes the first SIGTERM call ``on_notice`` in a separate thread, and the second SIGTERM end this process.

    The call has no effect outside the main thread, where Python allows no handlers, or if the program itself handles or
    ignores SIGTERM. SIGTERM ends forked children as before.

    Args:
        on_notice: Asks to leave the job. An error that it raises is printed as one line on standard error, except after
            the end of the job, when the connection is closed.

    Returns:
        A function that restores the default: SIGTERM ends the process at once.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        # No handler is installed.
        return lambda: None
    return _PreemptionSignal(on_notice).close


@final
class _PreemptionSignal:
    def __init__(self, on_notice: Callable[[], None]) -> None:
        self._on_notice, self._over = on_notice, False
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        signal.signal(signal.SIGTERM, self._handle)
        before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        if before != _NO_DESCRIPTOR:  # set by an event loop, for example: the handler has to suffice
            signal.set_wakeup_fd(before)
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._listen, name="kungfu-notice", daemon=True).start()

    def close(self) -> None:
        """Makes the next SIGTERM end this process; in the main thread, restores the default handler. Idempotent."""
        self._over = True
        if threading.current_thread() is threading.main_thread():
            self._restore()
            with suppress(OSError):
                self._sender.shutdown(socket.SHUT_WR)

    def _handle(self, number: int, frame: object) -> None:
        with suppress(OSError):
            self._sender.send(_HANDLED)

    def _is_ours(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._handle

    def _restore(self) -> None:
        if self._is_ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        current = signal.set_wakeup_fd(_NO_DESCRIPTOR)
        if current != self._sender.fileno():
            signal.set_wakeup_fd(current)

    def _forked(self) -> None:
        """Restores the default handler of SIGTERM in a forked child: its signals must not reach the parent's socket."""
        if not self._over:
            self._over = True
            self._restore()

    def _listen(self) -> None:
        delivered = handled = noticed = 0
        while numbers := self._receiver.recv(64):
            # The handler runs some time after each delivery; without this descriptor, only the handler reports signals.
            delivered += numbers.count(signal.SIGTERM) if self._is_ours() else 0
            handled += numbers.count(_HANDLED)
            while noticed < max(delivered, handled):
                noticed += 1
                self._notice(noticed)

    def _notice(self, nth: int) -> None:
        # The second notice, or the first one after ``close`` in another thread.
        if nth > 1 or self._over:
            os._exit(PREEMPTED_CODE)
        try:
            threading.Thread(target=self._call, name="kungfu-notice-passing", daemon=True).start()
        # No thread can start: the program has ended and needs no notice, or this thread handles the notice itself.
        except RuntimeError:
            if threading.main_thread().is_alive():
                self._call()

    def _call(self) -> None:
        try:
            self._on_notice()
        except Exception as error:  # noqa: BLE001 - a second traceback would distract from the first error
            if self._over:
                return
            print(f"kungfu: SIGTERM is a notice, but it reached nobody: {error}", file=sys.stderr, flush=True)
