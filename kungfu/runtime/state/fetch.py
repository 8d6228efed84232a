"""The receiving side of a transfer: receives parts of the state from several peers at once.

A part from a peer of this host arrives through shared memory, and a part from another host as a gRPC stream. All parts
are written directly into the memory of the variables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from kungfu.errors import DeadlineExceeded, InternalError
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import PeerServiceStub
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.replicated_state import StateMemory, TransferContext
from kungfu.runtime.state.shared_memory_transfer import in_words, receive_over_memory

_LOOK_S, _RETRY_S = 0.1, 0.1


def fetch(state: StateMemory, context: TransferContext, *, abandoned: AbandonReason = no_abandon_reason) -> None:
    """Fills ``state`` from the peers that hold the state, in the parts of ``core.transfer.plan``.

    Raises:
        PeerFailure: A source is gone, or ``abandoned`` returned this failure.
        DeadlineExceeded: A source sent nothing for ``context.deadline_s`` seconds. Like ``PeerFailure``, it names the
            rank, the range of bytes, and the bytes received. After an error the state is neither the old nor the new.

    Cost:
        Additional memory: 4 MiB for each source on this host (at most four); for other sources, the messages in flight.
    """
    with state.writable() as buffers:
        transfer = context.transfers(buffers.total_bytes)[context.me.rank]
        # In a later turn the first bytes arrive only after all earlier turns are complete.
        patience_s = context.deadline_s * (transfer.turn + 1)
        transfers = [_PartTransfer(part, context, patience_s) for part in transfer.parts if part.start < part.stop]
        with ThreadPoolExecutor(max(1, len(transfers)), thread_name_prefix="kungfu-fetch") as pool:
            try:
                _await([pool.submit(one.run, buffers) for one in transfers], transfers, abandoned)
            except BaseException:
                # One part has failed: the others are useless without it.
                for one in transfers:
                    one.cut()
                raise


def _await(running: Sequence[Future[None]], transfers: Sequence[_PartTransfer], abandoned: AbandonReason) -> None:
    pending = set(running)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        # A failed part raises its error here, which ends the others.
        for one in done:
            one.result()
        # The view is broken, or this peer cannot enter it.
        if pending and (failure := abandoned()) is not None:
            raise failure.prefixed("the transfer of the state was abandoned: ")
        for transfer in transfers:
            transfer.check()


@dataclass
class _PartTransfer:
    """The transfer of one part.

    Attributes:
        patience_s: Seconds that the next bytes may take; the first bytes may take longer than later ones.
        heard: The time of the last bytes, or of the start.
    """

    part: SourceSlice
    context: TransferContext
    patience_s: float
    came: int = 0
    heard: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _hang_up: Callable[[], None] | None = lambda: None

    def run(self, buffers: Buffers) -> None:
        """Receives the part through shared memory if the source is on this host, else over the network."""
        if self._same_host:
            receive_over_memory(buffers, self.part, self.context, patience_s=self.patience_s, on_open=self._on_open)
        else:
            self._receive_over_network(buffers)

    def cut(self) -> None:
        """Ends the transfer at once, even during a wait."""
        with self._lock:
            hang_up, self._hang_up = self._hang_up, None
        # The transfer was not cut before.
        if hang_up is not None:
            hang_up()

    def check(self) -> None:
        """Raises ``DeadlineExceeded`` if the network is silent for too long; shared memory has its own deadlines."""
        silent_s = time.monotonic() - self.heard
        if not self._same_host and self.came < self._size and silent_s > self.patience_s:
            raise DeadlineExceeded(
                f"waited {silent_s:.1f} s for {in_words(self.part)}: {self.came} of {self._size} bytes came",
                waiting_for=[self.part.source],
                waited_s=silent_s,
                view=self.context.view.version,
            )

    @property
    def _size(self) -> int:
        return self.part.stop - self.part.start

    @property
    def _same_host(self) -> bool:
        peers = self.context.view.peers
        return peers[self.part.source].host == peers[self.context.me.rank].host

    def _on_open(self, hang_up: Callable[[], None]) -> bool:
        """Stores the function that ends the transfer; returns False if ``cut`` was called before."""
        with self._lock:
            # The transfer was cut before it began.
            if self._hang_up is None:
                return False
            self._hang_up = hang_up
            return True

    def _receive_over_network(self, buffers: Buffers) -> None:
        """Writes the stream from the source into memory as it arrives.

        Raises:
            PeerFailure: The source is gone, or refuses the request.
            DeadlineExceeded: The source could not begin in time, for example as an earlier rank lacks its part.
            InternalError: The number of received bytes is wrong.
        """
        part, view, me, began = self.part, self.context.view, self.context.me, time.monotonic()
        request = pb.FetchRequest(
            version=view.version, start=part.start, stop=part.stop, rank=me.rank, purpose=self.context.purpose
        )
        with rpc.connect(view.peers[part.source].address, secret=me.secret.hex()) as channel:
            # The transfer was cut before it began.
            if not self._on_open(channel.close):
                return
            try:
                for chunk in _chunks(channel, request):
                    start, self.came = part.start + self.came, self.came + len(chunk.data)
                    # More bytes than requested, which is an error below.
                    if self.came > self._size:
                        break
                    buffers.write(start, chunk.data)
                    self.heard, self.patience_s = time.monotonic(), self.context.deadline_s
            except rpc.RpcError as error:
                waited_s = time.monotonic() - began
                raise rpc.named(error, what=in_words(part), deadline_s=waited_s, peer=view.ids[part.source]) from error
        if self.came != self._size:
            raise InternalError(f"{in_words(part)}: {self.came} of {self._size} bytes came")


def _chunks(channel: rpc.Channel, request: pb.FetchRequest) -> Iterator[pb.StateChunk]:
    """The stream from the source; a failed connection is retried only until the first chunk arrives.

    A source serves each rank only once, so a later failure cannot be repaired by another request.
    """
    came = False
    while True:
        try:
            for chunk in PeerServiceStub(channel).Fetch(request):
                came = True
                yield chunk
            return
        except rpc.RpcError as error:
            # The source has begun to serve this rank, which it does only once; or the source or its port refuses.
            if came or not rpc.is_passing(error, channel.address):
                raise
        time.sleep(_RETRY_S)
