"""``kungfu-run --metrics-port``: serves the job's metrics over HTTP, for Prometheus to scrape."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from kungfu.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["MetricsAddress", "MetricsServer", "parse_address"]

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class MetricsAddress:
    """Where metrics are served; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def parse_address(text: str) -> MetricsAddress:
    """The address of ``[ADDRESS:]PORT``; without an address only this machine reaches the port.

    Raises:
        UsageError: It is no port.

    >>> str(parse_address("9400")), str(parse_address("0.0.0.0:9400")), str(parse_address("[::1]:9400"))
    ('127.0.0.1:9400', '0.0.0.0:9400', '[::1]:9400')
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535 or (":" in text and not host):
        raise UsageError(
            f"--metrics-port {text}: must be PORT or ADDRESS:PORT with a port from 0 to 65535; without ADDRESS only "
            f"this machine reaches it, 0.0.0.0:{port if port.isdecimal() else 9400} is for all"
        )
    return MetricsAddress(host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port))


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

    def __init__(self, registry: CollectorRegistry, address: MetricsAddress, *, tell: Callable[[str], None]) -> None:
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
        self._tell(f"metrics are served at http://{MetricsAddress(address.host, self.port)}/metrics")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._thread is not None:
            self._thread.join()
