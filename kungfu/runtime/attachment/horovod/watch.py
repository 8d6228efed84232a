"""Gives up a message to which another peer does not come.

Horovod notices a peer whose engine is silent, but waits for ever for one whose engine answers while its program is
stuck or has taken another way: its own check for that finds nobody under Gloo. So a thread looks at the pulse of this
peer's messages. Who waits for long says so in the view's store; when the deadline expires, those who have not said so
are the late ones, and stopping the engine, here and with it everywhere, ends the wait with an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from kungfu.runtime.attachment.horovod.store import get_now, put

__all__ = ["Pulse", "Watch", "seen"]

_LOOKS = 16  # in one deadline
_WAITING, _GOING = b"waiting", b"going"


@dataclass(frozen=True)
class Pulse:
    """What was seen of a peer's messages: their counter, odd during a message, and since when, in seconds."""

    count: int
    since: float

    def waiting_s(self, now: float) -> float:
        """How long the message in flight has been waiting; 0 between messages.

        >>> Pulse(count=3, since=10.0).waiting_s(12.5), Pulse(count=4, since=10.0).waiting_s(12.5)
        (2.5, 0.0)
        """
        return now - self.since if self.count % 2 else 0.0


def seen(before: Pulse, *, count: int, now: float) -> Pulse:
    """The pulse after a look at ``now`` that found ``count``."""
    return before if count == before.count else replace(before, count=count, since=now)


@dataclass(frozen=True)
class Watch:
    """One peer's place in a view, and how to end a wait in it.

    ``store``: ``HOST:PORT``. ``look`` gives the counter of messages; ``give_up`` is told why, once.
    """

    rank: int
    size: int
    store: str
    deadline_s: float
    look: Callable[[], int]
    give_up: Callable[[str], None]

    def begin(self) -> Callable[[], None]:
        """Starts the thread; gives what stops it, which may be called once it has given up too."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopped,), name="kungfu-watch", daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            thread.join()

        return stop

    def _run(self, stopped: threading.Event) -> None:
        pulse, told = Pulse(count=0, since=time.monotonic()), _GOING
        while not stopped.wait(self.deadline_s / _LOOKS):
            now = time.monotonic()
            pulse = seen(pulse, count=self.look(), now=now)
            state = _WAITING if pulse.waiting_s(now) > 2 * self.deadline_s / _LOOKS else _GOING
            if state != told:
                told = self._tell(state)
            if pulse.waiting_s(now) > self.deadline_s:
                self.give_up(f"waited {pulse.waiting_s(now):.1f} s in a message for {self._late()}")
                return

    def _tell(self, state: bytes) -> bytes:
        with suppress(OSError):  # without the store a wait still ends, only without names
            put(self.store, key=_key(self.rank), value=state)
        return state

    def _late(self) -> str:
        try:
            late = [q for q in range(self.size) if q != self.rank and get_now(self.store, key=_key(q)) != _WAITING]
        except OSError as error:
            return f"a peer whose name is not known, because the store of rank 0 does not answer ({error})"
        names = ", ".join(map(str, late))
        return f"rank {names}" if late else "a peer that is in another message: not all run the same program"


def _key(rank: int) -> str:
    return f"/kungfu-waiting/{rank}"
