"""Serves the page of a run: in a separate process (``kungfu-run --page``), or until Ctrl-C (``kungfu page``)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from kungfu.cli.export.listen_address import BACKLOG, LOOPBACK, ListenAddress, is_known, listening
from kungfu.cli.export.metrics_server import ConnectionLimits
from kungfu.cli.export.side_process import begin_beside, job_ends
from kungfu.cli.page.app import PageApp
from kungfu.cli.page.control import JobControl
from kungfu.cli.page.feed import PageFeed
from kungfu.cli.page.guard import GuardedApp, PageLimits
from kungfu.cli.page.peer_log import PeerLogs
from kungfu.cli.page.runs import RunsApp
from kungfu.errors import KungfuError, UsageError

# Seconds for browsers to receive the last update.
_CLOSE_WITHIN_S = 2
_LOOK_EVERY_S = 1


class QuietConnections:
    """Ends connections that have no request in progress: after a time limit, or the oldest if there are too many.

    Args:
        connections: The open connections of uvicorn.
        limits: The limits of connections without a request. A connection counts only if two successive calls of `look`
            find no request, since a request may be on its way.
    """

    def __init__(self, connections: Collection[Any], limits: ConnectionLimits) -> None:
        self._connections, self._limits = connections, limits
        # For each quiet connection its last request, and the time when the connection was first seen quiet.
        self._quiet: dict[Any, tuple[Any, float]] = {}

    async def look(self) -> None:
        """Finds the connections without a request in progress, and ends those that exceed the limits."""
        now, limits, seen = time.monotonic(), self._limits, self._quiet
        quiet = [one for one in self._connections if one.cycle is None or one.cycle.response_complete]
        before = {one: seen[one] for one in quiet if one in seen and seen[one][0] is one.cycle}
        self._quiet = {one: before.get(one, (one.cycle, now)) for one in quiet}
        counts = Counter(_address_of(one) for one in before)
        kept = len(before)
        for one in sorted(before, key=lambda one: before[one][1]):
            is_late = now - before[one][1] >= limits.lasting_s
            if is_late or kept > limits.most or counts[_address_of(one)] > limits.per_address:
                kept, counts[_address_of(one)] = kept - 1, counts[_address_of(one)] - 1
                one.transport.abort()


def _address_of(connection: Any) -> str:
    return str(connection.client[0]) if connection.client else ""


class WebServer:
    """Serves an application on a listening socket, and closes the socket at the end.

    Args:
        printed_host: The name or the address in the URL that was printed for users.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        printed_host: str = LOOPBACK,
        limits: PageLimits,
        quiet: ConnectionLimits | None = None,
    ) -> None:
        self._listener = listener
        host, self.port = listener.getsockname()[:2]
        guarded = GuardedApp(
            app, limits=limits, is_known=lambda hosts: is_known(hosts, host, printed_host=printed_host)
        )  # fmt: skip
        config = uvicorn.Config(
            guarded, loop="asyncio", http="h11", ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            backlog=BACKLOG, timeout_notify=_LOOK_EVERY_S,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        connections = QuietConnections(self._server.server_state.connections, quiet or ConnectionLimits())
        config.callback_notify = connections.look

    def run(self) -> None:
        """Serves until a signal, or until `end`."""
        # An error in one browser's connection does not concern the job.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def end(self) -> None:
        """Ends `run`; may be called from any thread."""
        self._server.should_exit = True

    def is_ending(self) -> bool:
        """True once a signal, or `end`, ends `run`."""
        return self._server.should_exit


class PageServer:
    """Serves the page of the run in ``folder`` on a listening socket, and closes the socket at the end."""

    def __init__(
        self,
        folder: Path,
        listener: socket.socket,
        *,
        printed_host: str = LOOPBACK,
        limits: PageLimits | None = None,
        quiet: ConnectionLimits | None = None,
    ) -> None:
        limits = limits or PageLimits()
        self.feed = PageFeed(folder)
        control = JobControl(folder, feed=self.feed)
        app = PageApp(self.feed.log, control, peer_log=PeerLogs(folder).end, limits=limits)
        self._web = WebServer(app, listener, printed_host=printed_host, limits=limits, quiet=quiet)
        self.port = self._web.port
        self._error: Exception | None = None

    def run(self, is_over: Callable[[float], bool]) -> None:
        """Serves until a signal arrives, or until ``is_over(timeout_s)`` returns True, which may wait.

        Raises ``UsageError`` if the record is of another version, or cannot be read."""
        follower = threading.Thread(target=self._follow, args=(is_over,), name="kungfu-page", daemon=True)
        follower.start()
        self._web.run()
        if self._error is not None:
            raise self._error

    def _follow(self, is_over: Callable[[float], bool]) -> None:
        try:
            self.feed.follow(lambda timeout_s: is_over(timeout_s) or self._web.is_ending())
        except KungfuError as error:
            self._error = error
        finally:
            self._web.end()


def runs_server(folder: Path, listener: socket.socket, *, printed_host: str = LOOPBACK) -> WebServer:
    """A server of the list of the runs in the folders of ``folder``, and of their pages."""
    limits = PageLimits()
    app = RunsApp(folder, is_ending=lambda: server.is_ending(), limits=limits)
    server = WebServer(app, listener, printed_host=printed_host, limits=limits)
    return server


def url_of(address: ListenAddress, port: int) -> str:
    """The URL of a page served at an address; a wildcard address is replaced by the machine's host name.

    >>> url_of(ListenAddress("127.0.0.1", 0), 8080), url_of(ListenAddress("::1", 0), 8080)
    ('http://127.0.0.1:8080/', 'http://[::1]:8080/')
    """
    is_for_all = address.host in ("0.0.0.0", "::")
    return f"http://{ListenAddress(socket.gethostname() if is_for_all else address.host, port)}/"


def main(record: Path, address: ListenAddress) -> int:
    """Serves the page of a job until standard input closes; prints remarks on standard output."""
    begin_beside()
    try:
        listener = listening(address)
    except OSError as error:
        print(f"no page is served at {address} ({error.strerror}); training continues without it", flush=True)
        return 0
    server = PageServer(record, listener, printed_host=address.host)
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
