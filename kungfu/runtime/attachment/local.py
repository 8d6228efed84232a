"""The attachment for peers of one machine: a compiled op over shared memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any, final

import tensorflow as tf

from kungfu import native
from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, UsageError
from kungfu.runtime.attachment.mesh import Mesh, close, connect_mesh
from kungfu.runtime.attachment.norms import STANDS_FOR_NORM, NormsWanted
from kungfu.runtime.attachment.protocol import (
    AbandonReason,
    Attachment,
    LateRanks,
    SilentRanks,
    check_rank,
    check_tensors,
    no_abandon_reason,
)
from kungfu.runtime.ipc import memfd
from kungfu.runtime.ipc.handshake import Credentials

_ERROR_BYTES = 512
_TEXT_BYTES = 1024
_TAG_BYTES = 256
_MOST_PEERS = 256  # in a group


class _FailureKind(IntEnum):
    """The kinds of failure of ``native/all_reduce/failure.h``."""

    NONE = 0
    PEER_GONE = 1
    LATE = 2
    PEERS_DIFFER = 3
    CLOSED = 4


@final
class LocalAttachment(Attachment):
    """All-reduce over shared memory among the peers of one machine.

    While the attachment is closed, or open with size 1, it is the identity. While it is open, a thread that no Python
    code can block sends a heartbeat five times a second.

    Args:
        group: An integer by which the graph's ops find their connection; attachments that are open in one process at
            the same time need different numbers.
        heartbeat_s: Seconds without a heartbeat until a process counts as gone; the observer counts these seconds by
            its own heartbeats.

    >>> alone, order = LocalAttachment(), tf.Variable(0)
    >>> sums = alone.all_reduce([[1.0, 2.0], [3.0]], prescale=0.5, order=order, tag="gradients")
    >>> [total.numpy().tolist() for total in sums]
    [[0.5, 1.0], [3.0]]
    """

    name = "local"

    def __init__(self, *, group: int = 0, heartbeat_s: float = 5.0) -> None:
        self._group, self._heartbeat_s = group, heartbeat_s
        self._view, self._size = 0, 1

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        """The sum over peers of every tensor: the left fold in rank order, ``((x0 + x1) + x2) + ...``.

        All tensors travel in one message; each addition is rounded to the tensor's dtype, so the sum equals NumPy's bit
        for bit. Works in eager and in traced code; ``open`` and ``close`` also take effect in ops traced before.

        Raises:
            UsageError: There are no tensors, or a dtype is not supported.
            tf.errors.UnavailableError: ``kungfu: peer rank=R died during TAG`` (or ``left``), or ``kungfu: peer rank=R
                shows no life for S s in TAG``.
            tf.errors.DeadlineExceededError: ``kungfu: waited S s in TAG for rank=R,...``.
            tf.errors.InternalError: ``kungfu: peers differ: ...``.
            tf.errors.CancelledError: This peer closed the attachment in the meantime. `failure_of` converts each of
                these errors, with the ranks. After an error, every later call raises the same error, on all peers,
                until the next ``open`` or ``close``.

        Cost:
            One message; two barriers of the peers per 256 KiB.
        """
        nothing = NormsWanted(values=False, sums=False)
        return self.all_reduce_with_norms(values, wanted=nothing, prescale=prescale, order=order, tag=tag)[0]

    def all_reduce_with_norms(
        self, values: Sequence[Any], *, wanted: NormsWanted, prescale: Any, order: Any, tag: str
    ) -> tuple[list[Any], Any, Any]:
        """``all_reduce``, with the squared norms of the values and of the sums, computed while the values are copied.

        See `Attachment` for the norms. They have the same bits on every processor, for every number of peers and
        threads, and for both ways of copying (with AVX2 if the processor has it).

        Cost:
            Negligible with AVX2; without AVX2, about 0.1 ms per million float32 for each norm. Both figures are for
            values that are not in the processor's caches.
        """
        tensors = [tf.convert_to_tensor(value) for value in values]
        check_tensors(tensors)
        scale, factor = (
            tf.cast(tf.convert_to_tensor(one, dtype_hint=tf.float64), tf.float64) for one in (prescale, wanted.factor)
        )
        which = tf.stack([tf.convert_to_tensor(wanted.values), tf.convert_to_tensor(wanted.sums)])
        sums, of_values, of_sums = native.load().ops.kungfu_all_reduce(
            order.handle, scale, which, factor, tensors,
            group=self._group, tag=tag, stands_for_norm=STANDS_FOR_NORM,
        )  # fmt: skip
        return list(sums), of_values, of_sums

    def open(
        self,
        me: Credentials,
        *,
        deadline_s: float,
        addresses: Sequence[str],
        rendezvous: str = "",
        abandoned: AbandonReason = no_abandon_reason,
    ) -> None:
        """Connects the op to the peers of a view; see `Attachment.open`.

        ``addresses`` and ``rendezvous`` are not needed, and the job's name may have at most 64 bytes. An all-reduce
        waits up to ``deadline_s`` for another peer, unless ``wait_at_most`` sets another limit.

        Raises:
            UsageError: Also if the job's name is too long, or another process runs as this peer.
        """
        self.close()
        check_rank(me)
        self._view, self._size = me.view, me.size
        if me.size == 1:  # no group is registered: the op is the identity
            return
        deadline = time.monotonic() + deadline_s
        mesh = connect_mesh(me, deadline_s=deadline_s, abandoned=abandoned)
        try:
            self._connect(me, mesh, deadline_s=deadline_s, deadline=deadline)
        finally:  # the group keeps its own duplicates
            close(mesh)

    def wait_at_most(self, deadline_s: float) -> None:
        """Limits how long an all-reduce, even the present one, waits for a living peer; valid until the next ``open``.

        Takes about a microsecond; has no effect if the attachment is closed.
        """
        native.load().functions.kungfu_group_wait_at_most(self._group, deadline_s)

    def late(self) -> LateRanks | None:
        """The latest wait for late peers, if above `noted_after_s`; given once, on the lowest rank that waited."""
        ranks, waited_s = (ctypes.c_int * _MOST_PEERS)(), ctypes.c_double()
        tag = ctypes.create_string_buffer(_TAG_BYTES)
        take = native.load().functions.kungfu_group_late
        count = take(self._group, ranks, _MOST_PEERS, ctypes.byref(waited_s), tag, _TAG_BYTES)
        return LateRanks(tuple(ranks[:count]), waited_s.value, tag.value.decode(errors="replace")) if count else None

    def silent(self) -> SilentRanks:
        """The ranks whose processes have sent no heartbeat for ``heartbeat_s`` seconds, even between messages."""
        # The view is read first: if another view opens meanwhile, no peer can have been silent in it for long.
        view, ranks = self._view, (ctypes.c_int * _MOST_PEERS)()
        count = native.load().functions.kungfu_group_silent(self._group, ranks, _MOST_PEERS)
        return SilentRanks(view, tuple(ranks[:count]))

    def failure_of(self, error: Any) -> KungfuError | None:
        """The failure of the last message, with the ranks at fault; ``None`` without a failure since ``open``.

        The failure is read from the compiled op's record, since ``error`` has only a code and a text. The record
        applies to every later message, because all messages of a broken group fail.
        """
        if self._size == 1:
            return None
        ranks, count, waited_s = (ctypes.c_int * _MOST_PEERS)(), ctypes.c_int(), ctypes.c_double()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        ask = native.load().functions.kungfu_group_failure
        known = ctypes.byref(count), ctypes.byref(waited_s)
        kind = ask(self._group, ranks, _MOST_PEERS, *known, text, _TEXT_BYTES)
        said, at_fault = text.value.decode(errors="replace"), ranks[: count.value]
        match kind:
            case _FailureKind.NONE:  # another op of the program failed
                return None
            case _FailureKind.LATE:  # alive, but not there within the deadline
                return DeadlineExceeded(said, waiting_for=at_fault, waited_s=waited_s.value, view=self._view)
            case _FailureKind.PEERS_DIFFER:  # not all run the same program
                return InternalError(said)
            case _:  # a peer is gone, or this peer has left
                return PeerFailure(said, ranks=at_fault, view=self._view)

    def leave(self) -> None:
        """Leaves the group, but sends and checks heartbeats until the next ``open`` or ``close``: after one peer died,
        this peer may still detect that another peer is frozen. Idempotent."""
        native.load().functions.kungfu_group_leave(self._group)

    def close(self) -> None:
        """Disconnects the op: the others see this peer leave, and the op becomes the identity. Idempotent."""
        # For example, the program exits because the library did not compile: compiling it again would hide that error.
        if not native.is_loaded():
            return
        native.load().functions.kungfu_group_close(self._group)

    def _connect(self, me: Credentials, mesh: Mesh, *, deadline_s: float, deadline: float) -> None:
        library = native.load().functions
        memory_bytes = library.kungfu_memory_bytes(me.size)
        if memory_bytes < 0:
            raise UsageError(f"the local attachment has no room for {me.size} peers")
        descriptor = _shared(me, mesh, memory_bytes, deadline)
        sockets = (ctypes.c_int * me.size)(*(mesh[q].fileno() if q in mesh else -1 for q in range(me.size)))
        reason = ctypes.create_string_buffer(_ERROR_BYTES)
        try:
            waits = deadline_s, self._heartbeat_s
            failed = library.kungfu_group_open(
                self._group, me.rank, me.size, descriptor, memory_bytes, sockets, *waits, reason, _ERROR_BYTES
            )
        finally:
            os.close(descriptor)
        if failed:
            raise InternalError(f"the local attachment cannot be opened: {reason.value.decode()}")


def _shared(me: Credentials, mesh: Mesh, memory_bytes: int, deadline: float) -> int:
    # Rank 0 creates the memory and sends its descriptor; every other rank waits for the descriptor.
    if me.rank != 0:
        left_s = max(deadline - time.monotonic(), 0.001)
        return memfd.receive(mesh[0], bytes_=memory_bytes, deadline_s=left_s, rank=0)
    with ExitStack() as undo:
        descriptor = memfd.make(memory_bytes)
        undo.callback(os.close, descriptor)
        for rank, connection in mesh.items():
            memfd.send(connection, descriptor=descriptor, rank=rank)
        undo.pop_all()
    return descriptor
