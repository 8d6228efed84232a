"""The attachment for peers on several machines: Horovod with Gloo, restarted for every view under the same graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, final

from kungfu.errors import KungfuError, UsageError
from kungfu.runtime.attachment.horovod import engine, message
from kungfu.runtime.attachment.horovod.gloo_rendezvous import wait_for_all
from kungfu.runtime.attachment.horovod.key_value_store import KeyValueStore
from kungfu.runtime.attachment.horovod.stall_detector import StallDetector
from kungfu.runtime.attachment.protocol import AbandonReason, Attachment, LateRanks, check_rank, no_abandon_reason
from kungfu.runtime.ipc.handshake import Credentials


@final
class HorovodAttachment(Attachment):
    """All-reduce through Horovod among peers of any hosts.

    Horovod has one engine per process, so only one attachment per process can be open. While the attachment is closed,
    or open with size 1, it is the identity and needs no engine. A wait for an engine that does not answer lasts for the
    deadline of ``open``, which Horovod cannot change later; ``wait_at_most`` applies to peers whose engines answer.
    The engines' ring visits one host after the other, see ``engine.topology_of``; all other ranks are the view's.

    Args:
        host: The name or IPv4 address under which the other peers reach this machine.
    """

    name = "horovod"

    def __init__(self, *, host: str = "127.0.0.1") -> None:
        self._host = host
        self._stores: list[KeyValueStore] = []  # of the current view, and of the next one
        self._engine_state = message.EngineState()
        self._stall: StallDetector | None = None
        self._stop_detector: Callable[[], None] = lambda: None

    def all_reduce(self, values: Sequence[Any], *, prescale: Any, order: Any, tag: str) -> list[Any]:
        """The sum over peers of every tensor, in the order of Gloo's ring; equal bit for bit on all peers.

        Works in eager and in traced code; ``open`` and ``close`` also take effect in ops traced before.

        Args:
            values: One or more tensors of float16, bfloat16, float32, float64, int32 or int64, any shapes; the same
                dtypes and shapes on all peers.
            prescale: Float64 scalar, the factor of all floating-point tensors except the last; exactly 0 gives zeros
                for any values. Integer tensors and the last tensor are not scaled.
            order: An integer variable on the CPU, incremented before and after the message; ops that use it run in
                program order.
            tag: The name of the message; equal on all peers, and different for messages of different tensors.

        Returns:
            Tensors of the dtypes and shapes of ``values``, equal on all peers.

        Raises:
            UsageError: There are no tensors, a dtype is not supported, or Horovod cannot be loaded.
            tf.errors.UnknownError: ``Horovod has been shut down``: a peer died, left, or did not arrive within the
                deadline, see ``failure_of``. Until the next ``open`` or ``close``, every later call on every peer
                raises this error or a ``FailedPreconditionError``.
            tf.errors.FailedPreconditionError: ``Horovod has not been initialized``, or ``Mismatched`` if the peers'
                tensors differ.

        Cost:
            One message per dtype, each about a millisecond (Horovod's cycle), and two copies of the tensors.
        """
        return message.all_reduce(values, prescale=prescale, order=order, state=self._engine_state, tag=tag)

    def prepare(self, size: int) -> str:
        """Starts a rendezvous store for the peers of a future view; returns the store's address, '' for size 1."""
        if size == 1:  # no other peer to meet
            return ""
        self._stores.append(KeyValueStore(self._host))
        return self._stores[-1].address

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

        The peers announce themselves at the store of rank 0 before their engines start.

        Raises:
            DeadlineExceeded: Also if the engines were not connected in time.
            PeerFailure: Also if rank 0 does not answer, or a peer died while the engines connected.
            UsageError: Also if there is no rendezvous, or the addresses do not match the view.
        """
        self._unplug(keep=rendezvous)
        check_rank(me)
        if me.size == 1:  # no engine: the op is the identity
            return
        if len(addresses) != me.size or not rendezvous:
            raise UsageError(
                f"a view of {me.size} peers needs as many addresses and a rendezvous; {len(addresses)} and "
                f"{rendezvous!r} were given"
            )
        mine = engine.topology_of(me.rank, addresses=addresses)
        # Horovod cannot name missing peers or refuse foreign ones, so all peers announce themselves first.
        wait_for_all(me, store=rendezvous, deadline=time.monotonic() + deadline_s, abandoned=abandoned)
        engine.start(mine, store=rendezvous, deadline_s=deadline_s, view=me.view, abandoned=abandoned)
        self._engine_state.size.assign(me.size)
        count = self._engine_state.message_count
        count.assign(0)
        self._stall = StallDetector(me, rendezvous, deadline_s, lambda: int(count.numpy()), engine.abort, abandoned)
        self._stop_detector = self._stall.begin()

    def close(self) -> None:
        """Disconnects the op: messages of the other peers fail, and the op becomes the identity. Idempotent."""
        self._unplug(keep="")

    def leave(self) -> None:
        """Disconnects the op, like ``close``, but without waiting for a lost peer whose machine is silent."""
        self._unplug(keep="", stop=engine.abort)

    def wait_at_most(self, deadline_s: float) -> None:
        """Sets the longest wait, in seconds, for a late peer whose engine answers; valid until the next ``open``."""
        if (stall := self._stall) is not None:  # another thread may close the attachment meanwhile
            stall.deadline_s = deadline_s

    def look_again(self) -> None:
        """Wakes the stall detector; see `Attachment.look_again`."""
        if (stall := self._stall) is not None:
            stall.woken.set()

    def late(self) -> LateRanks | None:
        """The latest wait for late peers, if above `noted_after_s`; given once, on the lowest rank that waited."""
        if (stall := self._stall) is None:
            return None
        late, stall.late = stall.late, None
        return late

    def failure_of(self, error: Any) -> KungfuError | None:
        """The failure described by Horovod's text; names the ranks for which the stall detector gave up waiting."""
        return engine.read_failure(str(error.message), gave_up=None if self._stall is None else self._stall.gave_up)

    def _unplug(self, *, keep: str, stop: Callable[[], None] = engine.stop) -> None:
        if self._stall is not None:
            self._stop_detector()
            self._stall = None
            self._engine_state.size.assign(1)
            stop()
        # Other peers may use a store shortly after this peer has left its view, so stores are closed only here.
        for store in [store for store in self._stores if store.address != keep]:
            store.close()
            self._stores.remove(store)
