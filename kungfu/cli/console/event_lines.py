"""Prints events as lines while a job runs, without flooding the screen if a rule sets a value in every step.

The first setting of a rule is printed at once. Later settings are held and printed as one line, in the words of
``kungfu why``: before the next event that is printed, at the end, or after `HOLD_S` seconds at the latest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kungfu.event_log.events import LoggedEvent, SetEvent, SettingRun, joined_to_run

HOLD_S = 30.0


class EventLines:
    """Prints events as lines, in order, by calling ``print_line``; may be called from many threads."""

    def __init__(self, print_line: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._print_line, self._clock = print_line, clock
        self._lock = threading.Lock()
        self._begun: set[tuple[str, str]] = set()  # rule and setting of each run with a printed first setting
        self._held: dict[tuple[str, str], SetEvent | SettingRun] = {}
        self._held_since = 0.0

    def event(self, event: LoggedEvent) -> None:
        """Prints an event at once, or holds it as a further setting of a rule."""
        line = event.one_line()
        with self._lock:
            if not isinstance(event, SetEvent) or event.what == "stop":
                # Any other event ends all runs of settings.
                if line:
                    self._print_held()
                    self._begun.clear()
                    self._print_line(line)
            elif (key := (event.rule, event.what)) in self._begun:
                # A further setting of a run is held.
                self._held_since = self._held_since if self._held else self._clock()
                self._held[key] = joined_to_run(self._held.get(key), event)
            else:
                # The first setting of a run is printed.
                self._begun.add(key)
                self._print_line(line)

    def print_due(self) -> None:
        """Prints the held settings once the first of them has waited for `HOLD_S`; their runs continue."""
        with self._lock:
            if self._held and self._clock() - self._held_since >= HOLD_S:
                self._print_held()

    def print_rest(self) -> None:
        """Prints the held settings at the end of a job."""
        with self._lock:
            self._print_held()

    def _print_held(self) -> None:
        for run in self._held.values():
            self._print_line(run.one_line())
        self._held.clear()
