"""The key-value store over HTTP for the rendezvous of the peers of one view.

Horovod's client sends ``PUT``, ``GET`` and ``DELETE`` of ``/scope/key`` and requests a missing key again every ten
milliseconds. To make a rendezvous faster, a ``GET`` here waits up to a second for the key, unless its path ends in
``?now``. A store serves one view and is closed when the next view has begun, so keys of different views never mix.
Therefore ``DELETE``, which a client sends when it is done, does nothing.

Horovod's client sends no credentials, but the first part of its paths can be set as a part of the address. So every
store draws a token that cannot be guessed. Peers receive the token with the address, in calls with the job's secret. A
request for any other path is refused before its body is read.
"""

from __future__ import annotations

import hmac
import http.client
import secrets
import socket
import socketserver
import sys
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, final

_HOLD_S = 1.0  # how long a GET waits for its key
_NOW = "now"
_LONGEST_BYTES = 1 << 16
_MOST_KEYS = 1 << 14
_MOST_CALLERS = 1024  # simultaneous callers
_SILENCE_S = 10.0  # for a caller that has sent the token
_UNKNOWN_S = 5.0  # for a caller that has not sent the token yet


class NoAnswerError(ConnectionError):
    """A store accepted the call but did not answer in time; the store's process or this process may merely be slow."""


@final
class KeyValueStore:
    """A store that listens on a free port of ``host`` from construction to ``close``.

    ``address`` is ``HOST:PORT/TOKEN``: any process that knows this address can put and get values.
    """

    def __init__(self, host: str) -> None:
        self._server = _Server((host, 0), _Handler)
        self.address = f"{host}:{self._server.server_address[1]}/{self._server.token}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="kungfu-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening; waiting requests are answered as if their keys did not exist. Idempotent."""
        self._server.values.close()
        with suppress(OSError):  # already closed
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which otherwise checks twice a second
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def put(store: str, *, key: str, value: bytes) -> None:
    """Puts ``value`` under ``/scope/key`` of the store at this address.

    Raises:
        NoAnswerError: The call was accepted but not answered.
        OSError: The call was not accepted.
    """
    _request(store, "PUT", path=key, body=value)


def get(store: str, *, key: str) -> bytes | None:
    """The value under ``/scope/key``; ``None`` if no value arrives in a second. Raises ``OSError`` like ``put``."""
    return _request(store, "GET", path=key)


def get_now(store: str, *, key: str) -> bytes | None:
    """The value under ``/scope/key``; ``None`` if there is no value now. Raises ``OSError`` like ``put``."""
    return _request(store, "GET", path=f"{key}?{_NOW}")


def listens_at(store: str) -> str:
    """The public part ``HOST:PORT`` of a store's address ``HOST:PORT/TOKEN``."""
    return store.partition("/")[0]


def _request(store: str, method: str, *, path: str, body: bytes | None = None) -> bytes | None:
    connection = http.client.HTTPConnection(listens_at(store), timeout=_SILENCE_S)
    try:
        # The kernel of the store's host accepts the call, however busy the store's process is.
        connection.connect()
        try:
            connection.request(method, f"/{store.partition('/')[2]}{path}", body=body)
            response = connection.getresponse()
            value = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(
                f"the store at {listens_at(store)} took a call and did not answer: {error!r}"
            ) from error
    finally:
        connection.close()
    return value if response.status == HTTPStatus.OK else None


@final
class KeyValues:
    """The values by key, at most ``_MOST_KEYS`` of them; `get` can wait for a key."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def put(self, key: str, *, value: bytes) -> bool:
        """Stores a value; returns False if there is no room for it."""
        with self._changed:
            if key not in self._values and len(self._values) >= _MOST_KEYS:
                return False
            self._values[key] = value
            self._changed.notify_all()
            return True

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
    # Not the class of http.server, which asks the name service for the name of this host, and may wait for the answer.
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.values, self.token = KeyValues(), secrets.token_hex(16)
        self._places = threading.BoundedSemaphore(_MOST_CALLERS)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """True if there is room to serve one more caller; otherwise the server closes that caller's connection."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one caller, and then frees its place for another caller."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a caller that has closed its connection: the caller got no answer in time, and will call again."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@final
class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _UNKNOWN_S
    wbufsize = -1  # an answer is sent as a whole: Horovod would read an empty value if it ended after the headers

    def do_PUT(self) -> None:
        key = self._known()
        if key is None:  # refused: no token
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LONGEST_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)  # not read, so that a stranger cannot fill the memory
            return
        put = self.server.values.put(key, value=self.rfile.read(int(length)))
        self._answer(HTTPStatus.OK if put else HTTPStatus.INSUFFICIENT_STORAGE)

    def do_GET(self) -> None:
        path = self._known()
        if path is None:
            return
        key, _, query = path.partition("?")
        value = self.server.values.get(key, hold_s=0 if query == _NOW else _HOLD_S)
        if value is None:  # not put yet: the caller asks again
            self._answer(HTTPStatus.NOT_FOUND)
        else:
            self._answer(HTTPStatus.OK, body=value)

    def do_DELETE(self) -> None:
        if self._known() is not None:
            self._answer(HTTPStatus.OK)

    def _known(self) -> str | None:
        """The ``/scope/key`` of a path with the token, to which Horovod appends a port; refuses other paths."""
        first, _, rest = self.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(first.partition(":")[0].encode(), self.server.token.encode()):
            self._answer(HTTPStatus.FORBIDDEN)
            return None
        self.connection.settimeout(_SILENCE_S)
        return f"/{rest}"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Does nothing, to keep requests off the user's terminal."""

    def _answer(self, status: HTTPStatus, *, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
