"""The pace of a run on this peer: durations of steps and stops, and the time limit of a wait for a late peer."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from kungfu.runtime.api import KNOWN_STEPS, WINDOW_STEPS, Deadlines, plausible_wait_s

# The logarithm of the bins' growth factor: the middle of a bin is within 1 % of every value in the bin.
_GROWTH = math.log(1.02)
_SHORTEST_S = 1e-6
_PERCENTILES = (50, 90, 99)


@final
class Durations:
    """Durations counted in bins that grow by 2 %, so that a percentile is accurate within 1 % (and 1 us).

    Cost:
        Half a microsecond for each duration; a week of steps fills a few hundred bins.

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
        """Adds a duration; costs about half a microsecond."""
        self._counts[math.floor(math.log(max(seconds, _SHORTEST_S)) / _GROWTH)] += 1
        self._longest = max(self._longest, seconds)

    def percentile(self, percent: float) -> float:
        """The shortest duration, in seconds, that ``percent`` % (above 0) of the durations do not exceed, or NaN."""
        wanted, seen = percent / 100 * self._counts.total(), 0
        for place in sorted(self._counts):
            seen += self._counts[place]
            if seen >= wanted:  # the middle of the bin, which for the last bin may exceed the longest duration
                return min(math.exp((place + 0.5) * _GROWTH), self._longest)
        return math.nan

    def summary(self) -> dict[str, Any]:
        """The count of durations and, unless it is 0, their 50th, 90th and 99th percentile and maximum, in seconds."""
        count = self._counts.total()
        if not count:  # no percentiles without durations
            return {"count": 0}
        marks = {f"p{percent}": float(f"{self.percentile(percent):.4g}") for percent in _PERCENTILES}
        return {"count": count, **marks, "max": round(self._longest, 6)}


# Steps are first only noted, and then counted in groups of this size, as an evaluation costs about 30 microseconds.
_LOOK_EVERY = 32


