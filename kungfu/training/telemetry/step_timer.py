"""The pace of a run on this peer: how long its steps and stops took, and how long a late peer is waited for."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from kungfu.runtime.api import KNOWN_STEPS, WINDOW_STEPS, Deadlines, plausible_wait_s

# The width of a bin, as a factor: its middle is within 1 % of everything in it.
_GROWTH = math.log(1.02)
_SHORTEST_S = 1e-6
_PERCENTILES = (50, 90, 99)


@final
class Durations:
    """Durations counted in bins that grow by 2 %, so that a percentile is right within 1 % (and 1 us).

    Cost:
        Half a microsecond each to add; a week of steps fills some hundred bins.

    >>> took = Durations()
    >>> for milliseconds in range(1, 101):
    ...     took.add(milliseconds / 1000)
    >>> took.summary()["count"], took.summary()["max"], round(took.percentile(50), 3)
    (100, 0.1, 0.05)
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._longest = 0.0

    def add(self, seconds: float) -> None:
        """One more; costs about half a microsecond."""
        self._counts[math.floor(math.log(max(seconds, _SHORTEST_S)) / _GROWTH)] += 1
        self._longest = max(self._longest, seconds)

    def percentile(self, percent: float) -> float:
        """The shortest duration, in seconds, that ``percent`` (above 0, to 100) of all do not exceed; NaN of none."""
        wanted, seen = percent / 100 * self._counts.total(), 0
        for place in sorted(self._counts):
            seen += self._counts[place]
            if seen >= wanted:  # the middle of the bin, which for the last one may lie above the longest of all
                return min(math.exp((place + 0.5) * _GROWTH), self._longest)
        return math.nan

    def summary(self) -> dict[str, Any]:
        """The count of durations, their 50th, 90th and 99th percentile and the longest, in seconds; only 0 of none."""
        count = self._counts.total()
        if not count:  # no percentile of nothing
            return {"count": 0}
        marks = {f"p{percent}": float(f"{self.percentile(percent):.4g}") for percent in _PERCENTILES}
        return {"count": count, **marks, "max": round(self._longest, 6)}


# Steps are only noted, and counted this many at a time: to look at the window costs some 30 microseconds.
_LOOK_EVERY = 32


