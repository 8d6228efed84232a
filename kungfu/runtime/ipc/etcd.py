"""A client for the few calls of etcd v3 that a job needs: read, compare and swap, and leases.

The messages are our own excerpt of etcd's (``etcd.proto``); no call is newer than etcd 3.4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from kungfu.errors import KungfuError
from kungfu.runtime.ipc import etcd_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.etcd_pb2_grpc import KVStub, LeaseStub

_ADVICE = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "; free room (etcdctl compact, defrag, alarm disarm), or raise its quota",
    grpc.StatusCode.PERMISSION_DENIED: "; it must let everybody write, without a user name",
    grpc.StatusCode.INVALID_ARGUMENT: "; it must let everybody write, without a user name",
    grpc.StatusCode.UNIMPLEMENTED: "; is it an etcd 3.4 or later?",
    grpc.StatusCode.UNAVAILABLE: "; it must have most of its members, and no TLS, which is not supported yet",
}


class StoreError(KungfuError):
    """The etcd has refused a call, or has not answered in time; in the second case it may have carried the call out."""


@dataclass(frozen=True)
class Entry:
    """The value of a key, the ``revision`` of its last change, and its lease; 0 for a key without a lease."""

    value: bytes
    revision: int
    lease: int


class Etcd:
    """The keys of an etcd under one prefix.

    Args:
        address: ``HOST:PORT`` of the etcd.
        prefix: The common beginning of all keys; the methods take and return keys without it.
        deadline_s: The seconds for which each call waits for its answer.

    Raises:
        StoreError: The etcd has refused a call, or has not answered in time; raised by every method.
    """

    def __init__(self, address: str, prefix: str, *, deadline_s: float) -> None:
        self.address, self._prefix, self._deadline_s = address, prefix, deadline_s
        self._connect()

    def _connect(self) -> None:
        channel = rpc.connect(self.address, secret="", shared=False)
        self._kv, self._leases = KVStub(channel), LeaseStub(channel)

    def read(self) -> dict[str, Entry]:
        """All entries, in one consistent state."""
        end = self._prefix[:-1] + chr(ord(self._prefix[-1]) + 1)
        found = self._call(self._kv.Range, pb.RangeRequest(key=self._prefix.encode(), range_end=end.encode()))
        return {
            one.key.decode().removeprefix(self._prefix): Entry(one.value, one.mod_revision, one.lease)
            for one in found.kvs
        }

    def swap(
        self,
        expected: Mapping[str, int],
        put: Mapping[str, bytes],
        *,
        leased: Mapping[str, int] | None = None,
        removed: Collection[str] = (),
    ) -> bool:
        """Changes several keys at once, if all ``expected`` keys have these revisions (compare and swap).

        Args:
            expected: The expected revision of each key to compare; 0 for a key that must not exist.
            put: The new value of each key to set.
            leased: The lease of each key that exists only as long as its lease.
            removed: The keys to remove.

        Returns:
            False if an expected key has another revision; then nothing was changed.
        """
        compare = [
            pb.Compare(target=pb.Compare.MOD, key=self._key(name), mod_revision=revision)
            for name, revision in expected.items()
        ]
        puts = [
            pb.PutRequest(key=self._key(name), value=value, lease=(leased or {}).get(name, 0))
            for name, value in put.items()
        ]
        success = [
            *(pb.RequestOp(request_put=one) for one in puts),
            *(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self._key(name))) for name in removed),
        ]
        return bool(self._call(self._kv.Txn, pb.TxnRequest(compare=compare, success=success)).succeeded)

    def grant(self, ttl_s: int) -> int:
        """Grants a lease that ends ``ttl_s`` seconds after its last renewal, and returns its number."""
        return int(self._call(self._leases.LeaseGrant, pb.LeaseGrantRequest(TTL=ttl_s)).ID)

    def renew(self, lease: int) -> bool:
        """Renews a lease; returns False if the lease has ended."""
        with self._named():
            answers = self._leases.LeaseKeepAlive(iter([pb.LeaseKeepAliveRequest(ID=lease)]), timeout=self._deadline_s)
            # An etcd that is ending closes the stream without an answer.
            if (answer := next(answers, None)) is None:
                raise StoreError(f"etcd at {self.address} is ending")
            return bool(answer.TTL > 0)

    def revoke(self, lease: int) -> None:
        """Ends a lease, and removes its keys."""
        self._call(self._leases.LeaseRevoke, pb.LeaseRevokeRequest(ID=lease))

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()

    def _call(self, method: rpc.Method, request: Any) -> Any:
        with self._named():
            return method(request, timeout=self._deadline_s)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raises ``StoreError`` for the error of a gRPC call within the block."""
        try:
            yield
        except grpc.RpcError as error:
            name, code = f"etcd at {self.address}", error.code()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                # After an outage a fresh connection answers sooner than one whose packets were lost.
                self._connect()
                raise StoreError(f"{name} has not answered for {self._deadline_s:g} s") from error
            if code is grpc.StatusCode.UNAVAILABLE and rpc.is_refused(self.address):
                raise StoreError(f"{name} does not run: its port refuses connections") from error
            raise StoreError(f"{name}: {error.details() or code.name}{_ADVICE.get(code, '')}") from error
