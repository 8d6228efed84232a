"""The receiver's side of a transfer: the state comes in parts from several peers at once, straight into the memory of
the variables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.attachment.protocol import AbandonReason, no_abandon_reason
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.grpc_transfer import receive_over_network
from kungfu.runtime.state.replicated_state import StateMemory
from kungfu.runtime.state.shared_memory_transfer import in_words, receive_over_memory
from kungfu.runtime.state.transfer_context import TransferContext

_LOOK_S = 0.1


def fetch(state: StateMemory, context: TransferContext, *, abandoned: AbandonReason = no_abandon_reason) -> None:
    """Fills ``state`` with that of the peers that hold it, in the parts of ``core.transfer.plan``.

    Args:
        state: The memory to be filled.
        context: The view, this peer's rank in it, and which ranks hold the state.
        abandoned: Is asked ten times a second: a failure that it gives ends the transfer.

    Raises:
        PeerFailure: A source is gone, or ``abandoned`` gave this failure.
        DeadlineExceeded: A source sent nothing for ``context.deadline_s`` seconds. Both name the rank, its bytes, and
            how many came. The state is neither the old one nor the new one then.

    Cost:
        Beside the state, 4 MiB for each of at most four sources, or the messages that are on their way.
    """
    with state.writable() as buffers:
        transfer = context.transfers(buffers.total_bytes)[context.rank]
        # In a later turn the first bytes come when those of the turns before have all come.
        patience_s = context.deadline_s * (transfer.turn + 1)
        transfers = [_PartTransfer(part, context, patience_s) for part in transfer.parts if part.start < part.stop]
        with ThreadPoolExecutor(max(1, len(transfers)), thread_name_prefix="kungfu-fetch") as pool:
            try:
                _await([pool.submit(one.run, buffers) for one in transfers], transfers, abandoned)
            except BaseException:
                # One part has failed: the others are of no use without it.
                for one in transfers:
                    one.cut()
                raise


def _await(running: Sequence[Future[None]], transfers: Sequence[_PartTransfer], abandoned: AbandonReason) -> None:
    pending = set(running)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        # A part that has failed raises here, and ends the others.
        for one in done:
            one.result()
        # The view is broken, or this peer cannot enter it.
        if pending and (failure := abandoned()) is not None:
            raise failure.prefixed("the transfer of the state was abandoned: ")
        for transfer in transfers:
            transfer.check()


@dataclass
class _PartTransfer:
    """One part on its way. ``patience_s`` is for the first bytes, later ones have the deadline of every wait."""

    part: SourceSlice
    context: TransferContext
    patience_s: float
    came: int = 0
    heard: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _hang_up: Callable[[], None] | None = lambda: None

    def run(self, buffers: Buffers) -> None:
        """Receives the part, from memory that both processes share or over the network."""
        if self._same_host:
            receive_over_memory(buffers, self.part, self.context, patience_s=self.patience_s, on_open=self._on_open)
        else:
            receive_over_network(buffers, self.part, self.context, on_open=self._on_open, on_progress=self._on_progress)

    def cut(self) -> None:
        """Ends the transfer at once, whatever it waits for."""
        with self._lock:
            hang_up, self._hang_up = self._hang_up, None
        # It has begun, and was not cut before.
        if hang_up is not None:
            hang_up()

    def check(self) -> None:
        """``DeadlineExceeded`` if nothing has come over the network for too long; over memory, waits end themselves."""
        silent_s = time.monotonic() - self.heard
        if not self._same_host and self.came < self.part.stop - self.part.start and silent_s > self.patience_s:
            raise DeadlineExceeded(
                f"waited {silent_s:.1f} s for {in_words(self.part)}: "
                f"{self.came} of {self.part.stop - self.part.start} bytes came",
                waiting_for=[self.part.source],
                waited_s=silent_s,
                view=self.context.view.version,
            )

    @property
    def _same_host(self) -> bool:
        peers = self.context.view.peers
        return peers[self.part.source].host == peers[self.context.rank].host

    def _on_open(self, hang_up: Callable[[], None]) -> bool:
        """Remembers how to end the transfer; false if ``cut`` came first."""
        with self._lock:
            # It was cut before it had begun.
            if self._hang_up is None:
                return False
            self._hang_up = hang_up
            return True

    def _on_progress(self, came: int) -> None:
        self.came, self.heard, self.patience_s = came, time.monotonic(), self.context.deadline_s
