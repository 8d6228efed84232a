"""Reports to the agent how this peer's program ends, before the process ends.

No Python hook runs at every end: ``sys.excepthook`` is often replaced and is not called for ``sys.exit``. But the
interpreter stores the exception that ended the program in ``sys.last_value`` and calls the ``atexit`` functions. If
other threads delay these functions, a thread that waits for the main thread reports instead. The argument of
``sys.exit`` is the exit code of the process, which the agent sees anyway.
"""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from kungfu.errors import KungfuError
from kungfu.runtime.core.cluster.events import ProgramExiting
from kungfu.runtime.core.failure import Exit, kind_of
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.convert import from_report
from kungfu.runtime.ipc.messages_pb2_grpc import AgentServiceStub
from kungfu.runtime.settings import Settings, read_settings

_SEND_S = 5.0  # an agent that does not answer is gone, and ends this process soon
_CONTINUES_S = 0.5
_HELD_UP_S = 1.0
_MOST_CHARACTERS, _MOST_OF_A_REFUSAL = 300, 2000  # the latter for a usage error, which is reported as a whole
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_KUNGFU = str(Path(__file__).parents[2])

_reports: list[ExitReport] = []  # the report of this process, if one was created


class ExitReport:
    """Reports how this program ends; a new instance registers itself to report at exit.

    Args:
        settings: The address of the agent, and the id of this peer.
        withdraw: Removes this peer from its view once the program is over.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        steps: Callable[[], int] = lambda: 0,
        withdraw: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._process = settings, os.getpid()
        self._lock, self._over, self._withdrawn = threading.Lock(), threading.Event(), threading.Event()
        self._is_heard, self.is_of_founder = False, settings.checkpoints.founders > 0
        self._count, self._withdraw = steps, withdraw
        _reports[:] = [self]
        atexit.register(self.close)
        trains = threading.current_thread()  # may continue after the main thread has ended
        threading.Thread(target=self._await_end, args=(trains,), name="kungfu-exit", daemon=True).start()

    def left_loop(self) -> None:
        """Reports that the program left its training loop before training was over, unless the program ends at once."""
        # The program has not ended, and this process is not a forked child.
        if not self._over.is_set() and os.getpid() == self._process:
            threading.Thread(target=self._report_left_loop, args=(self._steps(),), daemon=True).start()

    def _report_left_loop(self, step: int) -> None:
        # The program continues after its loop.
        if not self._over.wait(_CONTINUES_S):
            self._send(Exit("loop", step))

    def close(self) -> None:
        """Reports the end of the program and withdraws this peer, each once, so that no other peer waits for it."""
        if os.getpid() == self._process:  # else this is a forked child
            self.report_end()
            self._withdraw_once()

    def _await_end(self, trains: threading.Thread) -> None:
        """Reports the end and withdraws this peer once the main and the training thread have ended.

        Other threads may still run. The main thread has one second to withdraw this peer itself, since Horovod's engine
        should be stopped by that thread.
        """
        for thread in (threading.main_thread(), trains):
            thread.join()
        self.report_end()
        # Other threads delay `atexit`.
        if not self._withdrawn.wait(_HELD_UP_S):
            self._withdraw_once()

    def report_end(self) -> bool:
        """Reports how the program ends, if not yet reported; True if the agent has received the report."""
        with self._lock:
            if not self._over.is_set():
                self._over.set()
                self._is_heard = self._send(exit_of(getattr(sys, "last_value", None), step=self._steps()))
            return self._is_heard

    def _withdraw_once(self) -> None:
        with self._lock:
            first = not self._withdrawn.is_set()
            self._withdrawn.set()
        if first:
            self._withdraw()

    def _steps(self) -> int:
        with suppress(Exception):  # TensorFlow may not answer any more
            return self._count()
        return 0

    def _send(self, exit: Exit) -> bool:
        with suppress(KungfuError), rpc.connect(self._settings.agent, secret=self._settings.secret) as channel:
            message = from_report(ProgramExiting(self._settings.peer, exit))
            rpc.call(AgentServiceStub(channel).ReportEvent, message, deadline_s=_SEND_S, what="the agent")
            return True
        return False


def report_unattached_exit() -> None:
    """Reports that an error of kungfu ends the program before ``attach``, which normally sets up the report.

    The agent does not read the program's output, so only this report informs the agent of the error.
    """
    settings = read_settings()
    # Under kungfu-run, and not attached.
    if settings is not None and not _reports:
        ExitReport(settings)


def is_exit_reported() -> bool:
    """Reports the exception that ends this program; True if the agent has received the report and displays the error.

    The agent displays only an error that ends the job, so a joiner's error is not reported here.
    """
    return bool(_reports) and _reports[0].is_of_founder and _reports[0].report_end()


def exit_of(error: BaseException | None, *, step: int) -> Exit:
    """The description of how a program ends.

    Args:
        error: The exception that ends the program; ``None`` at the end of the script or after ``sys.exit``.

    >>> exit_of(None, step=7)
    Exit(kind='exit', step=7, name='', error='', where='')
    """
    if error is None:
        return Exit("exit", step)
    name = type(error).__qualname__
    message, kind = next(iter(str(error).splitlines()), ""), kind_of(error)
    text = f"{name}: {message}" if message else name
    most = _MOST_OF_A_REFUSAL if kind == "usage" else _MOST_CHARACTERS
    return Exit(kind, step, name, text[:most], _where(error.__traceback__))


def _where(trace: TracebackType | None) -> str:
    """The file and line at which an exception left the program: the innermost frame that is not in a library."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    own = [one for one in lines if _is_own(one[0])] or lines
    return f"{_short(own[-1][0])}:{own[-1][1]}" if own else ""


def _is_own(file: str) -> bool:
    library = file.startswith((*_LIBRARIES, _KUNGFU))
    return not library and not file.startswith("<") and "__autograph_generated_file" not in file


def _short(file: str) -> str:
    return os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
