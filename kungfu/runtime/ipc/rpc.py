"""gRPC with the job's secret, deadlines, and errors that name the peer; no other module opens a channel or a server."""

from __future__ import annotations

import errno
import hmac
import os
import resource
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar

import grpc

from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError

LOOK_S = 0.2  # between two checks of whether a wait is abandoned
_SOON_S = 0.02  # before a call is repeated for the first time
_GRACE_S = 0.2  # for calls in progress when a server stops
_PROBE_S = 1.0  # for a port to refuse
# An idle connection is closed to make room for others. An idle caller of this job reconnects.
_BOUNDS = [("grpc.server_handshake_timeout_ms", 10_000), ("grpc.max_connection_idle_ms", 60_000)]

# The start of Linux' struct tcp_info, up to the number of received bytes; it includes the idle time in milliseconds.
_TCP_INFO_BYTES = 136

RpcError = grpc.RpcError
_Add = Callable[[Any, Any], None]
Value = TypeVar("Value")

_SECRET_KEY = "kungfu-secret"
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")  # of methods
_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),  # for a host that comes back
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In gRPC, this names the time of one connection attempt: long enough for a slow network or a machine under load.
    ("grpc.min_reconnect_backoff_ms", 3000),
]


class SecretRefused(PeerFailure):
    """The other end refuses this process's secret."""


