"""The proof between two peers that they belong to the same view of the same job, over any stream socket.

The caller says hello with its rank and a nonce. The answer is the listener's nonce and its proof, an HMAC under the
job's secret over both nonces and all that the two must agree on. The caller checks it and sends its own proof. The two
proofs differ in their first word, so neither can be sent back as the other; fresh nonces keep old ones from being of
use. Nothing is parsed but two integers of fixed length, and nothing is believed before its proof.

    caller                                   listener
      | -- rank, size, nonce ------------------> |
      | <------------- nonce, proof("listener") -|
      | -- proof("caller") --------------------> |
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from dataclasses import dataclass

from kungfu.errors import PeerFailure

_HELLO = struct.Struct("!8sii32s")
_MAGIC = b"kungfu-1"
_NONCE_BYTES = 32
_PROOF_BYTES = 32


@dataclass(frozen=True)
class Credentials:
    """The credentials of a peer: that it has this rank in this view of this job, and knows the job's secret."""

    job: str
    view: int
    rank: int
    size: int
    secret: bytes


def call(connection: socket.socket, *, me: Credentials, listener: int) -> None:
    """Proves this peer's credentials to the peer of rank ``listener``, after that one has proved its own.

    Raises:
        PeerFailure: The proof of the other peer is wrong, or it hangs up.
        TimeoutError: The socket's time-out has passed.
    """
    nonce = os.urandom(_NONCE_BYTES)
    connection.sendall(_HELLO.pack(_MAGIC, me.rank, me.size, nonce))
    reply = receive(connection, _NONCE_BYTES + _PROOF_BYTES)
    nonces = nonce + reply[:_NONCE_BYTES]
    expected = _proof(me, role="listener", caller=me.rank, listener=listener, nonces=nonces)
    # Another program listens there, or a peer of another job or view: nothing that it says is believed.
    if not hmac.compare_digest(reply[_NONCE_BYTES:], expected):
        raise PeerFailure(
            f"who listens as rank {listener} of view {me.view} of job {me.job!r} has not proved that it knows the "
            f"job's secret and its size {me.size}; give all peers of a job the same secret",
            ranks=[listener],
            view=me.view,
        )
    connection.sendall(_proof(me, role="caller", caller=me.rank, listener=listener, nonces=nonces))


def answer(connection: socket.socket, *, me: Credentials) -> int:
    """The rank of the caller, once it has proved that it belongs to this peer's view.

    Raises:
        PeerFailure: The proof of the caller is wrong, or it hangs up.
        TimeoutError: The socket's time-out has passed.
    """
    magic, caller, size, caller_nonce = _HELLO.unpack(receive(connection, _HELLO.size))
    # The caller is no peer of this version, or believes in a view of another size.
    if magic != _MAGIC or size != me.size or not 0 <= caller < size:
        raise PeerFailure(f"a caller said {magic!r}, rank {caller}, size {size} to a peer of a view of size {me.size}")
    nonces = caller_nonce + os.urandom(_NONCE_BYTES)
    ours = _proof(me, role="listener", caller=caller, listener=me.rank, nonces=nonces)
    connection.sendall(nonces[_NONCE_BYTES:] + ours)
    expected = _proof(me, role="caller", caller=caller, listener=me.rank, nonces=nonces)
    # The caller knows how to say hello, but not the secret, or is in another view.
    if not hmac.compare_digest(receive(connection, _PROOF_BYTES), expected):
        raise PeerFailure(f"a caller that says it is rank {caller} has not proved that it knows the job's secret")
    return int(caller)


def _proof(me: Credentials, *, role: str, caller: int, listener: int, nonces: bytes) -> bytes:
    text = f"{role} {me.job!r} {me.view} {me.size} {caller} {listener} "
    return hmac.digest(me.secret, text.encode() + nonces, "sha256")


def receive(connection: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes; ``PeerFailure`` if the connection ends before."""
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise PeerFailure(f"the connection ended {count - len(received)} bytes before the end of the handshake")
        received += part
    return received
