"""Says who is late while the others still wait: a wait that lasts is told before its deadline ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kungfu.event_log.events import LateEvent
from kungfu.runtime.api import LateRanks

__all__ = ["keep_lookout"]

_LOOK_EVERY_S = 1.0


def keep_lookout(
    late: Callable[[], LateRanks | None], tell: Callable[[LateEvent], None], *, steps: Callable[[], int]
) -> Callable[[], None]:
    """Looks every second, in a thread, whether the attachment waits for somebody; gives what ends the thread.

    ``late`` is the attachment's, ``tell`` takes the event, ``steps`` gives the number of steps done so far.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_EVERY_S):
            found = late()
            if found is not None:
                tell(_event(found, steps=steps()))

    thread = threading.Thread(target=look, name="kungfu-lookout", daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


def _event(late: LateRanks, *, steps: int) -> LateEvent:
    return LateEvent(ranks=tuple(late.ranks), where=late.tag, step=steps, waited_s=round(late.waited_s, 3))
