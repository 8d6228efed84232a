"""gRPC with the job's secret, deadlines and names: the only module that opens a channel or a server."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, TypeVar

import grpc

from kungfu.errors import DeadlineExceeded, PeerFailure, UsageError

__all__ = ["LOOK_S", "Lines", "RpcError", "Server", "call", "call_unless", "connect", "named", "serve"]

LOOK_S = 0.2  # between two looks at whether a wait is in vain

RpcError = grpc.RpcError

Reply = TypeVar("Reply")
_SECRET_KEY = "kungfu-secret"
_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a host that was away is seen soon when it is back
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class _SecretRequired(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

        def refuse(request: object, context: Any) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this job's secret is missing or wrong")

        self._refuse = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        given = dict(details.invocation_metadata).get(_SECRET_KEY, "")
        given = given.encode() if isinstance(given, str) else given
        return continuation(details) if hmac.compare_digest(given, self._secret) else self._refuse


class Server:
    """A started gRPC server on a free port of ``host``; ``address`` is where it listens."""

    def __init__(self, server: Any, address: str) -> None:
        self._server, self.address = server, address

    def stop(self) -> None:
        """Ends the service; calls under way get a moment to finish."""
        self._server.stop(grace=0.2).wait(1.0)


def serve(register: Callable[[Any], None], *, host: str, secret: str, threads: int, port: int = 0) -> Server:
    """Starts a server that answers only calls with ``secret``, on a free port if none is given; ``register`` adds the
    services to it. Raises ``UsageError`` where it cannot listen there."""
    server = grpc.server(
        futures.ThreadPoolExecutor(threads, thread_name_prefix="kungfu-rpc"),
        interceptors=[_SecretRequired(secret)],
        options=_OPTIONS,
    )
    register(server)
    try:
        port = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}; another program does, or {host} is no address of this machine"
        ) from error
    server.start()
    return Server(server, f"{host}:{port}")


class _SecretSent(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]  # grpc has no types
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def _signed(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), (_SECRET_KEY, self._secret)]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = _signed
    intercept_unary_stream = _signed


def connect(address: str, *, secret: str) -> Any:
    """A channel to ``address`` that adds the secret to every call."""
    return grpc.intercept_channel(grpc.insecure_channel(address, options=_OPTIONS), _SecretSent(secret))


class Lines:
    """Channels to other peers that stay open: to connect takes longer than to call."""

    def __init__(self, *, secret: str) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._channels: dict[str, Any] = {}

    def to(self, address: str) -> Any:
        """The channel to ``address``; it connects with its first call."""
        with self._lock:
            if address not in self._channels:
                self._channels[address] = connect(address, secret=self._secret)
            return self._channels[address]

    def keep(self, addresses: Iterable[str]) -> None:
        """Closes the channels to all others."""
        kept = set(addresses)
        with self._lock:
            gone = [self._channels.pop(address) for address in set(self._channels) - kept]
        for channel in gone:
            channel.close()


def call(method: Callable[..., Reply], request: Any, *, deadline_s: float, what: str) -> Reply:
    """Calls a remote method; ``what`` names the wait ("rank 2 at the barrier of step 40").

    Raises ``DeadlineExceeded`` when no answer came in time and ``PeerFailure`` when the other side is gone.
    """
    try:
        return method(request, timeout=deadline_s)
    except grpc.RpcError as error:
        raise named(error, what=what, deadline_s=deadline_s) from error


def call_unless(abandoned: Callable[[], str | None], method: Any, request: Any, *, deadline_s: float, what: str) -> Any:
    """The same for a wait that may be in vain: ``abandoned`` is asked five times a second, and a reason that it gives
    ends the wait with ``PeerFailure``."""
    answer = method.future(request, timeout=deadline_s)
    while True:
        try:
            return answer.result(timeout=LOOK_S)
        except grpc.FutureTimeoutError:
            if (reason := abandoned()) is not None:
                answer.cancel()
                raise PeerFailure(f"lost {what}: {reason}") from None
        except grpc.RpcError as error:
            raise named(error, what=what, deadline_s=deadline_s) from error


def named(error: Any, *, what: str, deadline_s: float) -> DeadlineExceeded | PeerFailure:
    """Our error for a failed call."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"waited {deadline_s:.1f} s for {what} and had no answer")
    return PeerFailure(f"lost {what}: {error.details() or error.code().name}")
