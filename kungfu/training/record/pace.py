"""The pace of a run on this peer: how long its steps and stops took, and how long a late peer is waited for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from kungfu.runtime.deciding.patience import KNOWN_STEPS, WINDOW_STEPS, plausible_wait_s
from kungfu.runtime.settings import Deadlines
from kungfu.training.record.durations import Durations

__all__ = ["Pace"]

# Steps are only noted, and counted so many at a time: to look at the window costs some 30 microseconds.
_LOOK_EVERY = 32


@dataclass
class _Experience:
    """The steps of one view: the last ones, the longest of all, and when the last of them ended."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    longest_s: float = 0.0
    steps: int = 0
    ended: float | None = None


@final
class Pace:
    """Told of every step, it counts the time from end to end, the program's own between steps included.

    Barriers are counted apart, and those that change the view once more, as stops. Every 32 steps ``wait_at_most`` is
    told what ``plausible_wait_s`` makes of them; in a new view nothing is known and the longest wait holds.
    """

    def __init__(
        self,
        deadlines: Deadlines | None = None,
        *,
        wait_at_most: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadlines, self._wait_at_most, self._clock = deadlines or Deadlines(), wait_at_most, clock
        self._view = _Experience()
        self._noted: list[float] = []  # the seconds of steps of this view that are not counted yet
        self._took = {name: Durations() for name in ("step_s", "barrier_s", "stop_s")}

    def entered(self) -> None:
        """A view begins; its attachment has just been opened."""
        self._count()
        self._view = _Experience()
        self._adjust()

    def held(self, seconds: float, *, changed: bool) -> None:
        """A barrier was held, in which the membership ``changed`` or not; its seconds are no step's."""
        self._took["barrier_s"].add(seconds)
        if changed:
            self._took["stop_s"].add(seconds)
        if self._view.ended is not None:
            self._view.ended += seconds

    def stepped(self) -> None:
        """A step has ended. The first of a view has no step before it, and does not count."""
        view, now = self._view, self._clock()
        if view.ended is not None:
            self._noted.append(now - view.ended)
            steps = view.steps + len(self._noted)
            if steps == KNOWN_STEPS or steps % _LOOK_EVERY == 0:
                self._count()
                self._adjust()
        view.ended = now

    def summary(self) -> dict[str, Any]:
        """Counts and percentiles of ``step_s``, ``barrier_s`` and ``stop_s``, in seconds, within 1 %."""
        self._count()
        return {name: took.summary() for name, took in self._took.items()}

    def _count(self) -> None:
        view, noted = self._view, self._noted
        for seconds in noted:
            self._took["step_s"].add(seconds)
        view.recent.extend(noted)
        view.longest_s, view.steps = max([view.longest_s, *noted]), view.steps + len(noted)
        noted.clear()

    def _adjust(self) -> None:
        if self._wait_at_most is None:
            return
        between = {"floor_s": self._deadlines.wait_s, "ceiling_s": self._deadlines.longest_wait_s}
        self._wait_at_most(plausible_wait_s(self._view.recent, longest_s=self._view.longest_s, **between))
