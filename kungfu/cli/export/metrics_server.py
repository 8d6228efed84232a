"""``kungfu-run --metrics-port``: serves the job's metrics over HTTP, for Prometheus to scrape.

The server runs in the agent, whose descriptors and threads the job needs. Therefore the number of connections, in total
and per address, and the duration of each connection are limited. At a limit, a new connection replaces the oldest one,
so a stranger's idle connections block nobody.

Prometheus sees the end of a job only if it scrapes once more afterwards. So the server ends after the next scrape, if
the interval between the last two scrapes lets it expect one soon and the machine is not preempted.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from kungfu.cli.export.listen_address import ListenAddress, is_known, listening

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# The shortest interval of a scraper, the longest wait for a last scrape, and seconds by which a scrape may be late.
_SHORTEST_S, _LAST_SCRAPE_S, _LATE_S = 0.5, 15.0, 1.0


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of a server's connections.

    Args:
        most: The maximum number of open connections.
        per_address: The maximum number of open connections from one address.
        lasting_s: The maximum number of seconds for a request and its answer.
    """

    most: int = 64
    per_address: int = 16
    lasting_s: float = 10.0


class MetricsServer:
    """Serves ``/metrics`` while the job runs; a context manager.

    If the server cannot listen, it reports this once, and the job continues without metrics.

    Args:
        is_preempted: True if this machine may be gone soon, so that the end waits for no scrape.

    Attributes:
        port: The port of the server; 0 if the server does not listen.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: ListenAddress,
        *,
        report: Callable[[str], None],
        limits: ConnectionLimits | None = None,
        is_preempted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._registry, self._address, self._report = registry, address, report
        self._limits, self._opened, self._is_preempted = limits or ConnectionLimits(), ExitStack(), is_preempted
        self._scraped, self._scrapes = threading.Condition(), tuple[float, ...]()  # the times of the last two
        self.port = 0

    def __enter__(self) -> MetricsServer:
        address = self._address
        try:
            listener = listening(address)
        # The port is in use or reserved, or the address does not belong to this machine.
        except OSError as error:
            self._report(f"no metrics are served at {address} ({error.strerror}); training continues without them")
            return self
        self.port = listener.getsockname()[1]
        handler = _handler(self._registry, listener, printed_host=address.host, scraped=self._note_scrape)
        server = _Server(listener, handler, self._limits)
        poll_s = min(0.5, self._limits.lasting_s)
        thread = threading.Thread(target=server.serve_forever, args=(poll_s,), name="kungfu-metrics", daemon=True)
        for end in (server.server_close, thread.join, server.shutdown):  # in the reverse order
            self._opened.callback(end)
        thread.start()
        self._report(f"metrics are served at http://{ListenAddress(address.host, self.port)}/metrics")
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and not self._is_preempted():
            self._await_last_scrape()
        self._opened.close()

    def _note_scrape(self) -> None:
        with self._scraped:
            self._scrapes = (*self._scrapes[-1:], time.monotonic())
            self._scraped.notify_all()

    def _await_last_scrape(self) -> None:
        """Waits for the next scrape, if it is due soon."""
        with self._scraped:
            if len(self._scrapes) == 2:
                before, last = self._scrapes
                due_s = 2 * last - before - time.monotonic()
                if last - before >= _SHORTEST_S and -_LATE_S < due_s <= _LAST_SCRAPE_S:
                    self._scraped.wait(due_s + _LATE_S)


def _handler(
    registry: CollectorRegistry, listener: socket.socket, *, printed_host: str, scraped: Callable[[], None]
) -> Any:
    from prometheus_client import MetricsHandler  # imported here: parsing a command line does not need this module

    class Handler(MetricsHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
            if is_known(self.headers.get_all("Host", []), listener.getsockname()[0], printed_host=printed_host):
                super().do_GET()
                scraped()
            else:
                self.send_error(421, explain="ask for the metrics by the address that kungfu-run printed")

    return Handler.factory(registry)


class _Server(ThreadingHTTPServer):
    """An HTTP server on a listening socket; limits its connections, and closes the socket at the end."""

    def __init__(self, listener: socket.socket, handler: Any, limits: ConnectionLimits) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self._limits = listener, limits
        self._lock = threading.Lock()
        self._open: dict[socket.socket, tuple[float, str]] = {}  # start time and address, oldest first

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accepts each connection; at a limit, ends the oldest connection, or the oldest one from the same address."""
        limits, address = self._limits, client_address[0]
        with self._lock:
            same = [one for one, (_, known) in self._open.items() if known == address]
            if len(same) >= limits.per_address:
                self._end(same[0])
            elif len(self._open) >= limits.most:
                self._end(next(iter(self._open)))
            self._open[request] = time.monotonic(), address
        return True

    def service_actions(self) -> None:
        """Ends the connections that have lasted too long; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for one in [one for one, (since, _) in self._open.items() if now - since > self._limits.lasting_s]:
                self._end(one)

    def shutdown_request(self, request: Any) -> None:
        """Forgets a finished connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Ends all connections and closes the server."""
        with self._lock:
            for one in list(self._open):
                self._end(one)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores an error in one connection, since such an error does not concern the job."""

    def _end(self, connection: socket.socket) -> None:
        """Shuts a connection down, so that the connection's thread reads the end and closes the connection."""
        self._open.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
