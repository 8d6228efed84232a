"""The taker's side: the state comes in parts from several peers at once, straight into the variables' own memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from kungfu.errors import DeadlineExceeded
from kungfu.runtime.attachment.protocol import Abandoned, never
from kungfu.runtime.core.transfer import SourceSlice
from kungfu.runtime.state import far, near
from kungfu.runtime.state.buffers import Buffers
from kungfu.runtime.state.place import Place
from kungfu.runtime.state.state import Memory

__all__ = ["fetch"]

_LOOK_S = 0.1


def fetch(state: Memory, place: Place, *, abandoned: Abandoned = never) -> None:
    """Fills ``state`` with that of the peers that hold it, as ``deciding.transfer.plan`` says.

    ``abandoned`` is asked ten times a second: a failure that it gives ends the transfer. Nothing is held beside the
    state but 4 MiB for each of at most four sources, or the messages that are on their way.

    Raises ``PeerFailure`` for a source that is gone, or that one; ``DeadlineExceeded`` for one that gives
    nothing for ``place.deadline_s``, both with the rank, its bytes and how many came. The state is neither the old one
    nor the new one then.
    """
    with state.overwritten() as buffers:
        transfer = place.transfers(buffers.total_bytes)[place.rank]
        # In a later turn the first bytes come when those of the turns before have all come.
        patience_s = place.deadline_s * (transfer.turn + 1)
        lanes = [_Lane(part, place, patience_s) for part in transfer.parts if part.start < part.stop]
        with ThreadPoolExecutor(max(1, len(lanes)), thread_name_prefix="kungfu-fetch") as pool:
            try:
                _await([pool.submit(lane.run, buffers) for lane in lanes], lanes, abandoned)
            except BaseException:
                for lane in lanes:
                    lane.cut()
                raise


def _await(running: Sequence[Future[None]], lanes: Sequence[_Lane], abandoned: Abandoned) -> None:
    pending = set(running)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        for one in done:
            one.result()
        if pending and (failure := abandoned()) is not None:
            raise failure.prefixed("the transfer of the state was abandoned: ")
        for lane in lanes:
            lane.check()


@dataclass
class _Lane:
    """One part on its way. ``patience_s`` is for the first bytes, later ones have the deadline of every wait."""

    part: SourceSlice
    place: Place
    patience_s: float
    came: int = 0
    heard: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _hang_up: Callable[[], None] | None = lambda: None

    def run(self, buffers: Buffers) -> None:
        if self._near:
            near.take(buffers, self.part, self.place, patience_s=self.patience_s, on_open=self._opened)
        else:
            far.take(buffers, self.part, self.place, on_open=self._opened, on_progress=self._progressed)

    def cut(self) -> None:
        """Ends it at once, whatever it waits for."""
        with self._lock:
            hang_up, self._hang_up = self._hang_up, None
        if hang_up is not None:
            hang_up()

    def check(self) -> None:
        """``DeadlineExceeded`` if nothing has come over the network for too long; over memory, waits end themselves."""
        silent_s = time.monotonic() - self.heard
        if not self._near and self.came < self.part.stop - self.part.start and silent_s > self.patience_s:
            raise DeadlineExceeded(
                f"waited {silent_s:.1f} s for {near.named(self.part)}: "
                f"{self.came} of {self.part.stop - self.part.start} bytes came",
                waiting_for=[self.part.source],
                waited_s=silent_s,
                view=self.place.view.version,
            )

    @property
    def _near(self) -> bool:
        peers = self.place.view.peers
        return peers[self.part.source].host == peers[self.place.rank].host

    def _opened(self, hang_up: Callable[[], None]) -> bool:
        with self._lock:
            if self._hang_up is None:
                return False
            self._hang_up = hang_up
            return True

    def _progressed(self, came: int) -> None:
        self.came, self.heard, self.patience_s = came, time.monotonic(), self.place.deadline_s
