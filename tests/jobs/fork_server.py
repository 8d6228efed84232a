"""Peers of test jobs that are forked from an interpreter which has loaded TensorFlow, Keras and kungfu.

Loading them is most of a peer's start. A server does it once for all jobs of a test process; it runs no op, opens no
channel and touches no device, so that what it forks may do all that. A forked peer has the same subreaper above it, the
same runner, arguments, environment, session and streams as one that was executed, and what was registered for its exit
is called; only the interpreter is not torn down. Tests of attachments, of a start, of signals and of exit codes execute
their peers nonetheless.

``python -m tests.jobs.fork_server serve ADDRESS`` is the server, which ends when its standard input closes. ``python
-m tests.jobs.fork_server run ...`` is kungfu-run whose peers are forked by it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from kungfu.cli.run import main as kungfu_run
from kungfu.runtime.agent.supervisor import launch, process_supervisor, script_runner, subreaper

ADDRESS_KEY = "KUNGFU_TEST_FORK_SERVER"
ROOT = Path(__file__).parents[2]
ONE_THREAD_EACH = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
LARGEST = 1 << 17  # of a request, in bytes


class ForkedChild:
    """As much of ``subprocess.Popen`` as the agent uses, for a subreaper that the server has forked."""

    def __init__(self, line: socket.socket, stdout: Any) -> None:
        self.pid, self.stdout, self.returncode = int(line.recv(32)), stdout, 0
        self._line, self._ended = line, threading.Event()
        threading.Thread(target=self._await_end, daemon=True, name="forked-child").start()

    def _await_end(self) -> None:
        with self._line:
            self.returncode = int(self._line.recv(32) or -signal.SIGKILL)
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("forked child", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def start(
    command: list[str], *, environment: Mapping[str, str], folder: str = "", stdin: int = subprocess.DEVNULL
) -> Any:
    """As ``launch.start``, by the server."""
    words = script_runner.guarded(command)
    assert words[1] == script_runner.__file__, f"{words} is no script"
    control, theirs = socket.socketpair()
    output, printed = os.pipe()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(os.environ[ADDRESS_KEY])
    about = {"folder": folder, "cwd": os.getcwd(), "agent": os.getpid()}
    request = {"words": words, "environment": dict(environment), **about}
    with theirs:
        socket.send_fds(line, [json.dumps(request).encode()], [theirs.fileno(), printed])
    os.close(printed)
    return launch.PeerProcess(ForkedChild(line, open(output, "rb")), control)  # type: ignore[arg-type]


def run() -> NoReturn:
    """kungfu-run with forked peers."""
    assert process_supervisor.start is launch.start, "the agent starts peers by another function"
    process_supervisor.start = start
    sys.exit(kungfu_run())


class _BecomesPeer(BaseException):
    """Unwinds a forked process from what the server has called, so that it ends as an interpreter does."""


def serve(address: str) -> dict[str, Any]:
    """Forks a subreaper for each request until standard input closes; returns in a forked process, with its request."""
    lines: dict[int, socket.socket] = {}
    woken, wakes = os.pipe()
    for descriptor in (woken, wakes):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    selector = selectors.DefaultSelector()
    for file in (sys.stdin, woken, listener):
        selector.register(file, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if sys.stdin in ready:
            os._exit(0)
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(lines)
        if listener in ready:
            line, _ = listener.accept()
            request, descriptors, _, _ = socket.recv_fds(line, LARGEST, 2)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for one in (selector, listener, line, *lines.values()):
                    one.close()
                for descriptor in (woken, wakes):
                    os.close(descriptor)
                return {**json.loads(request), "control": descriptors[0], "output": descriptors[1]}
            for descriptor in descriptors:
                os.close(descriptor)
            lines[pid] = line
            _report(line, pid)


def _report_ended(lines: dict[int, socket.socket]) -> None:
    for pid in list(lines):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with lines.pop(pid) as line:
                _report(line, os.waitstatus_to_exitcode(status))


def _report(line: socket.socket, number: int) -> None:
    with suppress(OSError):  # the agent is gone
        line.send(b"%d" % number)


def _become_subreaper(request: dict[str, Any]) -> None:
    """Does what the agent's start of a subreaper does, and its work; raises in the process of the peer."""
    _enter_namespaces(request["agent"])
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (request["output"], 1), (request["output"], 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(request["output"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])

    def become_peer(command: list[str], parent: int) -> None:
        """As ``subreaper._exec``, but for the execution."""
        subreaper._begin_session()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as an interpreter does at its start
        signal.set_wakeup_fd(-1)
        os.close(request["control"])
        if os.getppid() != parent:
            os._exit(1)
        raise _BecomesPeer

    subreaper._exec = become_peer
    subreaper.main(request["control"], request["folder"], request["words"])


def _enter_namespaces(agent: int) -> None:
    """Enters the host of the agent with this process id, which may be one of an emulated network."""
    for kind in ("user", "net", "uts", "mnt"):
        theirs = f"/proc/{agent}/ns/{kind}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{kind}"):
            with open(theirs) as file:
                assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0, f"{theirs} cannot be entered"


def _customize(paths: str) -> None:
    """Runs what the interpreter of an executed peer would run at its start."""
    found = (Path(folder, "sitecustomize.py") for folder in paths.split(os.pathsep))
    if (file := next((one for one in found if one.exists()), None)) is not None:
        runpy.run_path(str(file))


def _below_this_file(trace: Any) -> Any:
    """The frames of an error, without those that an executed peer would not have."""
    while trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def main() -> None:
    """The server, and in a forked process what the process is for."""
    atexit.register(_skip_teardown)  # the first one that is registered is called last
    sys.meta_path.insert(0, script_runner._TrainerFinder())  # before Keras is loaded
    import keras  # noqa: F401
    import numpy as np
    import sklearn.datasets  # noqa: F401 - the data of the examples
    import tensorflow  # noqa: F401

    import kungfu.keras.attach_model
    import kungfu.training.loop.attach  # noqa: F401

    gc.collect()
    gc.freeze()  # a collection in a forked process would copy what it only looks through
    print("loaded", flush=True)
    request = serve(sys.argv[1])
    with suppress(_BecomesPeer):
        _become_subreaper(request)
    np.random.seed()  # numbers that nobody has seeded differ between peers
    tempfile.tempdir = None
    _customize(os.environ.get("PYTHONPATH", ""))
    sys.argv, show = request["words"][1:], script_runner._show
    script_runner._show = lambda kind, error, trace: show(kind, error, _below_this_file(trace))
    try:
        script_runner.main()
    except SystemExit as end:
        _exit_codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception:
        _exit_codes.append(1)
        raise
    _exit_codes.append(0)


_exit_codes: list[int] = []  # of this process, once its script is over


def _skip_teardown() -> None:
    """Ends a forked process where an interpreter would free all it has loaded, and so copy it: half of its time."""
    if _exit_codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_codes[0])


@functools.cache
def address() -> str:
    """Of the server of this test process, which is started when it is first asked for."""
    folder = tempfile.TemporaryDirectory(prefix="fork-server-")
    name = f"{folder.name}/socket"  # with a path, it can be reached from every namespace
    more = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.fork_server", "serve", name],
        env={**os.environ, **ONE_THREAD_EACH, **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"loaded\n"
    atexit.register(folder.cleanup)
    atexit.register(server.wait)
    atexit.register(server.stdin.close)  # the first of the three
    return name


if __name__ == "__main__":
    {"run": run, "serve": main}[sys.argv.pop(1)]()