class _SecretRequired(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses every call without the job's secret; ``ports`` are the callers' ports on which the secret was given."""

    def __init__(self, secret: str) -> None:
        self._secret, self.ports = secret.encode(), set[int]()

        def refuse(requests: object, context: Any) -> Iterator[None]:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this job's secret is missing or wrong")
            yield

        # A call without the secret is handled as a stream: for any other call a gRPC thread would wait for the request,
        # which may never arrive.
        self._refuse = grpc.stream_stream_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        given = dict(details.invocation_metadata).get(_SECRET_KEY, "")
        given = given.encode() if isinstance(given, str) else given
        if not hmac.compare_digest(given, self._secret):
            return self._refuse
        handler = continuation(details)
        return None if handler is None else self._noting(handler)

    def _noting(self, handler: Any) -> Any:
        """Wraps the handler of a method to record the caller's port, which is available only during a call."""
        kind = next(kind for kind in _KINDS if getattr(handler, kind) is not None)
        answer = getattr(handler, kind)

        def noted(request: Any, context: Any) -> Any:
            self.ports.add(int(context.peer().rpartition(":")[2]))
            return answer(request, context)

        return handler._replace(**{kind: noted})


class Server:
    """A started gRPC server on a port of ``host``; ``address`` is ``HOST:PORT``."""

    def __init__(self, server: Any, address: str, known: set[int]) -> None:
        self._server, self.address, self._known = server, address, known

    def end_strangers(self, *, per_address: int = 16, silent_s: float = 1.0, spoken_s: float = 10.0) -> None:
        """Ends connections on which the secret was not given, the longest idle first, so that they do not block others.

        Connections with the secret are kept, however long they are idle: a call may be waiting for its answer, and gRPC
        itself closes connections without a call.

        Args:
            per_address: The number of connections without the secret that each address may keep.
            silent_s: Seconds for which every connection without a received byte is kept: bytes may be on the way.
            spoken_s: Idle seconds for which every connection with received bytes is kept: a call may wait for a thread.

        Cost:
            Less than a millisecond with a hundred descriptors; no other call waits for it.
        """
        with ExitStack() as opened, suppress(OSError):
            strangers: dict[str, list[tuple[float, socket.socket]]] = {}
            known, gone = {*self._known}, {*self._known}
            for connection in _connections_at(int(self.address.rpartition(":")[2])):
                opened.enter_context(connection)
                host, port = connection.getpeername()[:2]
                gone.discard(port)
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                since_s, received = struct.unpack_from("I", info, 52)[0] / 1e3, struct.unpack_from("Q", info, 128)[0]
                if port not in known and since_s >= (spoken_s if received else silent_s):
                    strangers.setdefault(host, []).append((since_s, connection))
            self._known -= gone
            for found in strangers.values():
                found.sort(key=lambda one: one[0])
                for _, connection in found[per_address:]:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Ends the service; calls in progress have 0.2 s to finish."""
        try:
            stopped = self._server.stop(grace=_GRACE_S)
        # The server accepts no calls any more. gRPC could not start the grace period's thread: Python 3.12 starts none
        # after the end of the program, which closes all connections.
        except RuntimeError:
            time.sleep(_GRACE_S)
        else:
            stopped.wait(1.0)


def _connections_at(port: int) -> Iterator[socket.socket]:
    """Yields duplicates of this process's TCP connections at a local port, since gRPC does not expose them."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor was closed meanwhile, or none is free
            # To close a duplicate of a locked file would end the locks of this process on the file.
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            duplicate = os.dup(int(name))
            try:
                one = socket.socket(fileno=duplicate)
            except OSError:  # not a socket
                os.close(duplicate)
                continue
            with suppress(OSError):  # a listening socket
                if one.type == socket.SOCK_STREAM and one.getsockname()[1:2] == (port,) and one.getpeername():
                    yield one
                    continue
            one.close()


def serve(
    *services: tuple[_Add, Any], host: str, secret: str, threads: int, port: int = 0, connections: int = 512
) -> Server:
    """Starts a server that answers only calls with ``secret``.

    A call without the secret is refused before its request is read, and occupies no thread.

    Args:
        services: Pairs of the generated function that adds a service to a server, and the service.
        threads: The number of calls handled at a time.
        port: The port to listen on; 0 for a free one.
        connections: The maximum number of connections, at least eight per thread. At most half of this process's file
            descriptors are used, so that strangers cannot exhaust them.

    Raises:
        UsageError: The server cannot listen on this address.
    """
    _check_free(host, port)
    room, required = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, _SecretRequired(secret)
    server = grpc.server(
        futures.ThreadPoolExecutor(threads, thread_name_prefix="kungfu-rpc"),
        interceptors=[required],
        options=[
            *_OPTIONS,
            *_BOUNDS,
            ("grpc.max_concurrent_streams", max(100, threads)),
            ("grpc.max_allowed_incoming_connections", min(max(connections, 8 * threads), room)),
        ],
    )
    for add, service in services:
        add(service, server)
    try:
        port = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise UsageError(f"cannot listen on {host}:{port}") from error
    server.start()
    return Server(server, f"{host}:{port}", required.ports)


def _check_free(host: str, port: int) -> None:
    """Raises ``UsageError`` with the reason if no server can listen on ``host:port``; gRPC only logs the reason."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        why = "another program does; give another --port" if is_used else f"is {host} an address of this machine?"
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); {why}") from error


@contextmanager
def refusing(context: Any) -> Iterator[None]:
    """Within the block, a ``UsageError`` ends the gRPC call of ``context`` as ``INVALID_ARGUMENT``, with its text."""
    try:
        yield
    except UsageError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def receives(decode: Callable[[Any], Value]) -> Callable[[Callable[[Any, Value, Any], Any]], Callable[..., Any]]:
    """Decorates a service method that receives the decoded message; a message that ``decode`` refuses ends the call."""

    def decoded(method: Callable[[Any, Value, Any], Any]) -> Callable[..., Any]:
        @wraps(method)
        def receive(service: Any, request: Any, context: Any) -> Any:
            with refusing(context):
                value = decode(request)
            return method(service, value, context)

        return receive

    return decoded


class Method:
    """A remote method of the service at ``address``, called with the job's secret, if there is one."""

    def __init__(self, method: Any, address: str, secret: str) -> None:
        self._method, self.address, self._metadata = method, address, ((_SECRET_KEY, secret),) if secret else ()

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        return self._method(request, timeout=timeout, metadata=self._metadata)

    def future(self, request: Any, timeout: float | None = None) -> Any:
        return self._method.future(request, timeout=timeout, metadata=self._metadata)


class Channel:
    """A channel to ``address`` that adds the job's secret to every call; a ``with`` block closes the channel."""

    def __init__(self, address: str, secret: str, options: Sequence[tuple[str, int]]) -> None:
        self.address, self._secret = address, secret
        self._channel = grpc.insecure_channel(address, options=options)

    def unary_unary(self, *arguments: Any, **named: Any) -> Method:
        """Creates a `Method` with a single answer; called by generated stubs."""
        return Method(self._channel.unary_unary(*arguments, **named), self.address, self._secret)

    def unary_stream(self, *arguments: Any, **named: Any) -> Method:
        """Creates a `Method` with a stream of answers; called by generated stubs."""
        return Method(self._channel.unary_stream(*arguments, **named), self.address, self._secret)

    def stream_stream(self, *arguments: Any, **named: Any) -> Method:
        """Creates a `Method` with streams in both directions; called by generated stubs."""
        return Method(self._channel.stream_stream(*arguments, **named), self.address, self._secret)

    def close(self) -> None:
        """Ends the calls in progress, and refuses later ones."""
        self._channel.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect(address: str, *, secret: str, shared: bool = True) -> Channel:
    """A channel to ``address`` (``HOST:PORT``); the first call opens the connection. A program that is not part of the
    job gets an empty ``secret``, which is not sent.

    A ``shared`` channel shares one connection with other channels of this process to this address."""
    return Channel(address, secret, _OPTIONS if shared else [*_OPTIONS, ("grpc.use_local_subchannel_pool", 1)])


class ChannelPool:
    """Channels to other peers that stay open, since connecting takes longer than calling."""

    def __init__(self, *, secret: str) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}

    def to(self, address: str) -> Channel:
        """The channel to ``address``, created if there is none; the first call opens the connection."""
        with self._lock:
            if address not in self._channels:
                self._channels[address] = connect(address, secret=self._secret)
            return self._channels[address]

    def keep(self, addresses: Iterable[str]) -> None:
        """Closes all channels except those to these addresses."""
        kept = set(addresses)
        with self._lock:
            gone = [self._channels.pop(address) for address in set(self._channels) - kept]
        for channel in gone:
            channel.close()


