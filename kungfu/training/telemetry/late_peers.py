"""Tells of peers that are late while the others still wait, before the deadline ends the wait.

It is apart from `attach`, which only puts parts together: this one has a thread, with a beginning and an end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from kungfu.event_log.events import LateEvent
from kungfu.runtime.api import LateRanks

__all__ = ["LatePeerMonitor"]

_LOOK_EVERY_S = 1.0


@final
class LatePeerMonitor:
    """Looks every second, in a thread of its own, whether the attachment waits for somebody.

    The attachment gives each wait once, when it has lasted long enough to be told. The thread is a daemon: a
    monitor that nobody stops does not keep the program from ending.

    Args:
        late: The attachment's: the ranks that are waited for, ``None`` where nobody is.
        tell: Takes the event.
        steps: Gives the number of steps done so far.
    """

    def __init__(
        self, late: Callable[[], LateRanks | None], tell: Callable[[LateEvent], None], *, steps: Callable[[], int]
    ) -> None:
        self._late, self._tell, self._steps = late, tell, steps
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="kungfu-late-peers", daemon=True)

    def start(self) -> None:
        """Begins to look; once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after a look that is under way; nothing is told from then on."""
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            late = self._late()
            if late is not None:
                self._tell(_event(late, steps=self._steps()))


def _event(late: LateRanks, *, steps: int) -> LateEvent:
    return LateEvent(ranks=tuple(late.ranks), where=late.tag, step=steps, waited_s=round(late.waited_s, 3))