@dataclass
class _Experience:
    """The steps of one view: the last durations, the longest duration, and the end of the last step."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    longest_s: float = 0.0
    steps: int = 0
    ended: float | None = None


@dataclass
class _Loss:
    """The times of a loss of peers: end of the last step before the loss, notice of the loss, end of the recovery."""

    ended: float
    noticed: float
    step_s: float
    resumed: float = math.nan
    barrier_s: float = 0.0  # the duration of a barrier after the next step, which is counted separately

    def stop(self, stepped: float | None) -> Downtime:
        """The cost of the loss, up to the end of the next step if there was one."""
        first_step_s = None if stepped is None else stepped - self.resumed - self.barrier_s
        return Downtime(self.noticed - self.ended, self.resumed - self.noticed, first_step_s, self.step_s)


@dataclass(frozen=True)
class Downtime:
    """The cost of losing peers: seconds from the end of the last step before the loss to the end of the first after."""

    noticed_s: float  # until this peer noticed the loss, including the step in progress
    regrouped_s: float  # from then until it could train again
    first_step_s: float | None  # from then to the end of the next step; ``None`` if no step followed
    step_s: float  # the median of the steps before; 0 if none are known

    @property
    def seconds(self) -> float:
        """The seconds for which training stood still: the sum of the parts, less ``step_s`` if a step followed."""
        one_step_s = 0.0 if self.first_step_s is None else self.first_step_s - self.step_s
        return max(0.0, self.noticed_s + self.regrouped_s + one_step_s)


@final
class StepTimer:
    """Measures steps from end to end, including the program's work between steps.

    Barriers are counted separately. A stop is a barrier that changes the view, or a loss of peers. The stop for a loss
    lasts from the last step before to the first step after: see `Downtime`. The methods follow the run: a view is
    entered, steps end in it, a barrier begins and ends, a loss is noticed, and the recovery enters the next view.

    Args:
        deadlines: The limits on the wait for a late peer.
        wait_at_most: Receives the result of ``plausible_wait_s``, in seconds, every 32 steps.
        clock: A monotonic clock, in seconds.

    On rescale:
        In a new view no durations are known, and the longest wait applies.
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
        # The durations of steps of this view that are not counted yet, each with its number of steps.
        self._noted: list[tuple[float, int]] = []
        self._took = {name: Durations() for name in ("step_s", "barrier_s", "stop_s")}
        self._ended = self._clock()  # the end of the last step, in any view
        self._arrived: float | None = None  # the start of the current barrier, or of one that failed
        self._loss: _Loss | None = None
        self._stop = Downtime(0.0, 0.0, None, 0.0)

    def entered(self) -> None:
        """Begins the timing of a view, once this peer is connected to the view's other peers."""
        # After a loss, the downtime in the new view continues from the last step before. Otherwise this peer has just
        # joined, or a barrier has changed the view, and the first step begins here.
        if self._loss is None:
            self._ended = self._clock()
        self._count()
        self._view = _Experience()
        self._adjust()

    def arrived(self) -> None:
        """Notes the time at which a barrier begins; the step ends at this time, even if the barrier then fails."""
        self._arrived = self._clock()

    def held(self, seconds: float, *, changed: bool) -> None:
        """Ends a barrier, whose duration belongs to no step; ``changed``: True if the membership changed."""
        self._took["barrier_s"].add(seconds)
        if changed:  # the program was stopped meanwhile
            self._took["stop_s"].add(seconds)
        if self._view.ended is not None:  # measures the next step as if the barrier had taken no time
            self._view.ended += seconds
        self._arrived = None
        if self._loss is not None:  # in the first step after a loss, which has not ended yet
            self._loss.barrier_s += seconds

    def lost(self) -> None:
        """Records a loss of peers; this peer cannot train until it has `recovered`."""
        since, before = self._ended, self._loss
        # A further loss before any step: the first loss is counted until this peer could train again.
        if before is not None:
            since = before.resumed
            self._took["stop_s"].add(before.stop(None).seconds)
        self._loss = _Loss(since, self._clock(), self._median_s())

    def recovered(self) -> float:
        """Ends the recovery; returns the downtime in seconds, assuming a next step of median duration."""
        loss = self._loss
        assert loss is not None
        loss.resumed = self._clock()
        self._stop = loss.stop(None)
        return self._stop.seconds

    def stop(self) -> Downtime:
        """The cost of the last loss of peers; includes the step after the loss once that step has ended."""
        return self._stop

    def stepped(self, *, steps: int = 1) -> None:
        """Ends a step, or ``steps`` steps of which only the last waits for other peers: their mean counts as a step,
        and their sum as a wait. The first step of a view does not count, since no step of the view precedes it."""
        view, now = self._view, self._clock()
        # A failed barrier began at the end of the step; the duration of a finished barrier is already deducted.
        self._ended, self._arrived = now if self._arrived is None else self._arrived, None
        # The first step after a loss: at its end training has resumed.
        if self._loss is not None:
            self._stop, self._loss = self._loss.stop(self._ended), None
            self._took["stop_s"].add(self._stop.seconds)
        if view.ended is not None:
            self._noted.append((now - view.ended, steps))
            known = view.steps + len(self._noted)
            # Evaluates soon, once enough steps are known to judge, and then at intervals.
            if known == KNOWN_STEPS or known % _LOOK_EVERY == 0:
                self._count()
                self._adjust()
        view.ended = now

    def summary(self) -> dict[str, Any]:
        """Counts and percentiles of ``step_s``, ``barrier_s`` and ``stop_s``, in seconds; the error is at most 1 %."""
        self._count()
        if self._loss is not None:  # no step followed the loss
            self._took["stop_s"].add(self._loss.stop(None).seconds)
            self._loss = None
        return {name: took.summary() for name, took in self._took.items()}

    def _median_s(self) -> float:
        """The median duration of this view's last steps; without such steps, of all steps; 0 if there are none."""
        self._count()
        recent, all_s = self._view.recent, self._took["step_s"].percentile(50)
        if recent:
            return statistics.median(recent)
        return 0.0 if math.isnan(all_s) else all_s

    def _count(self) -> None:
        """Adds the durations noted since the last call to the counts and to the view's recent durations."""
        view, noted = self._view, self._noted
        for seconds, steps in noted:
            self._took["step_s"].add(seconds / steps)
        waits = [seconds for seconds, _ in noted]
        view.recent.extend(waits)
        view.longest_s, view.steps = max([view.longest_s, *waits]), view.steps + len(noted)
        noted.clear()

    def _adjust(self) -> None:
        """Sets the time limit of a wait for a late peer, from the steps of this view."""
        if self._wait_at_most is None:
            return
        between = {"floor_s": self._deadlines.wait_s, "ceiling_s": self._deadlines.longest_wait_s}
        self._wait_at_most(plausible_wait_s(self._view.recent, longest_s=self._view.longest_s, **between))
