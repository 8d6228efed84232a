"""Serves the page of a run: in a process beside the job (``kungfu-run --page``), or until Ctrl-C (``kungfu page``)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn

from kungfu.cli.export.listen_address import BACKLOG, LOOPBACK, ListenAddress, is_known, listening
from kungfu.cli.export.side_process import begin_beside, job_ends
from kungfu.cli.page.app import PageApp, PageLimits
from kungfu.cli.page.control import JobControl
from kungfu.cli.page.feed import PageFeed
from kungfu.errors import KungfuError, UsageError

__all__ = ["PageServer", "main", "url_of"]

# For browsers to take the last update.
_CLOSE_WITHIN_S = 2


class PageServer:
    """Serves the page of the run in ``folder`` at a socket that listens.

    Args:
        folder: The folder of the run's record.
        listener: The socket; it is closed at the end.
        told: The name or the address under which people were told to reach it.
        limits: What the page gives browsers.

    Attributes:
        feed: What it shows.
        port: Where it listens.
    """

    def __init__(
        self, folder: Path, listener: socket.socket, *, told: str = LOOPBACK, limits: PageLimits | None = None
    ) -> None:
        self._listener = listener
        host, self.port = listener.getsockname()[:2]
        self.feed = PageFeed(folder)
        control = JobControl(folder, feed=self.feed)
        app = PageApp(
            self.feed, control, is_known=lambda hosts: is_known(hosts, host, told=told), limits=limits or PageLimits()
        )  # fmt: skip
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            backlog=BACKLOG,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._error: Exception | None = None

    def run(self, is_over: Callable[[float], bool]) -> None:
        """Serves until ``is_over``, which waits for up to so many seconds, or until a signal ends it.

        Raises:
            UsageError: The record is of another version, or cannot be read.
        """
        # What goes wrong with one browser is no remark about the job.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
        follower = threading.Thread(target=self._follow, args=(is_over,), name="kungfu-page", daemon=True)
        follower.start()
        asyncio.run(self._server.serve(sockets=[self._listener]))
        if self._error is not None:
            raise self._error

    def _follow(self, is_over: Callable[[float], bool]) -> None:
        try:
            self.feed.follow(lambda timeout_s: is_over(timeout_s) or self._server.should_exit)
        except KungfuError as error:
            self._error = error
        finally:
            self._server.should_exit = True


def url_of(address: ListenAddress, port: int) -> str:
    """What people type to see a page that listens at an address; one for all has the name of its machine.

    >>> url_of(ListenAddress("127.0.0.1", 0), 8080), url_of(ListenAddress("::1", 0), 8080)
    ('http://127.0.0.1:8080/', 'http://[::1]:8080/')
    """
    is_for_all = address.host in ("0.0.0.0", "::")
    return f"http://{ListenAddress(socket.gethostname() if is_for_all else address.host, port)}/"


def main(record: Path, address: ListenAddress) -> int:
    """Serves the page of a job until standard input closes; remarks are lines of standard output."""
    begin_beside()
    try:
        listener = listening(address)
    except OSError as error:
        print(f"no page is served at {address} ({error.strerror}); training goes on without it", flush=True)
        return 0
    server = PageServer(record, listener, told=address.host)
    print(url_of(address, server.port), flush=True)
    try:
        server.run(job_ends)
    except UsageError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main(Path(sys.argv[1]), ListenAddress(sys.argv[2], int(sys.argv[3]))))
