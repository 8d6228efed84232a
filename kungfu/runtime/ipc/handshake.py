"""The proof between two peers that they belong to the same view of the same job, over any stream socket.

The caller sends its rank, the size of its view and a nonce. The listener answers with its nonce and its proof: an HMAC
under the job's secret over both nonces and everything that the two must agree on. The caller checks the proof and sends
its own proof. The two proofs differ in their first word, so neither can be sent back as the other; fresh nonces make
old proofs useless. Only two integers of fixed length are parsed before the proof, and neither is trusted until then.

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
    """The facts that a peer proves in the handshake: its job, view, rank, size, and knowledge of the secret."""

    job: str
    view: int
    rank: int
    size: int
    secret: bytes


def call(connection: socket.socket, *, me: Credentials, listener: int) -> None:
    """Proves this peer's credentials to the peer of rank ``listener``, after checking the proof of that peer.

    Raises:
        PeerFailure: The proof of the other peer is wrong, or the connection ends early.
        TimeoutError: The socket's timeout has expired.
    """
    nonce = os.urandom(_NONCE_BYTES)
    connection.sendall(_HELLO.pack(_MAGIC, me.rank, me.size, nonce))
    reply = receive(connection, _NONCE_BYTES + _PROOF_BYTES)
    nonces = nonce + reply[:_NONCE_BYTES]
    expected = _proof(me, role="listener", caller=me.rank, listener=listener, nonces=nonces)
    # The listener is another program, or a peer of another job or view: nothing from it is trusted.
    if not hmac.compare_digest(reply[_NONCE_BYTES:], expected):
        raise PeerFailure(
            f"who listens as rank {listener} of view {me.view} of job {me.job!r} has not proved that it knows the "
            f"job's secret and its size {me.size}; give all peers of a job the same secret",
            ranks=[listener],
            view=me.view,
        )
    connection.sendall(_proof(me, role="caller", caller=me.rank, listener=listener, nonces=nonces))


def answer(connection: socket.socket, *, me: Credentials) -> int:
    """Checks the proof of a caller, and returns its rank.

    Raises:
        PeerFailure: The proof of the caller is wrong, or the connection ends early.
        TimeoutError: The socket's timeout has expired.
    """
    magic, caller, size, caller_nonce = _HELLO.unpack(receive(connection, _HELLO.size))
    # The caller is no peer of this version, or is in a view of another size.
    if magic != _MAGIC or size != me.size or not 0 <= caller < size:
        raise PeerFailure(f"a caller said {magic!r}, rank {caller}, size {size} to a peer of a view of size {me.size}")
    nonces = caller_nonce + os.urandom(_NONCE_BYTES)
    ours = _proof(me, role="listener", caller=caller, listener=me.rank, nonces=nonces)
    connection.sendall(nonces[_NONCE_BYTES:] + ours)
    expected = _proof(me, role="caller", caller=caller, listener=me.rank, nonces=nonces)
    # The caller knows the protocol but not the secret, or is in another view.
    if not hmac.compare_digest(receive(connection, _PROOF_BYTES), expected):
        raise PeerFailure(f"a caller that says it is rank {caller} has not proved that it knows the job's secret")
    return int(caller)


def _proof(me: Credentials, *, role: str, caller: int, listener: int, nonces: bytes) -> bytes:
    text = f"{role} {me.job!r} {me.view} {me.size} {caller} {listener} "
    return hmac.digest(me.secret, text.encode() + nonces, "sha256")


def receive(connection: socket.socket, count: int) -> bytes:
    """Returns exactly ``count`` bytes; raises ``PeerFailure`` if the connection ends earlier."""
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise PeerFailure(f"the connection ended {count - len(received)} bytes before the end of the handshake")
        received += part
    return received
