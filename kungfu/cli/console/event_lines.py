"""The lines of events while a job runs: a rule that sets something in every step does not fill the screen.

The first setting of a rule is told at once. Those that follow are held, and told as one line, in the words of
``kungfu why``: before the next event that is told, at the end, and at the latest after `HOLD_S` seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kungfu.event_log.events import LoggedEvent, SetEvent, SettingRun, joined_to_run

HOLD_S = 30.0


class EventLines:
    """Tells events in lines, from many threads, in the order in which they come.

    Args:
        tell: Takes each line.
        clock: Seconds, by which held settings get due.
    """

    def __init__(self, tell: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._begun: set[tuple[str, str]] = set()  # rule and setting of each run whose first setting was told
        self._held: dict[tuple[str, str], SetEvent | SettingRun] = {}
        self._held_since = 0.0

    def event(self, event: LoggedEvent) -> None:
        """Tells an event, or holds it where it continues with the settings of its rule."""
        line = event.one_line()
        with self._lock:
            if not isinstance(event, SetEvent) or event.what == "stop":
                # Something else is told: all runs of settings end here.
                if line:
                    self._tell_held()
                    self._begun.clear()
                    self._tell(line)
            elif (key := (event.rule, event.what)) in self._begun:
                # One more setting of a run: it waits for the others.
                self._held_since = self._held_since if self._held else self._clock()
                self._held[key] = joined_to_run(self._held.get(key), event)
            else:
                # The first setting of a run.
                self._begun.add(key)
                self._tell(line)

    def tell_due(self) -> None:
        """Tells the settings that are held, where the first of them has waited for `HOLD_S`; their runs continue."""
        with self._lock:
            if self._held and self._clock() - self._held_since >= HOLD_S:
                self._tell_held()

    def tell_rest(self) -> None:
        """Tells the settings that are held, at the end of a job."""
        with self._lock:
            self._tell_held()

    def _tell_held(self) -> None:
        for run in self._held.values():
            self._tell(run.one_line())
        self._held.clear()
