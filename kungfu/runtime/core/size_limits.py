"""The limits of a job's size that people change while it runs, and their hold on the size.

The leading agent decides: it counts the revisions of the limits, and ends a hold by its own clock, which the next
leader continues. It sends the newest limits with every request to the coordinator, whose next barrier puts them into
the terms of the view. No peer compares the end of a hold with a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kungfu.runtime.settings import Limits


@dataclass(frozen=True)
class Hold:
    """A hold on the size: requests of rules and hooks for another size have no effect.

    Args:
        size: The number of peers. Lost and preempted peers are still replaced, up to this number.
        until: The end of the hold in seconds since 1970, on the leader's host, for people only; ``None`` for a hold
            until it is released.
        expires: The end of the hold in seconds of the leader's clock; only agents know it.
    """

    size: int
    until: float | None = None
    expires: float | None = None

    def seconds_left(self, now: float) -> float | None:
        """The seconds until the end, at ``now`` of the leader's clock; ``None`` for a hold until it is released."""
        return None if self.expires is None else max(0.0, self.expires - now)


@dataclass(frozen=True)
class SizeLimits:
    """The limits of the size that people have set; ``None`` for those with which the job was started.

    >>> SizeLimits(maximum=4).within(Limits(2, 8))
    Limits(minimum=2, maximum=4)
    """

    minimum: int | None = None
    maximum: int | None = None
    hold: Hold | None = None
    revision: int = 0  # counts the changes; of two limits, those with the larger number are in force

    def within(self, started: Limits) -> Limits:
        """The limits in force in a job that was started with these limits."""
        minimum = started.minimum if self.minimum is None else self.minimum
        return Limits(minimum, started.maximum if self.maximum is None else self.maximum)

    def changed(self, after: SizeLimits) -> SizeLimits:
        """The limits ``after`` a change, with the next revision; unchanged if they are the same."""
        after = replace(after, revision=self.revision)
        return self if after == self else replace(after, revision=self.revision + 1)


AS_STARTED = SizeLimits()
