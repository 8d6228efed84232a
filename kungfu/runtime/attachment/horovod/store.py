"""The key-value store over HTTP at which the peers of one view meet.

Horovod's client speaks ``PUT``, ``GET`` and ``DELETE`` of ``/scope/key`` and asks for a missing key again every ten
milliseconds; here a ``GET`` waits a moment for the key to come, which makes a meeting quicker, unless its path ends in
``?now``. A store serves one view and is closed after the next: no key is ever left over from another view, and
``DELETE``, by which a client says that it is done, has nothing to do.
"""

from __future__ import annotations

import http.client
import socket
import socketserver
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, final

__all__ = ["Store", "get", "get_now", "put"]

_HOLD_S = 1.0
_NOW = "now"
_LONGEST_BYTES = 1 << 16
_SILENCE_S = 10.0


@final
class Store:
    """A store that listens on a free port of ``host`` from construction to ``close``."""

    def __init__(self, host: str) -> None:
        self._server = _Server((host, 0), _Handler)
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="kungfu-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening; requests that wait for a key are told that it is not there. Idempotent."""
        self._server.shelf.close()
        with suppress(OSError):  # closed before
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which else looks up twice a second
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def put(store: str, *, key: str, value: bytes) -> None:
    """Puts ``value`` under ``/scope/key`` of the store at ``HOST:PORT``; raises ``OSError`` if it does not answer."""
    _request(store, "PUT", path=key, body=value)


def get(store: str, *, key: str) -> bytes | None:
    """The value under ``/scope/key``, None if it has not come within a second; raises ``OSError`` as ``put`` does."""
    return _request(store, "GET", path=key)


def get_now(store: str, *, key: str) -> bytes | None:
    """The value under ``/scope/key``, None if it is not there; raises ``OSError`` as ``put`` does."""
    return _request(store, "GET", path=f"{key}?{_NOW}")


def _request(store: str, method: str, *, path: str, body: bytes | None = None) -> bytes | None:
    connection = http.client.HTTPConnection(store, timeout=_SILENCE_S)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        value = response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"the store at {store} answered {error!r}") from error
    finally:
        connection.close()
    return value if response.status == HTTPStatus.OK else None


@final
class _Shelf:
    """The values by key, and those who wait for one."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def put(self, key: str, *, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, *, hold_s: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._closed.is_set(), timeout=hold_s)
            return self._values.get(key)

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify_all()


@final
class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's own: that one asks the name service for the name of this host, and may wait for it.
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.shelf = _Shelf()


@final
class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENCE_S

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LONGEST_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self.server.shelf.put(self.path, value=self.rfile.read(int(length)))
        self._answer(HTTPStatus.OK)

    def do_GET(self) -> None:
        key, _, query = self.path.partition("?")
        value = self.server.shelf.get(key, hold_s=0 if query == _NOW else _HOLD_S)
        if value is None:
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, body=value)

    def do_DELETE(self) -> None:
        self._answer(HTTPStatus.OK)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a meeting is not worth a line on the user's terminal."""

    def _answer(self, status: HTTPStatus, *, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
