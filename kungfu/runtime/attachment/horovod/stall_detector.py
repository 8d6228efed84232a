"""The stall detector: ends a message in which another peer does not take part.

Horovod detects a peer whose engine is silent, but waits forever for a peer whose engine answers while its program is
stuck or runs another branch: its own stall check finds no rank under Gloo. So a thread watches the counter of this
peer's messages. A peer that has waited for a long time reports this in the view's key-value store; ranks without such a
report are late. After part of the deadline, the late ranks are noted. When the deadline expires, this peer's engine is
stopped; then all other engines stop too, and the wait ends with an error.

A machine that is frozen, cut off or without power closes no connection, and an engine waits for it until the deadline.
The agents notice earlier that the machine is lost, and tell this peer, which wakes the thread. It ends a message that
has not failed by itself after `_GRACE_S`. The store could be on that machine, so a second thread calls the store, and
the first never waits for an answer.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue

from kungfu.errors import DeadlineExceeded, PeerFailure
from kungfu.runtime.attachment.horovod.key_value_store import get_now, put
from kungfu.runtime.attachment.protocol import AbandonReason, LateRanks, no_abandon_reason
from kungfu.runtime.core.adaptive_deadline import noted_after_s
from kungfu.runtime.ipc.handshake import Credentials

_LOOKS = 16  # number of checks per deadline
_MOST_BETWEEN_LOOKS_S = 1.0  # the deadline may be shortened meanwhile
_GRACE_S = 0.2  # for an engine that fails by itself, with a better error, after the job has given up a peer
_WAITING, _GOING = b"waiting", b"going"


@dataclass(frozen=True)
class MessageProgress:
    """The progress of a peer's messages: a counter, odd during a message, and the time of its last change."""

    count: int
    since: float

    def waiting_s(self, now: float) -> float:
        """The seconds that the message in flight has been waiting at ``now``; 0 between messages."""
        return now - self.since if self.count % 2 else 0.0


def updated(before: MessageProgress, *, count: int, now: float) -> MessageProgress:
    """The progress after the message counter was read: it had the value ``count`` at the time ``now``."""
    return before if count == before.count else replace(before, count=count, since=now)


@dataclass
class StallDetector:
    """Detects and ends a stalled message of one peer of a view.

    Args:
        me: This peer and its view.
        store: The address of the view's key-value store.
        deadline_s: The longest wait of a message, in seconds; a changed value also applies to a message in progress.
        look: Returns the counter of messages, odd during a message.
        give_up: Ends the wait; called once.
        abandoned: Returns a failure once the job has given up a peer of the view.
        late: The late ranks, found once per message and only on the lowest waiting rank.
        gave_up: The error with which the wait was ended; ``None`` before.
        woken: Set to check at once, because the result of ``abandoned`` may have changed.
    """

    me: Credentials
    store: str
    deadline_s: float
    look: Callable[[], int]
    give_up: Callable[[], None]
    abandoned: AbandonReason = no_abandon_reason
    late: LateRanks | None = None
    gave_up: DeadlineExceeded | PeerFailure | None = None
    woken: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> Callable[[], None]:
        """Starts the detector's thread; returns a function that stops it and may be called even after ``give_up``."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopped,), name="kungfu-stall-detector", daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            self.woken.set()
            thread.join()

        return stop

    def _run(self, stopped: threading.Event) -> None:
        calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_call_all, args=(calls,), name="kungfu-stall-reports", daemon=True).start()
        try:
            self._watch(stopped, calls.put)
        finally:
            calls.put(None)

    def _watch(self, stopped: threading.Event, call_store: Callable[[Callable[[], None]], None]) -> None:
        progress, reported, noted = MessageProgress(count=0, since=time.monotonic()), _GOING, 0
        known_at = math.inf  # the time since which a peer of the view is known to be lost
        while True:
            self.woken.wait(min(self._between_looks_s(), _GRACE_S if known_at < math.inf else math.inf))
            self.woken.clear()
            if stopped.is_set():
                return
            now = time.monotonic()
            progress = updated(progress, count=self.look(), now=now)
            waiting_s = progress.waiting_s(now)
            # A state is reported only when it changes; a message that ends between two checks is not reported.
            state = _WAITING if waiting_s > 2 * self._between_looks_s() else _GOING
            if state != reported:
                reported = state
                call_store(partial(self._report, state))
            known_at = min(known_at, now) if (failure := self.abandoned()) is not None else math.inf
            # A peer of the view is lost, and its machine says nothing: an engine that can tell has failed by now.
            if failure is not None and min(waiting_s, now - known_at) >= _GRACE_S:
                self.gave_up = failure
                self.give_up()
                return
            # The deadline has expired: stopping the engine fails the message, here and everywhere.
            if waiting_s > self.deadline_s:
                self.gave_up = self._expired(waiting_s)
                self.give_up()
                return
            # Late enough to be noted, once per message.
            if waiting_s > noted_after_s(self.deadline_s) and noted != progress.count:
                noted = progress.count
                call_store(partial(self._note, waiting_s))

    def _between_looks_s(self) -> float:
        return min(self.deadline_s / _LOOKS, _MOST_BETWEEN_LOOKS_S)

    def _note(self, waiting_s: float) -> None:
        with suppress(OSError):  # without the store no peer knows which peers wait
            late = self._late_ranks()
            if late and min({*range(self.me.size)} - {*late}) == self.me.rank:
                self.late = LateRanks(tuple(late), waiting_s, "a message")

    def _report(self, state: bytes) -> None:
        with suppress(OSError):  # without the store the wait still ends, only without names
            put(self.store, key=_key(self.me.rank), value=state)

    def _late_ranks(self) -> list[int]:
        others = {*range(self.me.size)} - {self.me.rank}
        return [q for q in sorted(others) if get_now(self.store, key=_key(q)) != _WAITING]

    def _expired(self, waited_s: float) -> DeadlineExceeded:
        late: list[int] = []
        try:
            late = self._late_ranks()
            names = ", ".join(map(str, late))
            whom = f"rank {names}" if late else "a peer that is in another message: not all run the same program"
        except OSError as error:
            whom = f"a peer whose name is not known, because the store of rank 0 does not answer ({error})"
        text = f"waited {waited_s:.1f} s in a message for {whom}"
        return DeadlineExceeded(text, waiting_for=late, waited_s=waited_s)


def _call_all(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    for call in iter(calls.get, None):
        call()


def _key(rank: int) -> str:
    return f"/kungfu-waiting/{rank}"