def call(
    method: Method,
    request: Any,
    *,
    deadline_s: float,
    what: str,
    peer: int | None = None,
    abandoned: Callable[[], PeerFailure | None] | None = None,
) -> Any:
    """Calls a remote method, and repeats the call while its connection fails.

    A failed connection does not prove that the process at the other end has ended; a refusing port does. Since calls
    are repeated, the method must allow several calls with the same request.

    Args:
        deadline_s: Seconds for all attempts together.
        what: Names the wait in errors ("rank 2 at the barrier of step 40").
        peer: The id of the called peer, for errors; ``None`` if an agent is called.
        abandoned: Called five times a second; a failure that it returns ends the wait. The failure names the lost
            peers; the called peer need not be one of them.

    Returns:
        The answer.

    Raises:
        DeadlineExceeded: No answer arrived in time.
        PeerFailure: The wait was abandoned, or the other side has ended or answers with an error.
    """
    until, pause_s = time.monotonic() + deadline_s, _SOON_S
    while True:
        timeout_s = max(0.0, until - time.monotonic())
        try:
            if abandoned is None:
                return method(request, timeout=timeout_s)
            return _answered_unless(abandoned, method.future(request, timeout=timeout_s), what)
        except grpc.RpcError as error:
            # The other end has answered with an error, or its process has ended.
            if not is_passing(error, method.address):
                raise named(error, what=what, deadline_s=deadline_s, peer=peer) from error
            # The connection has failed, and there is no time for another attempt.
            if time.monotonic() + pause_s > until:
                raise _unanswered(what, deadline_s, peer) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)


def _answered_unless(abandoned: Callable[[], PeerFailure | None], answer: Any, what: str) -> Any:
    while True:
        # The wait is pointless, although the call itself might still be answered after a long time.
        if (failure := abandoned()) is not None:
            answer.cancel()
            raise failure.prefixed(f"lost {what}: ")
        with suppress(grpc.FutureTimeoutError):
            return answer.result(timeout=LOOK_S)


def is_passing(error: Any, address: str) -> bool:
    """True if only the connection of a call failed, so that a repetition may be answered."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and not is_refused(address)


def is_refused(address: str, *, within_s: float = _PROBE_S) -> bool:
    """True if no process listens at ``HOST:PORT``; waits for an answer of the machine for ``within_s`` seconds.

    A refusal is the only network sign that a process has ended: without any answer, the link may be down or the machine
    slow.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=within_s):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False


def named(error: Any, *, what: str, deadline_s: float, peer: int | None = None) -> DeadlineExceeded | PeerFailure:
    """The kungfu error for a failed gRPC call, with the id of the called peer; no id if an agent was called."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _unanswered(what, deadline_s, peer)
    kind = SecretRefused if error.code() is grpc.StatusCode.UNAUTHENTICATED else PeerFailure
    return kind(f"lost {what}: {error.details() or error.code().name}", peers=() if peer is None else (peer,))


def _unanswered(what: str, waited_s: float, peer: int | None) -> DeadlineExceeded:
    text = f"waited {waited_s:.1f} s for {what} and had no answer"
    return DeadlineExceeded(text, waited_s=waited_s, peers=() if peer is None else (peer,))
