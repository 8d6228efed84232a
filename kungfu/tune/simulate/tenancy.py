"""Who is on the bill: from instances per stage to groups of instances that come and go together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Tenancy", "tenancies"]


@dataclass(frozen=True)
class Tenancy:
    """``count`` instances, provisioned before stage ``first`` and released after stage ``last``."""

    first: int
    last: int
    count: int


def tenancies(instances: Sequence[int]) -> tuple[Tenancy, ...]:
    """The instances of a plan, grouped by the stages they live through.

    A stage that needs more provisions the difference; one that needs fewer releases the oldest before it starts: they
    are the first past their minimum bill, so no other order of release is cheaper.

    >>> tenancies([2, 5, 3])
    (Tenancy(first=0, last=1, count=2), Tenancy(first=1, last=2, count=3))
    """
    alive: deque[tuple[int, int]] = deque()
    ended: list[Tenancy] = []
    held = 0
    for stage, needed in enumerate(instances):
        if needed > held:
            alive.append((stage, needed - held))
        else:
            ended += _release(alive, surplus=held - needed, last=stage - 1)
        held = needed
    return (*ended, *(Tenancy(first, len(instances) - 1, count) for first, count in alive))


def _release(alive: deque[tuple[int, int]], *, surplus: int, last: int) -> list[Tenancy]:
    ended = []
    while surplus > 0:
        first, count = alive.popleft()
        gone = min(count, surplus)
        ended.append(Tenancy(first, last, gone))
        if gone < count:
            alive.appendleft((first, count - gone))
        surplus -= gone
    return ended
