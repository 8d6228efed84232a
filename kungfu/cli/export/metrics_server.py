"""``kungfu-run --metrics-port``: serves the job's metrics over HTTP, for Prometheus to scrape."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from kungfu.cli.export.listen_address import ListenAddress

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["MetricsServer"]


class MetricsServer:
    """Serves ``/metrics`` as long as the job runs; a context.

    Where it cannot listen, that is told once, and the job runs without it.

    Args:
        registry: The metrics that are served.
        address: Where.
        tell: Takes remarks for people.

    Attributes:
        port: The port that it listens on; 0 where it does not.
    """

    def __init__(self, registry: CollectorRegistry, address: ListenAddress, *, tell: Callable[[str], None]) -> None:
        self._registry, self._address, self._tell = registry, address, tell
        self._stop: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self.port = 0

    def __enter__(self) -> MetricsServer:
        from prometheus_client import start_http_server  # a command line is read without it

        address = self._address
        try:
            server, self._thread = start_http_server(address.port, address.host, registry=self._registry)
        # The port is another program's, or is not for this user, or the address is not this machine's.
        except OSError as error:
            self._tell(f"no metrics are served at {address} ({error.strerror}); training goes on without them")
            return self
        self.port = server.server_port

        def stop() -> None:
            server.shutdown()
            server.server_close()

        self._stop = stop
        self._tell(f"metrics are served at http://{ListenAddress(address.host, self.port)}/metrics")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._thread is not None:
            self._thread.join()
