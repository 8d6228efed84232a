"""How long something took, over and over: percentiles of a run of any length in a few kilobytes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, final

__all__ = ["Durations"]

# The width of a bin, as a factor: its middle is within 1 % of everything in it.
_GROWTH = math.log(1.02)
_SHORTEST_S = 1e-6
_PERCENTILES = (50, 90, 99)


@final
class Durations:
    """Durations counted in bins that grow by 2 %, so that a percentile is right within 1 % (and 1 us).

    A week of steps fills some hundred bins.

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
            if seen >= wanted:
                return min(math.exp((place + 0.5) * _GROWTH), self._longest)
        return math.nan

    def summary(self) -> dict[str, Any]:
        """How many there were, their 50th, 90th and 99th percentile and the longest, in seconds; only 0 of none."""
        count = self._counts.total()
        if not count:
            return {"count": 0}
        marks = {f"p{percent}": float(f"{self.percentile(percent):.4g}") for percent in _PERCENTILES}
        return {"count": count, **marks, "max": round(self._longest, 6)}
