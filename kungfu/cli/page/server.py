"""Serves the page of a run: in a process beside the job (``kungfu-run --page``), or until Ctrl-C (``kungfu page``)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import uvicorn

from kungfu.cli.export.listen_address import LOOPBACK, ListenAddress
from kungfu.cli.export.side_process import begin_beside, job_ends
from kungfu.cli.page.app import PageApp, PageLimits
from kungfu.cli.page.control import JobControl
from kungfu.cli.page.feed import PageFeed
from kungfu.errors import KungfuError, UsageError

__all__ = ["PageServer", "is_known", "listening", "main", "url_of"]

_BACKLOG = 512
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
            self.feed, control, is_known=lambda name: is_known(name, host, told=told), limits=limits or PageLimits()
        )  # fmt: skip
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, timeout_graceful_shutdown=_CLOSE_WITHIN_S,
            backlog=_BACKLOG,
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


def is_known(name: str, host: str, *, told: str = "") -> bool:
    """Whether a page that listens at the address ``host``, or was ``told`` to by another name, may be asked for so.

    By an address it always may: only names can be made to point elsewhere. Beside those of the loopback interface a
    page has the names of its machine, where it listens for others.

    >>> [is_known(name, "127.0.0.1") for name in ("127.0.0.1", "localhost", "::1", "evil.example", "")]
    [True, True, True, False, False]
    """
    name = name.lower()
    if name and name in ("localhost", told.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return not _is_loopback(host) and name in _own_names()
    return True


@cache
def _own_names() -> tuple[str, str]:
    """The names of this machine; asked for once, since a name server may be slow."""
    return socket.gethostname().lower(), socket.getfqdn().lower()


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def listening(address: ListenAddress) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        OSError: The port is another program's, or not for this user, or the address is not this machine's.
    """
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The port of a page that has just ended is free again, though its last connections are not forgotten yet.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


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