@dataclass
class _Experience:
    """The steps of one view: the last ones, the longest of all, and when the last of them ended."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    longest_s: float = 0.0
    steps: int = 0
    ended: float | None = None


@dataclass
class _Loss:
    """Peers were lost: when the last step before had ended, when that was noticed, and when training could continue."""

    ended: float
    noticed: float
    step_s: float
    resumed: float = math.nan
    barrier_s: float = 0.0  # after the next step, of a barrier that counts by itself

    def stop(self, stepped: float | None) -> Downtime:
        """The time that it cost, up to the end of the next step if there was one."""
        first_step_s = None if stepped is None else stepped - self.resumed - self.barrier_s
        return Downtime(self.noticed - self.ended, self.resumed - self.noticed, first_step_s, self.step_s)


@dataclass(frozen=True)
class Downtime:
    """The cost of a loss of peers for this one, in seconds from the end of the last step to the end of the next one.

    Args:
        noticed_s: Until this peer knew of the loss, with what it had done of a step by then.
        regrouped_s: From there until it could train again.
        first_step_s: From there to the end of the next step; ``None`` if no step came.
        step_s: The median of the steps before; 0 if none are known.
    """

    noticed_s: float
    regrouped_s: float
    first_step_s: float | None
    step_s: float

    @property
    def seconds(self) -> float:
        """All of it less the one step that was done in it: for so long training stood still."""
        one_step_s = 0.0 if self.first_step_s is None else self.first_step_s - self.step_s
        return max(0.0, self.noticed_s + self.regrouped_s + one_step_s)


@final
class StepTimer:
    """Told of every step, it counts the time from end to end, the program's own between steps included.

    Barriers are counted separately, and those that change the view once more, as stops; so are losses of peers, from
    step to step: see `Downtime`. Its states follow the run: a view is entered, steps end in it, a barrier is arrived at
    and held, a loss is noticed and recovered from, which enters the next view.

    Args:
        deadlines: Bound how long a late peer is waited for.
        wait_at_most: Told every 32 steps, in seconds, what ``plausible_wait_s`` makes of them.
        clock: Seconds that never go back.

    On rescale:
        In a new view nothing is known, and the longest wait holds.
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
        self._ended = self._clock()  # the last step, in whichever view
        self._arrived: float | None = None  # at the barrier that is held, or that broke
        self._loss: _Loss | None = None
        self._stop = Downtime(0.0, 0.0, None, 0.0)

    def entered(self) -> None:
        """A view begins; its attachment has just been opened."""
        # A new view after a loss: its downtime counts on from the last step before. Else the peer has just joined, or
        # a barrier has changed the view, and either is where the first step begins.
        if self._loss is None:
            self._ended = self._clock()
        self._count()
        self._view = _Experience()
        self._adjust()

    def arrived(self) -> None:
        """A barrier begins: its step is done, whatever becomes of the barrier."""
        self._arrived = self._clock()

    def held(self, seconds: float, *, changed: bool) -> None:
        """A barrier was held, in which the membership ``changed`` or not; its seconds are no step's."""
        self._took["barrier_s"].add(seconds)
        if changed:  # for the program it was a stop
            self._took["stop_s"].add(seconds)
        if self._view.ended is not None:  # the next step is measured as if the barrier had taken no time
            self._view.ended += seconds
        self._arrived = None
        if self._loss is not None:  # in the first step after a loss, which has not ended yet
            self._loss.barrier_s += seconds

    def lost(self) -> None:
        """This peer knows of a loss, and cannot train until it has `recovered`."""
        since, before = self._ended, self._loss
        # One more loss before any step: the first one is counted until this peer could train again.
        if before is not None:
            since = before.resumed
            self._took["stop_s"].add(before.stop(None).seconds)
        self._loss = _Loss(since, self._clock(), self._median_s())

    def recovered(self) -> float:
        """It can train again; for how many seconds it stood still, if its next step takes as long as its steps did."""
        loss = self._loss
        assert loss is not None
        loss.resumed = self._clock()
        self._stop = loss.stop(None)
        return self._stop.seconds

    def stop(self) -> Downtime:
        """The cost of the last loss; it includes the step after it once that has ended."""
        return self._stop

    def stepped(self) -> None:
        """A step has ended. The first of a view has no step before it, and does not count."""
        view, now = self._view, self._clock()
        # A barrier that broke came after the step's end; one that was held has been taken out already.
        self._ended, self._arrived = now if self._arrived is None else self._arrived, None
        # The first step after a loss: training has resumed with its end.
        if self._loss is not None:
            self._stop, self._loss = self._loss.stop(self._ended), None
            self._took["stop_s"].add(self._stop.seconds)
        if view.ended is not None:
            self._noted.append(now - view.ended)
            steps = view.steps + len(self._noted)
            # Soon, when as many are known as it takes to judge; from then on now and then.
            if steps == KNOWN_STEPS or steps % _LOOK_EVERY == 0:
                self._count()
                self._adjust()
        view.ended = now

    def summary(self) -> dict[str, Any]:
        """Counts and percentiles of ``step_s``, ``barrier_s`` and ``stop_s``, in seconds, within 1 %."""
        self._count()
        if self._loss is not None:  # after the last step
            self._took["stop_s"].add(self._loss.stop(None).seconds)
            self._loss = None
        return {name: took.summary() for name, took in self._took.items()}

    def _median_s(self) -> float:
        """The median of the last steps of this view; if there are none, of all."""
        self._count()
        recent, all_s = self._view.recent, self._took["step_s"].percentile(50)
        if recent:
            return statistics.median(recent)
        return 0.0 if math.isnan(all_s) else all_s

    def _count(self) -> None:
        """Takes the noted steps into the counts and the window of the view."""
        view, noted = self._view, self._noted
        for seconds in noted:
            self._took["step_s"].add(seconds)
        view.recent.extend(noted)
        view.longest_s, view.steps = max([view.longest_s, *noted]), view.steps + len(noted)
        noted.clear()

    def _adjust(self) -> None:
        """Tells how long a late peer is waited for from here, by the steps of this view."""
        if self._wait_at_most is None:
            return
        between = {"floor_s": self._deadlines.wait_s, "ceiling_s": self._deadlines.longest_wait_s}
        self._wait_at_most(plausible_wait_s(self._view.recent, longest_s=self._view.longest_s, **between))
